"""The cache itself: what readers, fetchers and the follower ask of it.

Its parts, each with one subject: :mod:`~mountd.cache.room` (what is counted, kept and evicted),
:mod:`~mountd.cache.writing` and :mod:`~mountd.cache.small` (how files come in), :mod:`~mountd.cache.trouble` (what the
disks refused), :mod:`~mountd.cache.opening` (the index brought in line with the files), :mod:`~mountd.cache.disk`
(several disks), :mod:`~mountd.cache.pins`; what goes on beside them is :mod:`~mountd.cache.upkeep`'s.

For who keeps hard links of objects: :meth:`Cache.disk_of` names the disk of an object (``Disk.trees`` is the place for
links there), :meth:`Cache.protect` keeps objects from eviction, :attr:`Cache.before_evict` is asked to give up
protection when something does not fit, :attr:`Cache.before_removal` is told before a release is evicted by order, and
:attr:`Cache.damaged` is told of an object whose bytes went bad, which its links share.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from catalog.names import ReleaseRef
from mountd.cache.disk import Disk
from mountd.cache.free import Limits
from mountd.cache.guard import Digests
from mountd.cache.index import IndexRow
from mountd.cache.layout import SEALED_MODE, CacheError, CacheLock, Layout, is_overlay
from mountd.cache.opening import attach, open_index, recount_partials
from mountd.cache.own import index_log_bytes, measure
from mountd.cache.partial import FileSpec, PartialFile
from mountd.cache.pins import Pins
from mountd.cache.room import Room
from mountd.cache.small import SmallFiles
from mountd.cache.writing import MAP_BYTES, Writing

log = logging.getLogger("openshelf.mount.cache")


class Cache:
    """Verified files on the node's disks, within limits. Thread-safe; one per folder at a time."""

    def __init__(self, layout: Layout, locks: list[CacheLock], limits: Limits, more: Sequence[Path]) -> None:
        self.layout = layout
        self.overlay = is_overlay(layout.root)
        self.before_evict: list[Callable[[], bool | None]] = []
        """Called in turn, with no lock held, when something did not fit: give up a protection, and True when that is
        done now; else nothing was given up, or it takes a moment."""
        self.before_removal: list[Callable[[ReleaseRef], None]] = []
        """Called with a release before its files are removed by order."""
        self.damaged: list[Callable[[bytes], None]] = []
        """Called with the SHA-256 of an object that was removed since its bytes are not right any more."""
        self._locks = locks
        self.index = open_index(layout)
        self.index.bound_log(index_log_bytes(limits.size_bytes))
        locks += attach(layout, self.index, more)
        self.room = Room(layout.disks, self.index, limits)
        recount_partials(self.index, self.room)
        self.room.own_bytes, self.room.own_files = measure(layout.disks, limits.size_bytes)
        self.pins = Pins(layout, self.index, self.room.guard)
        self.room.before_first_eviction = self.pins.restore
        self._writing = Writing(self.index, self.room)
        self._settling = self._writing.settling
        self.small = SmallFiles(layout, self.index, self.room, self._settling)

    @classmethod
    def open(
        cls, root: Path, limit_bytes: int, *, files: int = 0, free_bytes: int = 0, more: Sequence[Path] = ()
    ) -> Cache:
        """Open the cache at ``root``, with ``more`` folders on other disks, making what is new.

        The limits are those of :class:`mountd.cache.free.Limits`. Raises :class:`CacheError` when a folder is not
        private, of another format, or in use by another daemon. Objects are not scanned. A cache on overlayfs gets one
        warning and serves without passthrough.
        """
        layout = Layout.prepare(root)
        locks = [CacheLock.take(layout.lock, root)]
        try:
            cache = cls(layout, locks, Limits(limit_bytes, files, free_bytes), more)
        except (OSError, sqlite3.Error) as error:
            _release(locks)
            raise CacheError(
                "cache_unusable", f"The cache {root} cannot be opened: {error}", "Check its disk, or use another."
            ) from error
        except CacheError:
            _release(locks)
            raise
        if cache.overlay:
            log.warning(
                "The cache %s is on overlayfs, which the kernel cannot read through: files are served by the daemon."
                " Put the cache on a local disk for native speed.",
                root,
            )
        return cache

    def close(self) -> None:
        """Write what is not on the disk yet and the index, and give the lock back."""
        self._settling.close()
        try:
            self.index.close()
        except sqlite3.Error as error:
            log.warning("The cache's index could not be written: %s.", error)
        _release(self._locks)

    # -- what is there

    @property
    def total_bytes(self) -> int:
        """Bytes on disk of objects and partial files; :attr:`used_bytes` is what the limit holds for."""
        return self.room.total_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes on disk of everything in the cache's folders."""
        return self.room.total_bytes + self.room.own_bytes

    @property
    def used_files(self) -> int:
        """How many files and folders there are in the cache's folders."""
        return self.room.total_files + self.room.own_files

    @property
    def limit_bytes(self) -> int:
        """What :attr:`used_bytes` is held below."""
        return self.room.limits.size_bytes

    @property
    def evictions(self) -> int:
        """How many files were evicted since the cache was opened."""
        return self.room.evictions

    def counts(self) -> tuple[int, int]:
        """How many files are sealed, and how many partial, on the disks in use."""
        found = [figures for number, figures in self.index.totals().items() if self.layout.disks.get(number)]
        return sum(sealed for _, sealed, _ in found), sum(partial for _, _, partial in found)

    def disk_of(self, sha256: bytes) -> Disk | None:
        """The disk that a sealed file lies on; None when there is none."""
        disks = self.layout.disks
        home = disks.home(sha256)
        if home.object_path(sha256).exists():
            return home
        row = None if len(disks) == 1 else self._row(sha256)
        disk = None if row is None else disks.get(row.disk)
        return disk if disk is not None and disk.object_path(sha256).exists() else None

    def object_path(self, sha256: bytes) -> Path | None:
        """Where a sealed file lies."""
        disk = self.disk_of(sha256)
        return None if disk is None else disk.object_path(sha256)

    def _row(self, sha256: bytes) -> IndexRow | None:
        try:
            row = self.index.get(sha256)
        except sqlite3.Error as error:
            self.note_failure(error)
            return None
        return row if row is not None and row.sealed else None

    def open_sealed(self, sha256: bytes, size: int) -> int | None:
        """A descriptor of the sealed file, or None. One of the wrong size, or that a crash has damaged is removed."""
        if sha256 in self.small.arriving:
            return None
        descriptor = self._open(sha256)
        if descriptor is None:
            return None
        state = os.fstat(descriptor)
        if state.st_size != size:
            if sha256 in self.small.arriving:
                os.close(descriptor)
                return None
            state = os.fstat(descriptor)  # its last bytes may just have come
        reason = self._damage(descriptor, state, sha256, size)
        if reason:
            os.close(descriptor)
            log.error("The cached file %s %s and is fetched again.", sha256.hex(), reason)
            self.discard(sha256)
            return None
        self.touch(sha256)
        return descriptor

    def _open(self, sha256: bytes) -> int | None:
        """A descriptor of the file at its home, else where the index says that it lies."""
        disk = self.layout.disks.home(sha256)
        try:
            return os.open(disk.object_name(sha256), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            row = self._row(sha256)
        except OSError as error:
            self.room.trouble.note(error, disk)
            return None
        stray = None if row is None else self.layout.disks.get(row.disk)
        if row is None or stray is None:
            return None
        if stray is not disk:
            try:
                return os.open(stray.object_name(sha256), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.room.trouble.note(error, stray)
                return None
        self.room.forget_if_gone(row)
        return None

    def _damage(self, descriptor: int, state: os.stat_result, sha256: bytes, size: int) -> str:
        """What is wrong with a sealed file: its size, or after an unclean end the bytes of one that was not settled."""
        if state.st_size != size:
            return "has the wrong size"
        if state.st_mode & SEALED_MODE == SEALED_MODE or sha256 in self.room.unsettled:
            return ""
        try:
            with open(descriptor, "rb", closefd=False) as stream:
                if hashlib.file_digest(stream, "sha256").digest() != sha256:
                    return "was not whole on the disk"
            os.fsync(descriptor)
            os.fchmod(descriptor, SEALED_MODE)
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        return ""

    def is_sealed(self, sha256: bytes) -> bool:
        """Whether the file is complete in the cache."""
        return sha256 not in self.small.arriving and self.disk_of(sha256) is not None

    def is_partial(self, sha256: bytes) -> bool:
        """Whether a partial file is in the cache."""
        return sha256 in self.room.partial_bytes

    def present_bytes(self, sha256: bytes) -> int:
        """Bytes on disk of a file that is in the cache in part."""
        return max(self.room.partial_bytes.get(sha256, 0) - MAP_BYTES, 0)

    def known(self, digests: Iterable[bytes]) -> list[bytes]:
        """Those of ``digests`` that are in the cache, complete or in part."""
        return self.index.known(digests)

    def sealed_files(self) -> Iterator[bytes]:
        """The digests of all sealed files, least recently used first."""
        return (row.sha256 for row in self.room.by_last_use() if row.sealed)

    # -- what stays

    def touch(self, sha256: bytes) -> None:
        """Note a use of a file, for eviction in order of last use."""
        try:
            self.index.touch(sha256)
        except sqlite3.Error as error:
            self.note_failure(error)

    def hold(self, sha256: bytes) -> None:
        """Keep a file from eviction until as many calls of :meth:`unhold`."""
        self.room.hold(sha256)

    def unhold(self, sha256: bytes) -> None:
        """Undo one :meth:`hold`."""
        self.room.unhold(sha256)

    def protect(self, owner: str, digests: Iterable[bytes] | Sequence[Digests]) -> None:
        """Keep a set of files from eviction until :meth:`unprotect` (not from withdrawal). Digests one by one, or
        columns of shape (n, 32) as :meth:`mountd.rows.Rows.sha256_column` gives them; replaces the owner's last set."""
        self.room.guard.protect(owner, digests)

    def unprotect(self, owner: str) -> None:
        """Give an owner's set free."""
        self.room.guard.unprotect(owner)

    def discard(self, sha256: bytes) -> None:
        """Remove a file whatever holds it: withdrawn, or found damaged. Open descriptors go on reading it."""
        self.room.discard(sha256)

    def give_up(self, sha256: bytes, error: OSError) -> None:
        """A sealed file cannot be read: note the failure of its disk, and remove the file."""
        self.note_failure(error, sha256)
        self.discard_damaged(sha256)

    def discard_damaged(self, sha256: bytes) -> None:
        """Remove a file whose bytes are not right any more, and tell who has links of it."""
        self.room.discard(sha256)
        for told in self.damaged:
            told(sha256)

    def discard_all(self, digests: Iterable[bytes]) -> int:
        """Remove those of ``digests`` that are in the cache; how many there were."""
        found = self.index.known(digests)
        for sha256 in found:
            self.discard(sha256)
        return len(found)

    # -- what comes in

    def open_partial(self, spec: FileSpec) -> PartialFile | None:
        """The partial file for ``spec``, made when it is new; None while the cache cannot take it."""
        return self._writing.open_partial(spec)

    def write_chunk(self, partial: PartialFile, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Store a checked chunk; False when the limit or the disk does not allow it (:meth:`failure` says why)."""
        return self._writing.write_chunk(partial, index, data)

    def store_whole(self, spec: FileSpec, data: bytes | bytearray | memoryview) -> int | None:
        """Seal a file of one chunk with its checked bytes: a descriptor of it, or None as with :meth:`write_chunk`."""
        return self._writing.store_whole(spec, data)

    def seal(self, partial: PartialFile) -> bool:
        """Give a complete file its sealed name; False when the disk refuses."""
        return self._writing.seal(partial)

    def note_failure(self, error: Exception, sha256: bytes | None = None) -> None:
        """A disk refused something (the one that file ``sha256`` lies on): serve from the store for a while, and say so
        once; a disk that is broken is taken out when there are others."""
        disk = None
        if sha256 is not None and not isinstance(error, sqlite3.Error):
            disk = self.disk_of(sha256) or self.room.home(sha256)
        self.room.trouble.note(error, disk)

    def failure(self) -> str:
        """Which disks are out and why, and why files were not kept in the last while; empty when all is well."""
        return self.room.trouble.text()


def _release(locks: Iterable[CacheLock]) -> None:
    for lock in locks:
        lock.release()
