"""The object store in a local folder: ``sha256/ab/cd/<sha256>``, written beside and renamed into place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from catalog.objects.store import (
    BodyCheck,
    ObjectMissing,
    StoredObject,
    StoreFull,
    StoreUnavailable,
)
from openshelf.errors import OpenshelfError
from openshelf.units import MIB

PORTION_BYTES = 1 * MIB
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def storage_error(where: Path, error: OSError) -> OpenshelfError:
    """What an operating-system error under the folder ``where`` means for a store."""
    if error.errno in _FULL:
        return StoreFull(str(where))
    return StoreUnavailable(str(where), error.strerror or type(error).__name__)


class Incoming:
    """A folder for files that are being written. Each is locked by its writer, so that the next start can tell a
    file that is still growing from one that a crash left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._sweep()
        except OSError as error:
            raise storage_error(folder, error) from error

    def _sweep(self) -> None:
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as left:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    @contextlib.contextmanager
    def file(self) -> Iterator[tuple[BinaryIO, Path]]:
        """A new empty file, open for reading and unbuffered writing, removed at the end unless it was renamed."""
        sink, path = self._create()
        with sink:
            try:
                yield sink, path
            finally:
                path.unlink(missing_ok=True)

    def _create(self) -> tuple[BinaryIO, Path]:
        while True:
            path = self.folder / secrets.token_hex(16)
            try:
                sink = path.open("x+b", buffering=0)
            except OSError as error:
                raise storage_error(self.folder, error) from error
            fcntl.flock(sink, fcntl.LOCK_EX)
            if os.fstat(sink.fileno()).st_nlink:
                return sink, path
            sink.close()  # another process's sweep came between the creation and the lock

    def write(self, sink: BinaryIO, portions: Iterable[bytes]) -> None:
        """Write ``portions`` to a file of this folder. Only a failure to *write* becomes an error of the store."""
        for portion in portions:
            left = memoryview(portion)
            try:
                while left:
                    left = left[sink.write(left) :]
            except OSError as error:
                raise storage_error(self.folder, error) from error


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalStore:
    """Objects as files of mode 0444 under ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._objects = root / "sha256"
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)  # objects of restricted collections lie here too
            self._objects.mkdir(exist_ok=True)
        except OSError as error:
            raise storage_error(root, error) from error
        self._incoming = Incoming(root / "incoming")

    def _path(self, sha256: str) -> Path:
        return self._objects / sha256[:2] / sha256[2:4] / sha256

    def put(self, stream_chunks: Iterable[bytes], size_bytes: int | None, expected_sha256: str | None) -> StoredObject:
        """See :meth:`catalog.objects.store.ObjectStore.put`."""
        check = BodyCheck(size_bytes, expected_sha256)
        with self._incoming.file() as (sink, path):
            self._incoming.write(sink, check.pass_through(stream_chunks))
            stored = check.finish()
            try:
                os.fchmod(sink.fileno(), 0o444)
                os.fsync(sink.fileno())
                self._place(path, self._path(stored.sha256))
            except OSError as error:
                raise storage_error(self._root, error) from error
        return stored

    def _place(self, written: Path, final: Path) -> None:
        missing = [folder for folder in (final.parent.parent, final.parent) if not folder.exists()]
        for folder in missing:
            folder.mkdir(exist_ok=True)
        written.rename(final)
        sync_folder(final.parent)
        for folder in missing:
            sync_folder(folder.parent)

    def open(self, sha256: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """See :meth:`catalog.objects.store.ObjectStore.open`."""
        try:
            with self._path(sha256).open("rb", buffering=0) as source:
                size = os.fstat(source.fileno()).st_size
                left = max(size - start, 0) if length is None else length
                source.seek(start)
                while left:
                    portion = source.read(min(left, PORTION_BYTES))
                    if not portion:
                        raise StoreUnavailable(str(self._root), f"object {sha256} ends {left} bytes early")
                    left -= len(portion)
                    yield portion
        except FileNotFoundError as error:
            raise ObjectMissing(sha256) from error
        except OSError as error:
            raise storage_error(self._root, error) from error

    def size(self, sha256: str) -> int | None:
        """See :meth:`catalog.objects.store.ObjectStore.size`."""
        try:
            return self._path(sha256).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(self._root, error) from error

    def presign(self, sha256: str, ttl_s: int = 60) -> str | None:
        """Always None: the catalog streams the bytes itself."""
        return None

    def delete(self, sha256: str) -> None:
        """See :meth:`catalog.objects.store.ObjectStore.delete`."""
        try:
            self._path(sha256).unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(self._root, error) from error

    def hosts(self) -> list[str]:
        """None: see :meth:`presign`."""
        return []

    def check(self) -> None:
        """See :meth:`catalog.objects.store.ObjectStore.check`."""
        try:
            with os.scandir(self._objects) as entries:
                next(entries, None)
        except OSError as error:
            raise storage_error(self._root, error) from error

    def close(self) -> None:
        """Nothing is held open."""
