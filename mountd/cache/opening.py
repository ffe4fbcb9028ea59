"""Opening the index and the disks of a cache: made anew when damaged, and brought in line with what was left."""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from mountd.cache.disk import Disk
from mountd.cache.index import Index
from mountd.cache.layout import CacheError, CacheLock, Layout, identity, prepare_folder, write_format
from mountd.cache.partial import chunks_path, disk_bytes, remove_partial
from mountd.cache.room import Room
from mountd.cache.writing import MAP_BYTES

log = logging.getLogger("openshelf.mount.cache")

_ADOPTED_AT_ONCE = 1000
_DROPPED_AT_ONCE = 10_000
_NAME_LENGTH = 64
"""A SHA-256 in hexadecimal: other names are not objects."""


def open_index(layout: Layout) -> Index:
    """The index of ``layout``, of this version's format; one that is damaged is made anew."""
    path = layout.index
    try:
        index = Index(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            raise  # the disk is full or fails: the index may well be whole
        log.warning("The cache's index is damaged (%s) and is made anew from the files.", error)
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            name.unlink(missing_ok=True)
        index = Index(path)
    write_format(layout.root)
    return index


def attach(layout: Layout, index: Index, more: Sequence[Path]) -> list[CacheLock]:
    """Give ``layout`` all its disks: its own folder and ``more``. The locks of the latter.

    A disk that the index does not know, or that was out, is scanned: what lies on it comes back unless another disk
    has it by now. Raises CacheError for a folder that must not be used; one that fails is left out and said so.
    """
    _refuse_same(layout.root, more)
    locks: list[CacheLock] = []
    try:
        roots = [layout.root]
        for root in more:
            try:
                prepare_folder(root)
                _refuse_main(root)
                locks.append(CacheLock.take(root / "lock", root))
                write_format(root)
                roots.append(root)
            except OSError as error:
                failed = Disk(-len(roots) - len(locks), root)
                failed.out = error.strerror or str(error)
                layout.disks.add(failed)
                log.error("The cache's disk %s is left out: %s.", root, failed.out)
        _number(layout, index, roots)
    except BaseException:
        for lock in locks:
            lock.release()
        raise
    return locks


def _refuse_same(root: Path, more: Sequence[Path]) -> None:
    seen = [root.resolve()]
    for each in more:
        folder = each.resolve()
        for other in seen:
            if folder.is_relative_to(other) or other.is_relative_to(folder):
                raise CacheError(
                    "cache_twice",
                    f"The cache folders {other} and {each} are the same, or one lies in the other",
                    "Give each --more-cache a folder of its own, on another disk.",
                )
        seen.append(folder)


def _refuse_main(root: Path) -> None:
    if (root / "index.sqlite").exists():
        raise CacheError(
            "cache_in_use", f"{root} is the cache of another mount", "Give each --more-cache a folder of its own."
        )


def _number(layout: Layout, index: Index, roots: Sequence[Path]) -> None:
    """Find each disk in the index, or enter it; scan those that were not there last time."""
    before = {
        str(name): (int(number), int(weight), bool(attached))
        for name, number, weight, attached in index.execute("SELECT identity, number, weight, attached FROM disks")
    }
    returning: list[Disk] = []
    taken = {number for number, *_ in before.values()}
    for root in roots:
        name, main = identity(root), root == layout.root
        number, weight, attached = before.get(name, (0 if main else max(taken, default=0) + 1, 0, False))
        taken.add(number)
        disk = Disk(number, root, name, weight or _weight(root))
        layout.disks.add(disk)
        # An index that knows no disks is of format 1, where all lay on one.
        if not attached and not (main and not before and index.totals()):
            returning.append(disk)
    with index.batch():
        index.execute("UPDATE disks SET attached = 0")
        for disk in layout.disks:
            index.execute("DELETE FROM disks WHERE number = ? OR identity = ?", (disk.number, disk.identity))
            index.execute("INSERT INTO disks VALUES (?, ?, ?, 1)", (disk.number, disk.identity, disk.weight))
    if returning:
        here = {disk.number for disk in layout.disks} - {disk.number for disk in returning}
        for number in index.totals().keys() - here:
            while index.drop_disk(number, _DROPPED_AT_ONCE):
                pass
        for disk in returning:
            _scan(index, disk)


def _weight(root: Path) -> int:
    state = os.statvfs(root)
    return max(1, state.f_blocks * state.f_frsize)


def _scan(index: Index, disk: Disk) -> None:
    """Enter what lies on a disk; what another disk has by now is removed."""
    found = _found(disk)
    while batch := list(itertools.islice(found, _ADOPTED_AT_ONCE)):
        elsewhere = index.known_among([sha256 for sha256, *_ in batch])
        for sha256, _, sealed, _ in batch:
            if sha256 in elsewhere:
                if sealed:
                    disk.object_path(sha256).unlink(missing_ok=True)
                else:
                    remove_partial(disk.partial_path(sha256))
        index.adopt([row for row in batch if row[0] not in elsewhere])


def _found(disk: Disk) -> Iterator[tuple[bytes, int, bool, int]]:
    with os.scandir(disk.objects) as folders:
        for folder in folders:
            with os.scandir(folder) as files:
                for file in files:
                    if len(file.name) == _NAME_LENGTH:
                        yield bytes.fromhex(file.name), disk_bytes(file.stat().st_size), True, disk.number
    with os.scandir(disk.partial) as files:
        for file in files:
            if len(file.name) == _NAME_LENGTH:
                yield bytes.fromhex(file.name), MAP_BYTES, False, disk.number


def recount_partials(index: Index, room: Room) -> None:
    """Count what each partial file takes on disk.

    Partial files grow without the index: what they take is read from the disk, and one sealed at the moment of a crash
    is found under its sealed name.
    """
    with index.batch():  # after the end of a worker that was unpacking there are thousands
        for row in index.partials():
            disk = room.disks.get(row.disk)
            if disk is None:
                continue
            path, sealed = disk.partial_path(row.sha256), disk.object_path(row.sha256)
            if path.exists():
                taken = path.stat().st_blocks * 512 + MAP_BYTES
                index.put(row.sha256, taken, sealed=False, disk=disk.number)
                room.partial_bytes[row.sha256] = taken
                room.count(disk, taken - row.disk_bytes, 0)
                if room.disks.home(row.sha256) is not disk:
                    room.stray_partials[row.sha256] = disk
            elif sealed.exists():
                chunks_path(path).unlink(missing_ok=True)
                taken = disk_bytes(sealed.stat().st_size)
                index.put(row.sha256, taken, sealed=True, disk=disk.number)
                room.count(disk, taken - row.disk_bytes, -1)
            else:
                remove_partial(path)
                index.remove(row.sha256)
                room.count(disk, -row.disk_bytes, -2)
