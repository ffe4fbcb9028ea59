"""The memory of a worker: measured, given back, and bounded.

What counts is anonymous memory (``RssAnon``): mapped manifests and cache files are the page cache's, and the kernel
takes them back by itself. A worker above its limit ends and is replaced; whoever reads does not notice.
"""

from __future__ import annotations

import ctypes
import gc
from enum import Enum
from pathlib import Path

_M_ARENA_MAX = -8
"""mallopt(3): glibc makes up to eight heaps a CPU for threads, and gives little of them back."""
_ARENAS = 2
_COLLECT_AFTER = 50_000
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


def anonymous_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Anonymous resident memory of a process in bytes (``RssAnon`` of proc_pid_status(5))."""
    for line in status.read_text("utf-8", "replace").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def standing(used_bytes: int, limit_bytes: int) -> Memory:
    """How ``used_bytes`` stand to the limit (0: none)."""
    if not limit_bytes or used_bytes < limit_bytes * _SHRINK_FROM:
        return Memory.FINE
    return Memory.SHORT if used_bytes <= limit_bytes else Memory.OVER
