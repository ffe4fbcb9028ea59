"""The memory of a worker: measured, given back, and bounded.

What counts is anonymous memory (``RssAnon``): mapped manifests and cache files are the page cache's, and the kernel
takes them back by itself. A worker above its limit ends and is replaced; whoever reads does not notice.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
from enum import Enum

_M_ARENA_MAX = -8
"""mallopt(3): glibc makes up to eight heaps a CPU for threads, and gives little of them back."""
_ARENAS = 2
_COLLECT_AFTER = 50_000
_ANONYMOUS = re.compile(rb"^RssAnon:\s*(\d+) kB$", re.MULTILINE)
_STATUS_BYTES = 16 << 10
_SHRINK_FROM = 0.8
"""Share of the limit above which what can be made again is let go."""


class Memory(Enum):
    """How a worker stands to its limit."""

    FINE = "fine"
    SHORT = "short"
    OVER = "over"


def few_arenas() -> None:
    """Let all threads share few heaps; where the C library has no such setting, nothing."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


def collect_seldom() -> None:
    """What is loaded by now stays for good: leave it out of every collection of cycles, and look for new ones seldom.

    Answering a request makes containers that live for microseconds; by default every 700 of them begin a collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 50)


def give_back() -> None:
    """Return freed memory to the system."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


class AnonymousMemory:
    """The anonymous resident memory of a process (``RssAnon`` of proc_pid_status(5)).

    The file stays open, so that it can be read when this process has no other descriptor left.
    """

    def __init__(self, pid: int) -> None:
        self._status = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)

    def used_bytes(self) -> int:
        """How much there is now. Raises OSError when the process has ended."""
        found = _ANONYMOUS.search(os.pread(self._status, _STATUS_BYTES, 0))
        return int(found[1]) << 10 if found else 0

    def close(self) -> None:
        """Give back the descriptor."""
        os.close(self._status)


def standing(used_bytes: int, limit_bytes: int) -> Memory:
    """How ``used_bytes`` stand to the limit (0: none)."""
    if not limit_bytes or used_bytes < limit_bytes * _SHRINK_FROM:
        return Memory.FINE
    return Memory.SHORT if used_bytes <= limit_bytes else Memory.OVER
