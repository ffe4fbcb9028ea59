"""A circuit breaker: a source that keeps failing is left alone for a while, then tried with a single request.

CLOSED     --too many failures one after the other-->  OPEN
OPEN       --its pause is over, one request passes-->  HALF-OPEN
HALF-OPEN  --the request succeeds-->                   CLOSED
HALF-OPEN  --it fails, or nothing is heard of it-->    OPEN, for twice as long
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PROBE_S = 30.0
"""After this long a probe of which nothing was heard counts for nothing, and another may pass."""


class Breaker:
    """The breaker of one source. Thread-safe."""

    def __init__(
        self,
        threshold: int,
        first_pause_s: float,
        longest_pause_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold = threshold
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._pause_s = 0.0
        self._until = 0.0

    def allows(self) -> bool:
        """Whether a request may be sent now. While open, True once its pause is over: that request is the probe."""
        with self._lock:
            if not self._pause_s:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + PROBE_S
            return True

    def may_allow(self) -> bool:
        """What :meth:`allows` would say; no probe is begun."""
        with self._lock:
            return not self._pause_s or self._clock() >= self._until

    def succeeded(self) -> None:
        """A request was answered."""
        with self._lock:
            self._failures, self._pause_s = 0, 0.0

    def failed(self) -> bool:
        """A request failed; whether the breaker opened (or opened again) by it."""
        with self._lock:
            self._failures += 1
            if self._failures < self._threshold:
                return False
            self._pause_s = min(self._pause_s * 2 or self._first_pause_s, self._longest_pause_s)
            self._until = self._clock() + self._pause_s
            return True

    @property
    def is_open(self) -> bool:
        """Whether the source is left alone, but for a probe."""
        return self._pause_s > 0
