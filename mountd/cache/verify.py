"""Hashing sealed files again: what the disk has damaged is found and removed."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mountd.cache.guard import Keys, among, keys_of_all
from mountd.cache.index import IndexRow
from mountd.cache.store import Cache
from openshelf.units import MIB

READ_BYTES = 1 * MIB
ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sealed file: its name says its SHA-256, ``intact`` whether its bytes still have it."""

    sha256: bytes
    intact: bool
    disk_bytes: int = 0


def verify_sealed(
    cache: Cache, among_keys: Keys | None = None, read: Callable[[int], None] = lambda _: None, after: bytes = b""
) -> Iterator[Verdict]:
    """Hash sealed files in order of their digests, all or those in sorted keys, from ``after`` on; a damaged one is
    removed, so that it is fetched again at its next use. ``read`` is told of bytes as they are read."""
    while rows := cache.index.sealed_after(after, ROWS_AT_ONCE):
        after = rows[-1].sha256
        if among_keys is not None:
            wanted = among(keys_of_all([row.sha256 for row in rows]), among_keys).tolist()
            rows = [row for row, chosen in zip(rows, wanted, strict=True) if chosen]
        for row in rows:
            intact = _is_intact(cache, row, read)
            if intact is not None:
                yield Verdict(row.sha256, intact, row.disk_bytes)


def _is_intact(cache: Cache, row: IndexRow, read: Callable[[int], None]) -> bool | None:
    """Whether a file is as its name says; None when it is not there (any more)."""
    disk = cache.layout.disks.get(row.disk)
    if disk is None or row.sha256 in cache.small.arriving:
        return None
    try:
        intact = _sha256_on_disk(disk.object_path(row.sha256), read) == row.sha256
    except FileNotFoundError:
        cache.room.forget_if_gone(row)
        return None
    except OSError as error:
        cache.note_failure(error, row.sha256)
        intact = False
    if not intact:
        cache.discard_damaged(row.sha256)
    return intact


def _sha256_on_disk(path: Path, read: Callable[[int], None]) -> bytes:
    """The SHA-256 of what the disk has, past the page cache where the file system can; OSError."""
    digest = hashlib.sha256()
    descriptor = _open_direct(path)
    try:
        with mmap.mmap(-1, READ_BYTES) as buffer, memoryview(buffer) as view:
            offset = 0
            while count := os.preadv(descriptor, [view], offset):
                digest.update(view[:count])
                offset += count
                read(count)
    finally:
        os.close(descriptor)
    return digest.digest()


def _open_direct(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
