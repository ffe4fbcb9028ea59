"""Verified chunks in memory: those that a reader will want in a moment, and those that the cache's disk cannot take."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from openshelf.units import MIB

Key = tuple[bytes, int]
"""The file's SHA-256 and the chunk's number."""


@dataclass(slots=True)
class _Kept:
    data: bytes | memoryview
    unread: int


class ChunkMemory:
    """The most recently used chunks, up to ``limit_bytes``. Thread-safe.

    ``data`` may be given as bytes or as a view; a view is kept as it is, so its buffer must not change.
    """

    def __init__(self, limit_bytes: int = 64 * MIB) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._chunks: OrderedDict[Key, _Kept] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> bytes | memoryview | None:
        """The chunk, if it is still here."""
        with self._lock:
            kept = self._chunks.get(key)
            if kept is None:
                return None
            self._chunks.move_to_end(key)
            return kept.data

    def put(self, key: Key, data: bytes | memoryview) -> None:
        """Keep a verified chunk, at the cost of the least recently used ones."""
        with self._lock:
            if key in self._chunks:
                return
            self._chunks[key] = _Kept(data, len(data))
            self._bytes += len(data)
            while self._bytes > self._limit and len(self._chunks) > 1:
                self._drop(next(iter(self._chunks)))

    def was_read(self, key: Key, count: int, *, stored: bool) -> None:
        """Note that ``count`` bytes of a chunk were read, and whether it is ``stored`` on the disk. When both is so of
        all of it, it is let go: the kernel has it in its page cache."""
        with self._lock:
            kept = self._chunks.get(key)
            if kept is not None:
                kept.unread -= count
                if kept.unread <= 0 and stored:
                    self._drop(key)

    def forget(self, sha256: bytes, stored: Callable[[int], bool]) -> None:
        """Let those chunks of a file go that are ``stored`` on the disk."""
        with self._lock:
            for key in [key for key in self._chunks if key[0] == sha256 and stored(key[1])]:
                self._drop(key)

    def clear(self) -> None:
        """Let all of them go; they are fetched again when needed."""
        with self._lock:
            self._chunks.clear()
            self._bytes = 0

    def _drop(self, key: Key) -> None:
        """The lock is held."""
        self._bytes -= len(self._chunks.pop(key).data)
