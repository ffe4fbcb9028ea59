"""Buffers of one chunk, used again and again: page-aligned, so that the disk takes them without a copy.

A buffer is free again when nobody holds a view of it any more. So it goes from the thread that receives a chunk to the
disk, to the memory of recent chunks and to the answers of readers, and nobody has to say when he is done with it.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import deque

from catalog.manifest import CHUNK_BYTES

_Chunk = ctypes.c_char * CHUNK_BYTES


class ChunkBuffers:
    """Gives out buffers of :data:`catalog.manifest.CHUNK_BYTES`; ``spare`` free ones at most are kept. Thread-safe."""

    def __init__(self, spare: int = 24) -> None:
        self._free: deque[mmap.mmap] = deque(maxlen=spare)
        self._used: dict[int, weakref.ref[ctypes.Array[ctypes.c_char]]] = {}

    def take(self) -> memoryview:
        """A writable buffer; what is in it is left over from earlier."""
        try:
            pages = self._free.pop()
        except IndexError:
            pages = mmap.mmap(-1, CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            pages.madvise(mmap.MADV_HUGEPAGE)
        chunk = _Chunk.from_buffer(pages)
        key = id(chunk)

        # Called when the last view is gone, in whatever thread that happens: it takes no lock.
        def give_back(_: object, pages: mmap.mmap = pages) -> None:
            del self._used[key]
            self._free.append(pages)

        self._used[key] = weakref.ref(chunk, give_back)
        return memoryview(chunk).cast("B")

    @property
    def in_use(self) -> int:
        """How many buffers somebody holds."""
        return len(self._used)

    def shrink(self) -> None:
        """Give the free ones back to the system."""
        self._free.clear()
