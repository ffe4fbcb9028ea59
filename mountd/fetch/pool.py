"""A few threads that fetch: what a reader waits for comes first, what nobody waits for yet comes last."""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from enum import IntEnum

log = logging.getLogger("openshelf.mount.fetch")

Task = Callable[[], object]
YOUNG_S = 5.0
START_SPREAD_S = 1.0


class Priority(IntEnum):
    """Who waits for a task."""

    DEMAND = 0
    """A reader."""
    PREFETCH = 1
    """A reader will, soon."""
    BACKGROUND = 2
    """The next epoch."""


class Pool:
    """``threads`` daemon threads and a queue by priority; ``reserved`` of them serve only what readers wait for."""

    def __init__(self, threads: int = 6, reserved: int = 2) -> None:
        self._born = time.monotonic()
        self._free_for_others = threads - reserved
        self._condition = threading.Condition()
        self._queue: list[tuple[Priority, int, Task]] = []
        self._later: list[tuple[float, int, Priority, Task]] = []
        self._order = itertools.count()
        self._others = 0
        self._stopped = False
        self._threads = [threading.Thread(target=self._work, name=f"fetch-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def start_delay_s(self) -> float:
        """A random part of a second while the pool is young: a thousand nodes that start together do not begin to fetch
        together what nobody waits for."""
        young = time.monotonic() - self._born < YOUNG_S
        return random.uniform(0, START_SPREAD_S) if young else 0.0  # noqa: S311 (spreading load is no secret)

    def submit(self, priority: Priority, task: Task, delay_s: float = 0.0) -> bool:
        """Queue a task, which must not raise, ``delay_s`` from now; False when the pool is closed."""
        with self._condition:
            if self._stopped:
                return False
            if delay_s > 0:
                heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._order), priority, task))
            else:
                heapq.heappush(self._queue, (priority, next(self._order), task))
            self._condition.notify()
        return True

    def _take(self) -> tuple[Priority, Task] | None:
        with self._condition:
            while True:
                if self._stopped:
                    return None
                wait_s = self._bring_due()
                if self._queue:
                    priority = self._queue[0][0]
                    if priority is Priority.DEMAND or self._others < self._free_for_others:
                        self._others += priority is not Priority.DEMAND
                        _, _, task = heapq.heappop(self._queue)
                        return priority, task
                self._condition.wait(wait_s)

    def _bring_due(self) -> float | None:
        """Queue the tasks whose time has come; seconds until the next one's. The lock is held."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            _, order, priority, task = heapq.heappop(self._later)
            heapq.heappush(self._queue, (priority, order, task))
        return self._later[0][0] - now if self._later else None

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            priority, task = taken
            try:
                task()
            except Exception:
                log.exception("A fetch task failed in a way that nobody foresaw.")
            finally:
                with self._condition:
                    if priority is not Priority.DEMAND:
                        self._others -= 1
                        self._condition.notify()

    def close(self, timeout_s: float = 2.0) -> None:
        """Take no more tasks, drop the queued ones, and wait ``timeout_s`` in all for those that run."""
        with self._condition:
            self._stopped = True
            self._queue.clear()
            self._later.clear()
            self._condition.notify_all()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
