"""What is left free on a disk: asked of statvfs(2) at most once a second, counted in between."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from openshelf.units import MIB

ASK_AGAIN_S = 1.0
ASK_AGAIN_BYTES = 64 * MIB
ASK_AGAIN_SHARE = 64
"""Asked again after so many bytes, or after this part of a small disk."""
KEPT_SHARE = 10
"""The floor is at most a tenth of the disk; a tenth of its inodes is left where no number of files is given."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the cache may take: ``size_bytes`` and ``files`` in all (0 files: as many as leave a tenth of each disk's
    inodes), and ``free_bytes`` that stay free on each disk."""

    size_bytes: int
    files: int = 0
    free_bytes: int = 0


class Free:
    """How much may still be written to one disk before its floor. Guarded by the room's lock."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self._root = root
        self._limits = limits
        self._asked_at = float("-inf")
        self._bytes = 0
        self._files: int | None = None
        self._taken_bytes = 0
        self._taken_files = 0
        self._interval_bytes = 0

    def lacking(self, needed_bytes: int, needed_files: int) -> tuple[int, int]:
        """How many bytes and files must go first so that this much more fits; (0, 0) when it does. OSError."""
        if time.monotonic() - self._asked_at > ASK_AGAIN_S or self._taken_bytes > self._interval_bytes:
            self._ask()
        files = 0 if self._files is None else needed_files - self._files
        return max(0, needed_bytes - self._bytes), max(0, files)

    def take(self, size_bytes: int, files: int) -> None:
        """Count what is about to be written (negative: what was removed)."""
        self._bytes -= size_bytes
        self._taken_bytes += max(0, size_bytes)
        self._taken_files += max(0, files)
        if self._files is not None:
            self._files -= files

    def _ask(self) -> None:
        state = os.statvfs(self._root)
        total = state.f_blocks * state.f_frsize
        # What was taken since the last time may not have been written yet.
        self._bytes = (
            state.f_bavail * state.f_frsize - min(self._limits.free_bytes, total // KEPT_SHARE) - self._taken_bytes
        )
        self._files = None
        if not self._limits.files and state.f_files:
            self._files = state.f_favail - state.f_files // KEPT_SHARE - self._taken_files
        self._taken_bytes = self._taken_files = 0
        self._interval_bytes = min(ASK_AGAIN_BYTES, total // ASK_AGAIN_SHARE)
        self._asked_at = time.monotonic()
