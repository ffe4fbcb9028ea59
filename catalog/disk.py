"""Full and failing disks under the catalog's own folder, as errors that say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from catalog.objects.local import storage_error


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn the operating system's errors into :class:`catalog.objects.StoreFull` or ``StoreUnavailable``."""
    try:
        yield
    except OSError as error:
        raise storage_error(folder, error) from error
