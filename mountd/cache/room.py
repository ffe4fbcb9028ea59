"""Room in the cache: what is counted, what may stay, what goes when something new comes, and removing it.

Everything in the cache's folders counts: objects and partial files in whole 4 KiB blocks, and what else lies there
(manifests, records, the index, folders; :mod:`mountd.cache.own`). Least recently used files go first; open files,
pinned releases and whatever else is protected stay. Who brings something makes just the room it needs; the rest, down
to the low-water mark, is :mod:`mountd.cache.upkeep`'s to do, so that no reader waits for it.
"""

from __future__ import annotations

import heapq
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mountd.cache.disk import Disk, Disks
from mountd.cache.free import Free, Limits
from mountd.cache.guard import Guard, keys_of_all
from mountd.cache.index import Index, IndexRow
from mountd.cache.partial import disk_bytes, remove_partial
from mountd.cache.trouble import Trouble
from openshelf.units import format_size

log = logging.getLogger("openshelf.mount.cache")

LOW_WATER = 0.9
"""Once files had to go, they go until this share of the limit is in use."""
EVICTION_PAGE = 256
INDEX_BYTES = 256
"""What one object adds to the index, until that is measured again."""


@dataclass(slots=True)
class Account:
    """What lies on one disk: bytes of objects and partial files, and how many files those are (a map is one too)."""

    free: Free
    size_bytes: int = 0
    files: int = 0


class Room:
    """The accounts of one cache. ``lock`` guards them together with the index's rows and the files' names."""

    def __init__(self, disks: Disks, index: Index, limits: Limits) -> None:
        self.lock = threading.RLock()
        self.limits = limits
        self.disks = disks
        self.trouble = Trouble(disks, self.take_out)
        self.guard = Guard()
        self.partial_bytes: dict[bytes, int] = {}
        """What each partial file takes, with its map."""
        self.stray_partials: dict[bytes, Disk] = {}
        """Partial files that do not lie on their home disk."""
        self.unsettled: dict[bytes, object] = {}
        """Small files with their sealed name, or about to get it, whose bytes may not be on the disk: a token each."""
        self.evictions = 0
        self.own_bytes = 0
        self.own_files = 0
        self.pressed = threading.Event()
        """Set when files had to go, or could not: the upkeep has work."""
        self.starved = False
        """Something did not fit beside what is protected."""
        self.before_first_eviction: Callable[[], None] | None = None
        self._index = index
        self._held: dict[bytes, int] = {}
        # Of its own, so that no open waits for a run of rows. A file that is evicted at this very moment is not found.
        self._holding = threading.Lock()
        totals = index.totals()
        self._accounts: dict[int, Account] = {}
        for disk in disks:
            size, sealed, partial = totals.get(disk.number, (0, 0, 0))
            self._accounts[disk.number] = Account(Free(disk.root, limits), size, sealed + 2 * partial)

    # -- figures

    @property
    def total_bytes(self) -> int:
        """Bytes of objects and partial files on the disks in use."""
        return sum(account.size_bytes for account in self._accounts.values())

    @property
    def total_files(self) -> int:
        """Files on the disks in use: objects, partial files and their maps."""
        return sum(account.files for account in self._accounts.values())

    def available_bytes(self) -> int:
        """The most that objects may take: the limit, and what the disks have before their floors."""
        with self.lock:
            lacking = [account.free.lacking(1 << 62, 0)[0] for account in self._accounts.values()]
            left = sum((1 << 62) - each for each in lacking)
            return max(0, min(self.limits.size_bytes - self.own_bytes, self.total_bytes + left))

    # -- what stays

    def hold(self, sha256: bytes) -> None:
        """Keep a file from eviction until as many calls of :meth:`unhold`."""
        with self._holding:
            self._held[sha256] = self._held.get(sha256, 0) + 1

    def unhold(self, sha256: bytes) -> None:
        """Undo one :meth:`hold`."""
        with self._holding:
            left = self._held[sha256] - 1
            if left:
                self._held[sha256] = left
            else:
                del self._held[sha256]

    def is_held(self, sha256: bytes) -> bool:
        """Whether somebody has the file open."""
        return sha256 in self._held

    # -- coming in

    def home(self, sha256: bytes) -> Disk:
        """The disk of a partial file, and of anything new."""
        return self.stray_partials.get(sha256) or self.disks.home(sha256)

    def reserve(self, needed: int, files: int = 0, disk: Disk | None = None) -> bool:
        """Count so many bytes and files more on a disk (the cache's own if none is given), evicting for them; False
        when they do not fit, and says so."""
        disk = disk or next(iter(self.disks))
        with self.lock:
            try:
                if any(self._lacking(needed, files, disk)) and not self._make_room(needed, files, disk):
                    return False
            except (OSError, sqlite3.Error) as error:
                self.trouble.note(error, disk)
                return False
            self.count(disk, needed, files)
            return True

    def reserve_run(self, files: Sequence[tuple[bytes, int]]) -> bool:
        """The same for whole files (SHA-256, size in bytes) on their home disks: all of them or none."""
        done: list[tuple[Disk, int, int]] = []
        for disk, taken, number in self._by_disk(files):
            if not self.trouble.writable(disk) or not self.reserve(taken, number, disk):
                for each, size, count in done:
                    self.count(each, -size, -count)
                return False
            done.append((disk, taken, number))
        return True

    def give_back_run(self, files: Sequence[tuple[bytes, int]]) -> None:
        """Undo :meth:`reserve_run`."""
        for disk, taken, number in self._by_disk(files):
            self.count(disk, -taken, -number)

    def _by_disk(self, files: Sequence[tuple[bytes, int]]) -> list[tuple[Disk, int, int]]:
        """What whole files take on their home disks: bytes and files."""
        run: dict[Disk, tuple[int, int]] = {}
        for sha256, size in files:
            disk = self.disks.home(sha256)
            taken, number = run.get(disk, (0, 0))
            run[disk] = taken + disk_bytes(size), number + 1
        return [(disk, taken, number) for disk, (taken, number) in run.items()]

    def count(self, disk: Disk, size_bytes: int, files: int) -> None:
        """Count this much more (or less) on a disk."""
        with self.lock:
            account = self._accounts.get(disk.number)
            if account is None:
                return
            account.size_bytes += size_bytes
            account.files += files
            account.free.take(size_bytes, files)
            self.own_bytes += INDEX_BYTES * max(0, files)

    def grow(self, sha256: bytes, more: int) -> None:
        """Count ``more`` bytes (or less) of a partial file, if it is still there."""
        with self.lock:
            if sha256 in self.partial_bytes:
                self.partial_bytes[sha256] += more
                self.count(self.home(sha256), more, 0)

    # -- going

    def _lacking(self, needed: int, files: int, disk: Disk) -> tuple[bool, bool]:
        """Whether this much more would break the limits, and whether the disk's floor."""
        limits = self.limits
        bytes_then = self.total_bytes + self.own_bytes + needed + INDEX_BYTES * max(0, files)  # as they are counted
        over = bytes_then > limits.size_bytes or (
            limits.files > 0 and self.total_files + self.own_files + files > limits.files
        )
        return over, any(self._accounts[disk.number].free.lacking(needed, files))

    def _make_room(self, needed: int, files: int, disk: Disk) -> bool:
        """Evict just enough; whether it fits now. The lock is held."""
        self.pressed.set()
        for row in self._victims(lambda: self._where(needed, files, disk)):
            self._evict(row)
        over, short = self._lacking(needed, files, disk)
        if over or short:
            self.starved = True
            if short:
                self.trouble.say("the cache's disk is full (no more may go for what must stay free on it)")
            else:
                limit = format_size(self.limits.size_bytes)
                self.trouble.say(f"the cache's {limit} are taken by files in use, pinned or protected")
        return not (over or short)

    def _where(self, needed: int, files: int, disk: Disk) -> Sequence[Disk]:
        """The disks that something must go from."""
        over, short = self._lacking(needed, files, disk)
        return [disk] if short else list(self.disks) if over else []

    def shrink(self, most: int = EVICTION_PAGE) -> bool:
        """Evict up to ``most`` files towards the low-water mark; whether that mark is still to be reached."""

        def where() -> Sequence[Disk]:
            limits = self.limits
            low_bytes, low_files = int(limits.size_bytes * LOW_WATER), int(limits.files * LOW_WATER)
            if self.total_bytes + self.own_bytes > low_bytes or (
                limits.files and self.total_files + self.own_files > low_files
            ):
                return list(self.disks)
            return [disk for disk in self.disks if any(self._accounts[disk.number].free.lacking(0, 0))]

        try:
            with self.lock, self._index.batch():
                for gone, row in enumerate(self._victims(where), 1):
                    self._evict(row)
                    if gone >= most:
                        return True
        except (OSError, sqlite3.Error) as error:
            self.trouble.note(error)
        return False

    def over_limits(self) -> bool:
        """Whether more is taken than may be: others filled the disk, or manifests came."""
        with self.lock:
            try:
                return any(any(self._lacking(0, 0, disk)) for disk in self.disks)
            except OSError as error:
                self.trouble.note(error)
                return False

    def _victims(self, where: Callable[[], Sequence[Disk]]) -> Iterator[IndexRow]:
        """Files that may go, least recently used first, from the disks that ``where`` names before each.

        Files that must stay are put at the end of the order, so that they are not looked at again and again.
        """
        if self.before_first_eviction is not None:
            load, self.before_first_eviction = self.before_first_eviction, None
            load()
        self._index.flush()
        last = self._index.clock
        disks = where()
        while disks:
            for row in self._in_order(disks, last):
                yield row
                wanted = where()
                if wanted != disks:
                    disks = wanted
                    break
            else:
                return

    def _in_order(self, disks: Sequence[Disk], last: int) -> Iterator[IndexRow]:
        for _, row, stays in heapq.merge(*(self._pages(disk, last) for disk in disks), key=lambda each: each[0]):
            if stays or row.sha256 in self._held:
                self._index.touch(row.sha256)
            else:
                yield row

    def _pages(self, disk: Disk, last: int) -> Iterator[tuple[tuple[int, bytes], IndexRow, bool]]:
        """A disk's rows in order of last use up to the use numbered ``last``, and whether each is protected."""
        place = (-1, b"")
        while page := self._index.oldest(disk.number, EVICTION_PAGE, place):
            protected = self.guard.covers(keys_of_all([row.sha256 for _, row in page])).tolist()
            for (use, row), stays in zip(page, protected, strict=True):
                place = (use, row.sha256)
                if use > last:
                    return
                yield place, row, stays

    def by_last_use(self) -> Iterator[IndexRow]:
        """All rows of the index, least recently used first."""
        for _, row, _ in heapq.merge(*(self._pages(disk, 1 << 62) for disk in self.disks), key=lambda each: each[0]):
            yield row

    def _evict(self, row: IndexRow) -> None:
        self.remove(row)
        self.evictions += 1

    def remove(self, row: IndexRow) -> None:
        """Remove a file and its row. The lock is held. Raises OSError, sqlite3.Error."""
        disk = self.disks.get(row.disk)
        if disk is not None:
            if (self.unsettled.pop(row.sha256, None) is not None) or row.sealed:
                path = disk.object_path(row.sha256)
                path.unlink(missing_ok=True)
                self.count(disk, -row.disk_bytes, -1)
            else:
                remove_partial(disk.partial_path(row.sha256))
                self.count(disk, -self.partial_bytes.pop(row.sha256, row.disk_bytes), -2)
                self.stray_partials.pop(row.sha256, None)
        self._index.remove(row.sha256)

    def discard(self, sha256: bytes) -> None:
        """Remove a file whatever holds it."""
        try:
            with self.lock:
                row = self._index.get(sha256)
                if row is not None:
                    self.remove(row)
        except (OSError, sqlite3.Error) as error:
            self.trouble.note(error)

    def discard_rows(self, digests: Iterable[bytes]) -> tuple[int, int]:
        """Remove those of some hundred files that nobody has open, in one go: how many files and bytes went."""
        files = size = 0
        with self.lock, self._index.batch():
            for sha256 in digests:
                row = None if sha256 in self._held else self._index.get(sha256)
                if row is not None:
                    self.remove(row)
                    files, size = files + 1, size + row.disk_bytes
        return files, size

    def forget_if_gone(self, row: IndexRow) -> None:
        """Drop the row of a sealed file that somebody removed from the disk, or take the disk out that vanished."""
        try:
            with self.lock:
                disk = self.disks.get(row.disk)
                if disk is None or self._index.get(row.sha256) != row or disk.object_path(row.sha256).exists():
                    return
                if len(self.disks) > 1 and not disk.partial.is_dir():
                    self.take_out(disk, "its folder is gone")
                    return
                log.warning("The cached file %s is gone from the disk; it will be fetched again.", row.sha256.hex())
                self._index.remove(row.sha256)
                self.count(disk, -row.disk_bytes, -1)
        except (OSError, sqlite3.Error) as error:
            self.trouble.note(error)

    def take_out(self, disk: Disk, reason: str) -> None:
        """Use a broken disk no longer until the next mount: what lies on it counts as missing."""
        with self.lock:
            if disk.out or len(self.disks) == 1:
                return
            for sha256 in [each for each in self.partial_bytes if self.home(each) is disk]:
                del self.partial_bytes[sha256]
                self.stray_partials.pop(sha256, None)
            for sha256 in [each for each in self.unsettled if self.disks.home(each) is disk]:
                del self.unsettled[sha256]
            self.disks.take_out(disk, reason)
            del self._accounts[disk.number]
            self.pressed.set()
            try:
                self._index.execute("UPDATE disks SET attached = 0 WHERE number = ?", (disk.number,))
            except sqlite3.Error as error:
                self.trouble.note(error)
        log.error(
            "The cache's disk %s is taken out (%s): what it held is fetched again to the others. It is tried again at"
            " the next mount.",
            disk.root,
            reason,
        )
