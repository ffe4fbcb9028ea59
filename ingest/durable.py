"""Files that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openshelf.errors import OpenshelfError


class DiskFull(OpenshelfError):
    """The run folder's disk has no room left."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            "disk_full",
            f"No space is left for the run folder {folder}",
            "Free some space, or set OPENSHELF_DATA to a larger disk, and run the same command again: it goes on where"
            " it stopped.",
        )


@contextmanager
def disk_full_explained(folder: Path) -> Iterator[None]:
    """Turn "no space left on device", from Python or Arrow, into :class:`DiskFull`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise DiskFull(folder) from error
        raise


def sync(path: Path) -> None:
    """Make the file or folder at ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_file(temporary: Path, final: Path) -> None:
    """Give a finished file its name: fsync, rename, fsync of the folder."""
    sync(temporary)
    temporary.replace(final)
    sync(final.parent)


def publish_folder(temporary: Path, final: Path) -> None:
    """Give a finished folder its name; when another process was first with the same content, that one stays."""
    for path in temporary.iterdir():
        sync(path)
    sync(temporary)
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(temporary)
    sync(final.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically and durably."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.write_bytes(data)
    publish_file(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON with sorted keys, atomically and durably."""
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n").encode())
