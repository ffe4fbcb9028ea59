"""Bandwidth: a bucket of bytes that fills at the permitted rate; what readers wait for is served first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from openshelf.errors import OpenshelfError

BURST_S = 0.25
"""The bucket holds what the rate gives in this time."""
LOOK_EVERY_S = 0.25
"""How often who waits looks whether the rate has changed."""


class Paused(OpenshelfError):
    """Nothing is fetched at this time of day."""

    def __init__(self) -> None:
        super().__init__("paused", "Fetching is paused at this time: the bandwidth is 0", "See OPENSHELF_BANDWIDTH.")


class Bandwidth:
    """``rate`` gives the bytes a second that are permitted at the moment, None for any. Thread-safe.

    The bucket may be overdrawn by one request, so that one larger than it passes too.
    """

    def __init__(
        self,
        rate: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._filled_at = clock()
        self._level = 0.0
        self._urgent = 0

    def take(self, count: int, urgent: Callable[[], bool] = lambda: True) -> None:
        """Wait until ``count`` bytes may be fetched. ``urgent`` is asked again and again: those go first. Raises
        :class:`Paused` when the rate is 0."""
        waiting_urgent = False
        try:
            while True:
                with self._lock:
                    self._urgent -= waiting_urgent
                    waiting_urgent = urgent()
                    self._urgent += waiting_urgent
                    rate = self._rate()
                    if rate is None:
                        return
                    if rate == 0:
                        raise Paused
                    self._fill(rate)
                    first = waiting_urgent or not self._urgent
                    if first and self._level >= 0:
                        self._level -= count
                        return
                    wait_s = -self._level / rate if first else BURST_S
                self._sleep(min(max(wait_s, 0.001), LOOK_EVERY_S))
        finally:
            with self._lock:
                self._urgent -= waiting_urgent

    def _fill(self, rate: int) -> None:
        """The lock is held."""
        now = self._clock()
        self._level = min(self._level + (now - self._filled_at) * rate, rate * BURST_S)
        self._filled_at = now
