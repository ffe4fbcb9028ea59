"""A few verified chunks in memory, for when the cache's disk cannot take them."""

from __future__ import annotations

import threading
from collections import OrderedDict

from openshelf.units import MIB

Key = tuple[bytes, int]
"""The file's SHA-256 and the chunk's number."""


class ChunkMemory:
    """The most recently used chunks, up to ``limit_bytes``. Thread-safe."""

    def __init__(self, limit_bytes: int = 64 * MIB) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._chunks: OrderedDict[Key, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> bytes | None:
        """The chunk, if it is still here."""
        with self._lock:
            data = self._chunks.get(key)
            if data is not None:
                self._chunks.move_to_end(key)
            return data

    def clear(self) -> None:
        """Let all of them go; they are fetched again when needed."""
        with self._lock:
            self._chunks.clear()
            self._bytes = 0

    def put(self, key: Key, data: bytes) -> None:
        """Keep a verified chunk, at the cost of the least recently used ones."""
        with self._lock:
            if key in self._chunks:
                return
            self._chunks[key] = data
            self._bytes += len(data)
            while self._bytes > self._limit and len(self._chunks) > 1:
                _, dropped = self._chunks.popitem(last=False)
                self._bytes -= len(dropped)
