"""One release as folders and hard links of the cache's sealed files, made in the order of its manifest."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from catalog.manifest import BATCH_ROWS
from mountd.cache.layout import SEALED_MODE
from mountd.releases import MADE_MODE, RECORD_NAMES, ListedRelease
from mountd.rows import Rows

MAX_LINKS = 60_000
"""A release that needs more names of one file is not materialised: ext4 stops at 65,000."""
MAX_FILES = 2_000_000
"""Larger releases stay with passthrough: their names alone would take minutes and gigabytes."""
_LOOK_EVERY = 1024
"""After how many files a builder looks whether it should stop."""

Stop = Callable[[], bool]


class Incomplete(Exception):
    """The file of row ``row`` is not in the cache, or not on the disk yet."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Unsuitable(Exception):
    """Links of the cached files would not look as the release does, or cannot be made; the reason for people."""


class Stopped(Exception):
    """The builder was told to stop."""


def first_missing(objects: Path, rows: Rows, start: int, stop: Stop) -> int | None:
    """The first row from ``start`` on whose file is not sealed and on the disk; None when there is none.

    Raises Unsuitable for a release that can never be links, Stopped.
    """
    if len(rows) > MAX_FILES:
        raise Unsuitable(f"it has more than {MAX_FILES:,} files")
    with _folder(objects) as sealed:
        for row, (size, mode, _), digest in _files(rows, start, stop):
            if mode != SEALED_MODE:
                raise Unsuitable(f"it has files of mode {mode:04o}")
            if size == 0:
                continue
            try:
                state = os.stat(_place(digest), dir_fd=sealed)
            except FileNotFoundError:
                return row
            if state.st_mode & 0o777 != SEALED_MODE:
                return row
    return None


def build(
    objects: Path, listed: ListedRelease, rows: Rows, root: Path, most_inodes: int, stop: Stop
) -> tuple[list[str], int]:
    """Fill the empty folder ``root``: the paths of all folders (``""`` first) and how many inodes were made.

    ``objects`` is the cache's folder of sealed files, ``most_inodes`` what the tree may take beyond links. Raises
    Incomplete, Unsuitable, Stopped, and OSError when the disk refuses; what was made is left to the caller.
    """
    with _folder(objects) as sealed, _Builder(listed, sealed, root, most_inodes) as builder:
        for name, content in zip(RECORD_NAMES, (listed.record, listed.signature), strict=True):
            builder.make(name, content, listed.created_ns)
        for row, (size, mode, mtime_ns), digest in _files(rows, 0, stop):
            if mode != SEALED_MODE:
                raise Unsuitable(f"it has files of mode {mode:04o}")
            folder, _, name = rows.path(row).rpartition(b"/")
            builder.enter(folder)
            if size:
                builder.link(row, digest, name, size, mtime_ns)
            else:
                builder.make(name, b"", mtime_ns)
        builder.leave_all()
        return builder.folders, builder.inodes


def holds(rows: Rows, sha256: bytes) -> bool:
    """Whether a file of the release has this digest."""
    wanted = np.frombuffer(sha256, np.uint8)
    return any(bool((column == wanted).all(axis=1).any()) for column in rows.sha256_column())


class _Builder:
    """Each folder is entered once and left once, and gets its final mode and time then."""

    def __init__(self, listed: ListedRelease, sealed: int, root: Path, most_inodes: int) -> None:
        self.folders = [""]
        self.inodes = 1
        self._listed = listed
        self._sealed = sealed
        self._most_inodes = most_inodes
        self._folder = b""
        self._names: list[bytes] = []
        self._open = [_open_folder(root)]

    def __enter__(self) -> _Builder:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def link(self, row: int, digest: str, name: bytes, size: int, mtime_ns: int) -> None:
        """One more name of the sealed file ``digest`` in the present folder."""
        below = self._open[-1]
        try:
            os.link(_place(digest), name, src_dir_fd=self._sealed, dst_dir_fd=below)
        except FileNotFoundError:
            raise Incomplete(row) from None
        except OSError as error:
            if error.errno in (errno.EMLINK, errno.EXDEV, errno.EPERM):
                raise Unsuitable(f"its files cannot be linked ({error.strerror})") from error
            raise
        state = os.stat(name, dir_fd=below)
        if state.st_mode & 0o777 != SEALED_MODE:
            raise Incomplete(row)
        if state.st_mtime_ns != mtime_ns or state.st_size != size:
            raise Unsuitable("another release has one of its files with another time")
        if state.st_nlink > MAX_LINKS:
            raise Unsuitable(f"one of its files would have more than {MAX_LINKS:,} names")

    def make(self, name: bytes, content: bytes, mtime_ns: int) -> None:
        """A file of its own in the present folder: an empty one (the cache has none), or a record."""
        self._count()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self._open[-1])
        try:
            if content:
                os.write(descriptor, content)
                os.fsync(descriptor)
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            os.fchmod(descriptor, MADE_MODE)
        finally:
            os.close(descriptor)

    def enter(self, folder: bytes) -> None:
        """Be in ``folder``, leaving what is done."""
        if folder == self._folder:
            return
        self._folder = folder
        names = folder.split(b"/") if folder else []
        common = 0
        while common < min(len(names), len(self._names)) and names[common] == self._names[common]:
            common += 1
        self._leave(common)
        for name in names[common:]:
            self._count()
            os.mkdir(name, 0o700, dir_fd=self._open[-1])
            self._open.append(_open_folder(name, self._open[-1]))
            self._names.append(name)
            self.folders.append(b"/".join(self._names).decode())

    def leave_all(self) -> None:
        """Finish the tree."""
        self._leave(0)
        self._finish()

    def _leave(self, depth: int) -> None:
        while len(self._names) > depth:
            self._finish()
            os.close(self._open.pop())
            self._names.pop()

    def _finish(self) -> None:
        descriptor, listed = self._open[-1], self._listed
        os.fchown(descriptor, 0, listed.gid)
        os.fchmod(descriptor, listed.folder_mode)
        os.utime(descriptor, ns=(listed.created_ns, listed.created_ns))

    def _count(self) -> None:
        self.inodes += 1
        if self.inodes > self._most_inodes:
            raise Unsuitable("its folders and empty files would take too many of the disk's inodes")


def _files(rows: Rows, start: int, stop: Stop) -> Iterator[tuple[int, tuple[int, int, int], str]]:
    """Row, (size, mode, mtime in nanoseconds) and SHA-256 in hexadecimal of each file from ``start`` on."""
    for number, column in enumerate(rows.sha256_column()):
        first = number * BATCH_ROWS
        if first + len(column) <= start:
            continue
        digits = column.tobytes().hex()
        for at in range(max(start - first, 0), len(column)):
            row = first + at
            if row % _LOOK_EVERY == 0 and stop():
                raise Stopped
            yield row, rows.file(row), digits[at * 64 : at * 64 + 64]


def _place(digest: str) -> str:
    """A sealed file's path below the folder of sealed files, as :meth:`mountd.cache.layout.Layout.object_path`."""
    return f"{digest[:2]}/{digest}"


def _open_folder(path: Path | bytes, below: int | None = None) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = _open_folder(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
