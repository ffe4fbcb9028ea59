"""The cache itself: what readers, fetchers and the follower ask of it.

Its parts, each with one subject: :mod:`~mountd.cache.room` (what is counted, kept and evicted),
:mod:`~mountd.cache.writing` (how files come in), :mod:`~mountd.cache.trouble` (what the disk refused),
:mod:`~mountd.cache.opening` (the index brought in line with the files).
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from mountd.cache.layout import SEALED_MODE, CacheError, CacheLock, Layout, is_overlay
from mountd.cache.opening import open_index, recount_partials
from mountd.cache.partial import FileSpec, PartialFile
from mountd.cache.room import Room
from mountd.cache.small import SmallFiles
from mountd.cache.trouble import Trouble
from mountd.cache.writing import MAP_BYTES, Writing

log = logging.getLogger("openshelf.mount.cache")


class Cache:
    """Verified files on the node's disk, within a size limit. Thread-safe; one per folder at a time.

    Counted against the limit are objects and partial files in whole 4 KiB blocks; manifests and the index, which no
    eviction could give back, are not.
    """

    def __init__(self, layout: Layout, lock: CacheLock, limit_bytes: int) -> None:
        self.layout = layout
        self.overlay = is_overlay(layout.root)
        self._daemon_lock = lock
        self._trouble = Trouble()
        self._index = open_index(layout)
        self._room = Room(layout, self._index, self._trouble, limit_bytes)
        self._room.partial_bytes.update(recount_partials(layout, self._index))
        self._room.total_bytes = self._index.total_bytes()
        self._writing = Writing(layout, self._index, self._room, self._trouble)
        self._settling = self._writing.settling
        self.small = SmallFiles(layout, self._index, self._room, self._trouble, self._settling)

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
        return self._room.total_bytes

    @property
    def limit_bytes(self) -> int:
        """What ``total_bytes`` never exceeds."""
        return self._room.limit_bytes

    @property
    def evictions(self) -> int:
        """How many files were evicted since the cache was opened."""
        return self._room.evictions

    def counts(self) -> tuple[int, int]:
        """How many files are sealed, and how many partial."""
        return self._index.counts()

    def open_sealed(self, sha256: bytes, size: int) -> int | None:
        """A descriptor of the sealed file, or None. One of the wrong size, or that a crash has damaged is removed."""
        if sha256 in self.small.arriving:
            return None
        try:
            descriptor = os.open(self.layout.object_name(sha256), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._room.forget_if_gone(sha256)
            return None
        except OSError as error:
            self.note_failure(error)
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

    def _damage(self, descriptor: int, state: os.stat_result, sha256: bytes, size: int) -> str:
        """What is wrong with a sealed file: its size, or after an unclean end the bytes of one that was not settled."""
        if state.st_size != size:
            return "has the wrong size"
        if state.st_mode & SEALED_MODE == SEALED_MODE or sha256 in self._room.unsettled:
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
        return sha256 not in self.small.arriving and self.layout.object_path(sha256).exists()

    def is_partial(self, sha256: bytes) -> bool:
        """Whether a partial file is in the cache."""
        return sha256 in self._room.partial_bytes

    def present_bytes(self, sha256: bytes) -> int:
        """Bytes on disk of a file that is in the cache in part."""
        return max(self._room.partial_bytes.get(sha256, 0) - MAP_BYTES, 0)

    def known(self, digests: Iterable[bytes]) -> list[bytes]:
        """Those of ``digests`` that are in the cache, complete or in part."""
        return self._index.known(digests)

    def sealed_files(self) -> Iterator[bytes]:
        """The digests of all sealed files, least recently used first."""
        return (row.sha256 for row in self._room.by_last_use() if row.sealed)

    # -- what stays

    def touch(self, sha256: bytes) -> None:
        """Note a use of a file, for eviction in order of last use."""
        try:
            self._index.touch(sha256)
        except sqlite3.Error as error:
            self.note_failure(error)

    def hold(self, sha256: bytes) -> None:
        """Keep a file from eviction until as many calls of :meth:`unhold`."""
        self._room.hold(sha256)

    def unhold(self, sha256: bytes) -> None:
        """Undo one :meth:`hold`."""
        self._room.unhold(sha256)

    def discard(self, sha256: bytes) -> None:
        """Remove a file whatever holds it: withdrawn, or found damaged. Open descriptors go on reading it."""
        self._room.discard(sha256)

    def discard_all(self, digests: Iterable[bytes]) -> int:
        """Remove those of ``digests`` that are in the cache; how many there were."""
        found = self._index.known(digests)
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

    def note_failure(self, error: Exception) -> None:
        """The cache's disk refused something: serve from the store for a while, and say so once."""
        self._trouble.note(error)

    def failure(self) -> str:
        """Why files were not kept in the last while; empty when they were."""
        return self._trouble.text()
