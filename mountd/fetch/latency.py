"""How long things took: the high percentiles of one source, and a histogram of all chunks."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import deque

BUCKETS_MS = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000)
"""Upper bounds of the histogram of chunks."""
REMEMBERED = 512
ENOUGH = 20
"""From this many observations on a percentile means something."""


class Latency:
    """The last :data:`REMEMBERED` times in seconds. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, seconds: float) -> None:
        """Note one time."""
        with self._lock:
            self._times.append(seconds)

    def p99(self) -> float | None:
        """The time that 99 of 100 do not exceed; None before there are enough of them."""
        with self._lock:
            times = sorted(self._times)
        return times[math.ceil(len(times) * 0.99) - 1] if len(times) >= ENOUGH else None


def histogram(seconds: float) -> list[tuple[str, int]]:
    """What a chunk that took ``seconds`` adds to the counters ``chunk_latency_*`` (each bucket counts all that took no
    longer)."""
    milliseconds = seconds * 1000
    first = bisect_left(BUCKETS_MS, milliseconds)
    counted = [(f"chunk_latency_le_{bound}", 1) for bound in BUCKETS_MS[first:]]
    return [*counted, ("chunk_latency_count", 1), ("chunk_latency_ms", round(milliseconds))]
