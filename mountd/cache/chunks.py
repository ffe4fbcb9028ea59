"""Which chunks of a partial file are there: one byte per 4 MiB chunk, beside the file.

States and their only transitions:

    ABSENT   --written-->   VERIFIED   bytes checked against the manifest, written, then marked on disk
    PRESENT  --confirmed--> VERIFIED   the chunk on disk was hashed again and is right
    PRESENT  --dropped-->   ABSENT     it was hashed again and is wrong, or cannot be read

On disk a mark means PRESENT only: after a crash the data behind it may never have reached the disk, so everything
that is loaded is hashed again before it is served. VERIFIED exists in memory.
"""

from __future__ import annotations

import os
import threading
from enum import IntEnum
from pathlib import Path


class ChunkState(IntEnum):
    """The state of one chunk."""

    ABSENT = 0
    PRESENT = 1
    VERIFIED = 2


_ABSENT = bytes([ChunkState.ABSENT])
_PRESENT = bytes([ChunkState.PRESENT])


class ChunkMap:
    """The states of all chunks of one partial file. Thread-safe."""

    def __init__(self, descriptor: int, states: bytearray) -> None:
        self._descriptor = descriptor
        self._states = states
        self._verified = 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, count: int) -> ChunkMap:
        """Open or make the map at ``path`` for ``count`` chunks; a short or unreadable part counts as absent."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stored = os.pread(descriptor, count, 0)
        if len(stored) < count:
            os.ftruncate(descriptor, count)
        states = bytearray(count)
        for index, mark in enumerate(stored):
            if mark == ChunkState.PRESENT:
                states[index] = ChunkState.PRESENT
        return cls(descriptor, states)

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, index: int) -> ChunkState:
        return ChunkState(self._states[index])

    def written(self, index: int) -> None:
        """ABSENT → VERIFIED: the chunk's checked bytes were just written; mark it on disk."""
        self._move(index, ChunkState.ABSENT, ChunkState.VERIFIED)
        os.pwrite(self._descriptor, _PRESENT, index)

    def confirmed(self, index: int) -> None:
        """PRESENT → VERIFIED: the chunk was read back and is right."""
        self._move(index, ChunkState.PRESENT, ChunkState.VERIFIED)

    def dropped(self, index: int) -> None:
        """PRESENT → ABSENT: the chunk was read back and is wrong; unmark it on disk."""
        self._move(index, ChunkState.PRESENT, ChunkState.ABSENT)
        os.pwrite(self._descriptor, _ABSENT, index)

    def _move(self, index: int, before: ChunkState, after: ChunkState) -> None:
        with self._lock:
            if self._states[index] != before:
                raise AssertionError(f"chunk {index} is {ChunkState(self._states[index]).name}, not {before.name}")
            self._states[index] = after
            self._verified += after is ChunkState.VERIFIED

    @property
    def verified(self) -> int:
        """How many chunks are VERIFIED."""
        return self._verified

    @property
    def complete(self) -> bool:
        """Whether every chunk is VERIFIED."""
        return self._verified == len(self._states)

    def close(self) -> None:
        """Close the map's file."""
        os.close(self._descriptor)
