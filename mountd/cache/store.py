"""The cache itself: what is in it, what may stay, and what it does when its disk fails."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mountd.cache.index import Index, IndexRow
from mountd.cache.layout import SEALED_MODE, CacheError, CacheLock, Layout, is_overlay
from mountd.cache.partial import FileSpec, PartialFile, chunks_path, disk_bytes, remove_partial, write_whole
from mountd.cache.settling import Settling
from openshelf.units import format_size

log = logging.getLogger("openshelf.mount.cache")

LOW_WATER = 0.9
"""Eviction goes on until this share of the limit is in use."""
MAP_BYTES = 4096
"""What a chunk map is counted as."""
RETRY_S = 10.0
"""After a failed write the disk is left alone for this long."""
SHOWN_S = 30.0
"""Trouble is shown in the status for this long after it last happened."""
SAY_AGAIN_S = 60.0
"""The same trouble is logged once in this time."""
EVICTION_PAGE = 256


class Cache:
    """Verified files on the node's disk, within a size limit. Thread-safe; one per folder at a time.

    Counted against the limit are objects and partial files in whole 4 KiB blocks; manifests and the index, which no
    eviction could give back, are not.
    """

    def __init__(self, layout: Layout, lock: CacheLock, limit_bytes: int) -> None:
        self.layout = layout
        self.limit_bytes = limit_bytes
        self.overlay = is_overlay(layout.root)
        self.evictions = 0
        self._daemon_lock = lock
        self._lock = threading.RLock()
        self._held: dict[bytes, int] = {}
        self._partial_bytes: dict[bytes, int] = {}
        self._failure = ""
        self._failed_at = float("-inf")
        self._said_at = float("-inf")
        self._logged: dict[str, float] = {}
        self._unsettled: dict[bytes, object] = {}
        self._settling = Settling(layout.object_path, layout.root, self._settled)
        self._index = self._open_index()
        self._recount_partials()
        self._total = self._index.total_bytes()

    @classmethod
    def open(cls, root: Path, limit_bytes: int) -> Cache:
        """Open the cache at ``root``, making it when it is new.

        Raises :class:`CacheError` when the folder is not private, of another format, or in use by another daemon.
        Nothing is scanned. A cache on overlayfs gets one warning and serves without passthrough.
        """
        layout = Layout.prepare(root)
        lock = CacheLock.take(layout.lock, root)
        try:
            cache = cls(layout, lock, limit_bytes)
        except (OSError, sqlite3.Error) as error:
            lock.release()
            raise CacheError(
                "cache_unusable", f"The cache {root} cannot be opened: {error}", "Check its disk, or use another."
            ) from error
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
            self._index.close()
        except sqlite3.Error as error:
            log.warning("The cache's index could not be written: %s.", error)
        self._daemon_lock.release()

    # -- what is there

    @property
    def total_bytes(self) -> int:
        """Bytes on disk, counted as the limit counts them."""
        return self._total

    def counts(self) -> tuple[int, int]:
        """How many files are sealed, and how many partial."""
        return self._index.counts()

    def failure(self) -> str:
        """Why files were not kept in the last :data:`SHOWN_S` seconds; empty when they were."""
        return self._failure if time.monotonic() - self._said_at < SHOWN_S else ""

    def open_sealed(self, sha256: bytes, size: int) -> int | None:
        """A descriptor of the sealed file, or None when it is not there; a file that a crash has damaged is removed."""
        try:
            descriptor = os.open(self.layout.object_path(sha256), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._forget_if_sealed(sha256)
            return None
        except OSError as error:
            self.note_failure(error)
            return None
        reason = self._damage(descriptor, sha256, size)
        if reason:
            os.close(descriptor)
            log.error("The cached file %s %s and is fetched again.", sha256.hex(), reason)
            self.discard(sha256)
            return None
        self.touch(sha256)
        return descriptor

    def _damage(self, descriptor: int, sha256: bytes, size: int) -> str:
        """What is wrong with a sealed file: its size, or after an unclean end the bytes of one that was not settled."""
        state = os.fstat(descriptor)
        if state.st_size != size:
            return "has the wrong size"
        if state.st_mode & SEALED_MODE == SEALED_MODE or sha256 in self._unsettled:
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
        return self.layout.object_path(sha256).exists()

    def present_bytes(self, sha256: bytes) -> int:
        """Bytes on disk of a file that is in the cache in part."""
        return max(self._partial_bytes.get(sha256, 0) - MAP_BYTES, 0)

    def touch(self, sha256: bytes) -> None:
        """Note a use of a file, for eviction in order of last use."""
        try:
            self._index.touch(sha256)
        except sqlite3.Error as error:
            self.note_failure(error)

    def hold(self, sha256: bytes) -> None:
        """Keep a file from eviction until as many calls of :meth:`unhold`."""
        with self._lock:
            self._held[sha256] = self._held.get(sha256, 0) + 1

    def unhold(self, sha256: bytes) -> None:
        """Undo one :meth:`hold`."""
        with self._lock:
            left = self._held[sha256] - 1
            if left:
                self._held[sha256] = left
            else:
                del self._held[sha256]

    # -- writing

    def open_partial(self, spec: FileSpec) -> PartialFile | None:
        """The partial file for ``spec``, made when it is new; None while the cache cannot take it."""
        if not self._writable():
            return None
        path = self.layout.partial_path(spec.sha256)
        try:
            with self._lock:
                if spec.sha256 not in self._partial_bytes:
                    if not self._reserve(MAP_BYTES):
                        return None
                    self._partial_bytes[spec.sha256] = MAP_BYTES
                    self._index.put(spec.sha256, MAP_BYTES, sealed=False)
            return PartialFile.open(spec, path)
        except (OSError, sqlite3.Error) as error:
            self.note_failure(error)
            return None

    def write_chunk(self, partial: PartialFile, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Store a checked chunk; False when the limit or the disk does not allow it (:meth:`failure` says why)."""
        if not self._writable():
            return False
        sha256, needed = partial.spec.sha256, disk_bytes(len(data))
        with self._lock:
            if sha256 not in self._partial_bytes or not self._reserve(needed):
                return False
            self._partial_bytes[sha256] += needed
        try:
            partial.write(index, data)
        except OSError as error:
            with self._lock:
                if sha256 in self._partial_bytes:
                    self._partial_bytes[sha256] -= needed
                    self._total -= needed
            self.note_failure(error)
            return False
        return True

    def store_whole(self, spec: FileSpec, data: bytes | bytearray | memoryview) -> int | None:
        """Seal a file of one chunk with its checked bytes: a descriptor of it, or None as with :meth:`write_chunk`.

        It becomes durable a moment later, together with others.
        """
        if not self._writable():
            return None
        sha256, token = spec.sha256, object()
        try:
            with self._lock:
                if not self._admit_whole(sha256, disk_bytes(spec.size), token):
                    return None
            path, destination = self.layout.partial_path(sha256), self.layout.object_path(sha256)
            descriptor = write_whole(spec, data, path, destination)
            with self._lock:
                if self._unsettled.get(sha256) is token:
                    self._index.put(sha256, disk_bytes(spec.size), sealed=True)
                    self._settling.add(sha256, token)
                else:  # withdrawn meanwhile
                    destination.unlink(missing_ok=True)
        except (OSError, sqlite3.Error) as error:
            self.discard(sha256)
            self.note_failure(error)
            return None
        return descriptor

    def _admit_whole(self, sha256: bytes, needed: int, token: object) -> bool:
        """Make room for a file of one chunk and enter it. The lock is held."""
        self.discard(sha256)
        if not self._reserve(needed):
            return False
        try:
            self._index.put(sha256, needed, sealed=False)
        except sqlite3.Error:
            self._total -= needed
            raise
        self._unsettled[sha256] = token
        return True

    def _settled(self, batch: Mapping[bytes, object], failure: OSError | None) -> None:
        """Small files have reached the disk, or could not."""
        for sha256, token in batch.items():
            with self._lock:
                if self._unsettled.get(sha256) is not token:
                    continue  # removed meanwhile, and perhaps sealed anew
                try:
                    if failure is not None:
                        raise failure
                    self.layout.object_path(sha256).chmod(SEALED_MODE)
                except OSError as error:
                    self.note_failure(error)
                    self.discard(sha256)
                self._unsettled.pop(sha256, None)

    def seal(self, partial: PartialFile) -> bool:
        """Give a complete file its sealed name; False when the disk refuses: it stays partial, or is discarded when its
        bytes may be lost."""
        sha256 = partial.spec.sha256
        if sha256 not in self._partial_bytes or not self._writable():
            return False
        try:
            partial.make_durable()
        except OSError as error:
            # The kernel says once that pages were lost, and drops them: no later fsync may be believed.
            self.note_failure(error)
            self.discard(sha256)
            return False
        try:
            with self._lock:
                if sha256 not in self._partial_bytes:
                    return False
                partial.rename(self.layout.object_path(sha256))
                final = disk_bytes(partial.spec.size)
                self._total += final - self._partial_bytes.pop(sha256)
                self._index.put(sha256, final, sealed=True)
        except (OSError, sqlite3.Error) as error:
            self.note_failure(error)
            return False
        return True

    def note_failure(self, error: Exception) -> None:
        """The cache's disk refused something: serve from the store for a while, and say so once."""
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"the cache's disk is full ({reason})" if full else f"the cache's disk fails ({reason})"
        with self._lock:
            self._say_failure(text)
            self._failed_at = time.monotonic()

    def _say_failure(self, text: str) -> None:
        self._failure = text
        self._said_at = now = time.monotonic()
        if now - self._logged.get(text, float("-inf")) > SAY_AGAIN_S:
            self._logged[text] = now
            log.warning("Files are served straight from the store: %s.", text)

    def _writable(self) -> bool:
        return time.monotonic() - self._failed_at > RETRY_S

    # -- making room

    def _reserve(self, needed: int) -> bool:
        with self._lock:
            if self._total + needed > self.limit_bytes and not self._evict(needed):
                self._say_failure(f"the cache's {format_size(self.limit_bytes)} are taken by files in use")
                return False
            self._total += needed
            return True

    def _evict(self, needed: int) -> bool:
        """Remove least recently used files until ``needed`` fits under the low-water mark; whether it fits at all."""
        target = int(self.limit_bytes * LOW_WATER) - needed
        try:
            self._index.flush()
            for row in self._by_last_use():
                if self._total <= target:
                    break
                if row.sha256 not in self._held:
                    self._remove(row)
                    self.evictions += 1
        except (OSError, sqlite3.Error) as error:
            self.note_failure(error)
        return self._total + needed <= self.limit_bytes

    def _by_last_use(self) -> Iterator[IndexRow]:
        place = (-1, b"")
        while page := self._index.oldest(EVICTION_PAGE, place):
            for use, row in page:
                place = (use, row.sha256)
                yield row

    def is_partial(self, sha256: bytes) -> bool:
        """Whether a partial file is in the cache."""
        return sha256 in self._partial_bytes

    def _remove(self, row: IndexRow) -> None:
        if (self._unsettled.pop(row.sha256, None) is not None) or row.sealed:
            freed = row.disk_bytes
            self.layout.object_path(row.sha256).unlink(missing_ok=True)
        else:
            remove_partial(self.layout.partial_path(row.sha256))
            freed = self._partial_bytes.pop(row.sha256, 0)
        self._index.remove(row.sha256)
        self._total -= freed

    def discard(self, sha256: bytes) -> None:
        """Remove a file whatever holds it: withdrawn, or found damaged. Open descriptors go on reading it."""
        try:
            with self._lock:
                row = self._index.get(sha256)
                if row is not None:
                    self._remove(row)
        except (OSError, sqlite3.Error) as error:
            self.note_failure(error)

    def discard_all(self, digests: Iterable[bytes]) -> int:
        """Remove those of ``digests`` that are in the cache; how many there were."""
        found = self._index.known(digests)
        for sha256 in found:
            self.discard(sha256)
        return len(found)

    def known(self, digests: Iterable[bytes]) -> list[bytes]:
        """Those of ``digests`` that are in the cache, complete or in part."""
        return self._index.known(digests)

    def sealed_files(self) -> Iterator[bytes]:
        """The digests of all sealed files, least recently used first."""
        for row in self._by_last_use():
            if row.sealed:
                yield row.sha256

    # -- opening

    def _forget_if_sealed(self, sha256: bytes) -> None:
        try:
            with self._lock:
                row = self._index.get(sha256)
                if row is not None and row.sealed and not self.is_sealed(sha256):
                    log.warning("The cached file %s is gone from the disk; it will be fetched again.", sha256.hex())
                    self._index.remove(sha256)
                    self._total -= row.disk_bytes
        except sqlite3.Error as error:
            self.note_failure(error)

    def _open_index(self) -> Index:
        path = self.layout.index
        known = path.exists()
        try:
            index = Index(path)
        except sqlite3.DatabaseError as error:
            log.warning("The cache's index is damaged (%s) and is made anew from the files.", error)
            for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
                name.unlink(missing_ok=True)
            index, known = Index(path), False
        if not known:
            self._rebuild(index)
        return index

    def _rebuild(self, index: Index) -> None:
        for path in self.layout.objects.glob("??/*"):
            index.put(bytes.fromhex(path.name), disk_bytes(path.stat().st_size), sealed=True)
        for path in self.layout.partial.iterdir():
            if path.suffix != ".chunks":
                index.put(bytes.fromhex(path.name), MAP_BYTES, sealed=False)

    def _recount_partials(self) -> None:
        """Partial files grow without the index: what they take is read from the disk, and one sealed at the moment
        of a crash is found under its sealed name.
        """
        for row in self._index.partials():
            path = self.layout.partial_path(row.sha256)
            sealed = self.layout.object_path(row.sha256)
            if path.exists():
                taken = path.stat().st_blocks * 512 + MAP_BYTES
                self._index.put(row.sha256, taken, sealed=False)
                self._partial_bytes[row.sha256] = taken
            elif sealed.exists():
                chunks_path(path).unlink(missing_ok=True)
                self._index.put(row.sha256, disk_bytes(sealed.stat().st_size), sealed=True)
            else:
                remove_partial(path)
                self._index.remove(row.sha256)
