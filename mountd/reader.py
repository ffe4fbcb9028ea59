"""Bytes of files: from the sealed file, else from the partial one after fetching what is missing."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

from catalog.manifest import CHUNK_BYTES, FileEntry
from mountd.cache.partial import FileSpec
from mountd.cache.store import Cache
from mountd.fetch.fill import RUN_CHUNKS, Fill, Supply
from mountd.fetch.fills import Fills
from mountd.fetch.packs import Place
from mountd.interfaces import Handle, Node
from mountd.tree import MountTree

MAX_WINDOW_CHUNKS = 16
"""A sequential reader has at most this many chunks (64 MiB) fetched ahead of it."""
_GIVING_UP = threading.Lock()


class CacheReader:
    """Opens files of the tree. ``eager``: reading any part of a file fetches the rest in the background."""

    def __init__(self, tree: MountTree, supply: Supply, *, eager: bool = True) -> None:
        self._tree = tree
        self._cache = supply.cache
        self._packs = supply.packs
        self._fills = Fills(supply)
        self._eager = eager

    def open(self, node: Node) -> Handle:
        """A handle for a file node. Nothing is waited for; of a Parquet file the tail (its index) is sent for."""
        if node.content is not None:
            return ContentHandle(node.content)
        entry = self._entry(node)
        if entry.size == 0:
            return ContentHandle(b"")
        sealed = SealedHandle.open(self._cache, entry, lambda: self._filled(node, entry))
        return sealed or self._filled(node, entry)

    def _filled(self, node: Node, entry: FileEntry) -> FileHandle:
        """A handle of a file that has to be filled, or filled again."""
        spec = FileSpec(entry.sha256, entry.size, entry.mtime_ns, entry.chunks)
        # Packs hold files of one chunk; a manifest that says otherwise is read by its word, chunk by chunk.
        packed = entry.object != entry.sha256 and len(spec.chunks) == 1
        pack = (lambda: self._tree.pack(node.nodeid)) if packed else None
        place = Place(entry.object, entry.offset, pack, whole=self._eager)
        handle = FileHandle(spec, place, self._cache, self._fills, eager=self._eager)
        if entry.path.endswith(".parquet"):
            handle.fetch_tail()
        return handle

    def cached_bytes(self, node: Node) -> int:
        """How many bytes of the file are on this node, checked."""
        if node.content is not None:
            return node.size
        entry = self._entry(node)
        if entry.size == 0 or self._cache.is_sealed(entry.sha256):
            return entry.size
        fill = self._fills.peek(entry.sha256)
        return min(entry.size, fill.verified_bytes() if fill else self._cache.present_bytes(entry.sha256))

    def _entry(self, node: Node) -> FileEntry:
        entry = node.entry
        if entry is None:
            whole = self._tree.node(node.nodeid)
            entry = None if whole is None else whole.entry
        if entry is None:
            raise OSError(errno.ESTALE, "the file is no longer listed")
        return entry

    def close(self) -> None:
        """Close what is being filled; the pool must be closed before."""
        self._packs.close()
        self._fills.close()


class ContentHandle:
    """A file whose bytes the mount makes itself."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def sealed_fd(self) -> int | None:
        """None: there is no file."""
        return None

    def locate(self, offset: int, length: int) -> tuple[int, int] | None:
        """None: there is no file."""
        return None

    def at_hand(self, offset: int, length: int) -> memoryview:
        """The bytes of the range."""
        return memoryview(self._content)[offset : offset + length]

    def read(self, offset: int, length: int) -> bytes:
        """The bytes of the range."""
        return self._content[offset : offset + length]

    def close(self) -> None:
        """Nothing is held."""


class SealedHandle:
    """An open file that is complete in the cache. Made in half the time of one that may have to be filled."""

    __slots__ = ("_again", "_cache", "_descriptor", "_entry", "_instead")

    def __init__(self, cache: Cache, entry: FileEntry, descriptor: int, again: Callable[[], FileHandle]) -> None:
        self._cache = cache
        self._entry = entry
        self._descriptor = descriptor
        self._again = again
        self._instead: FileHandle | None = None

    @classmethod
    def open(cls, cache: Cache, entry: FileEntry, again: Callable[[], FileHandle]) -> SealedHandle | None:
        """A handle of the file when it is complete, else None. ``again`` gives one that fills it, for when its disk
        fails."""
        cache.hold(entry.sha256)
        descriptor = cache.open_sealed(entry.sha256, entry.size)
        if descriptor is None:
            cache.unhold(entry.sha256)
            return None
        return cls(cache, entry, descriptor, again)

    def sealed_fd(self) -> int:
        """The descriptor of the sealed file."""
        return self._descriptor

    def locate(self, offset: int, length: int) -> tuple[int, int] | None:
        """The descriptor and the place of a range: all of it is there, unless the disk has failed."""
        return None if self._instead is not None else (self._descriptor, offset)

    def at_hand(self, offset: int, length: int) -> None:
        """None: whether the kernel has the bytes in its page cache is not known."""

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """The bytes of a range; shorter only at the end of the file. From the store when the disk fails."""
        if self._instead is None:
            wanted = min(length, self._entry.size - offset)
            try:
                data = os.pread(self._descriptor, wanted, offset)
                if len(data) == wanted:
                    return data
                self._give_up(OSError(errno.EIO, "a cached file is shorter than it was"))
            except OSError as error:
                self._give_up(error)
        assert self._instead is not None
        return self._instead.read(offset, length)

    def _give_up(self, error: OSError) -> None:
        """Have the file fetched again."""
        with _GIVING_UP:
            if self._instead is None:
                self._cache.give_up(self._entry.sha256, error)
                self._instead = self._again()

    def close(self) -> None:
        """Give back the descriptor and let the file be evicted."""
        os.close(self._descriptor)
        if self._instead is not None:
            self._instead.close()
        self._cache.unhold(self._entry.sha256)


class FileHandle:
    """One open file of a release. Thread-safe."""

    def __init__(self, spec: FileSpec, place: Place, cache: Cache, fills: Fills, *, eager: bool) -> None:
        self._spec = spec
        self._cache = cache
        self._fills = fills
        self._place = place
        self._eager = eager
        self._lock = threading.Lock()
        self._lost: list[int] = []
        self._fill: Fill | None = None
        self._expected = 0
        self._window = 0
        self._last_chunk = -1
        self._sent_for = 0
        cache.hold(spec.sha256)
        self._sealed = cache.open_sealed(spec.sha256, spec.size)
        if self._sealed is None:
            fill = fills.acquire(spec, place)
            # Between the two, an earlier fill may have sealed the file and ended.
            self._sealed = cache.open_sealed(spec.sha256, spec.size) if cache.is_sealed(spec.sha256) else None
            if self._sealed is None:
                self._fill = fill
            else:
                fills.release(fill)

    def sealed_fd(self) -> int | None:
        """A descriptor of the sealed file, if the file is complete by now."""
        with self._lock:
            if self._sealed is None and self._fill is not None and self._fill.sealed:
                self._sealed = self._cache.open_sealed(self._spec.sha256, self._spec.size)
            return self._sealed

    def locate(self, offset: int, length: int) -> tuple[int, int] | None:
        """The descriptor and place of a range, after fetching it; None when it is only in memory."""
        sealed = self._sealed
        if sealed is not None:
            return sealed, offset
        fill = self._follow(offset, length)
        descriptor = fill.locate(offset, length)
        return None if descriptor is None else (descriptor, offset)

    def at_hand(self, offset: int, length: int) -> memoryview | None:
        """The bytes of a range of the chunk that was read last, while that is in memory."""
        fill, end = self._fill, min(offset + length, self._spec.size)
        if fill is None or self._sealed is not None or (end - 1) // CHUNK_BYTES != self._last_chunk:
            return None
        data = fill.at_hand(offset, end - offset)
        if data is not None:
            self._expected = end
        return data

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """The bytes of a range, after fetching what is missing; shorter only at the end of the file."""
        length = min(length, self._spec.size - offset)
        if length <= 0:
            return b""
        sealed = self._sealed
        if sealed is not None:
            try:
                data = os.pread(sealed, length, offset)
                if len(data) == length:
                    return data
                self._give_up(sealed, OSError(errno.EIO, "a cached file is shorter than it was"))
            except OSError as error:
                self._give_up(sealed, error)
        return self._follow(offset, length).read(offset, length)

    def _give_up(self, sealed: int, error: OSError) -> None:
        """The disk of the sealed file fails: have the file filled again."""
        with self._lock:
            if self._sealed != sealed:
                return
            self._cache.give_up(self._spec.sha256, error)
            before, self._fill = self._fill, self._fills.acquire(self._spec, self._place)
            self._lost.append(sealed)
            self._sealed = None
        if before is not None:
            self._fills.release(before)

    @property
    def fill(self) -> Fill | None:
        """The filling of the file; None when it was complete when it was opened."""
        return self._fill

    def fetch_tail(self) -> None:
        """Send for the last chunk, where formats with an index at the end are read first."""
        if self._fill is not None:
            last = len(self._spec.chunks) - 1
            self._fill.prefetch(last, last + 1)

    def _follow(self, offset: int, length: int) -> Fill:
        """Watch how the file is read: sequential readers get a window, doubled at each chunk they enter."""
        fill = self._fill
        assert fill is not None
        end = offset + length
        chunk = (end - 1) // CHUNK_BYTES
        with self._lock:
            first = self._last_chunk < 0
            # The kernel reads ahead with several requests at once, so that they come a little out of order.
            near = abs(offset - self._expected) < CHUNK_BYTES
            self._expected = end
            entered = chunk != self._last_chunk
            self._last_chunk = chunk
            if entered:
                self._window = min(max(2, self._window * 2), MAX_WINDOW_CHUNKS) if near else 0
                self._sent_for = self._sent_for if near else 0
            ahead = self._ahead_of(chunk) if entered and self._window else None
        if ahead is not None:
            fill.follow(*ahead)
        if first and self._eager:
            fill.complete(chunk + 1)
        return fill

    def _ahead_of(self, chunk: int) -> tuple[int, int] | None:
        """Which chunks to fetch ahead now; none while what was sent for lasts, so that whole runs are asked for."""
        start = max(self._sent_for, chunk + 1)
        due = chunk + 1 + self._window - start
        if due < RUN_CHUNKS and self._sent_for > chunk + 1:
            return None
        stop = start + (due // RUN_CHUNKS * RUN_CHUNKS or due)
        self._sent_for = stop
        return start, stop

    def close(self) -> None:
        """Give back the descriptor and let the file be evicted."""
        for descriptor in (*self._lost, self._sealed):
            if descriptor is not None:
                os.close(descriptor)
        if self._fill is not None:
            self._fills.release(self._fill)
        self._cache.unhold(self._spec.sha256)
