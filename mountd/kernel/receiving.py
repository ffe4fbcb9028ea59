"""Waiting for the next request: a little while awake, then asleep.

A program that opens or looks up one file after the other sends its next request some 20 µs after our answer. Falling
asleep in between costs two switches of the processor, and on virtual machines, whose idle processors are taken away at
once, up to 100 µs for each request. So whoever receives looks again for a short while before it sleeps: the longer, the
more often it was worth it (as the kernel's own ``haltpoll`` does for idle processors).
"""

from __future__ import annotations

import errno
import os
import select
import time

from mountd.kernel.processors import IdleProcessors

MOST_AWAKE_NS = 100_000
"""Looking for the next request ends after this."""
_LEAST_AWAKE_NS = 12_500
_NEAR_NS = 250_000
"""A request that came this soon after we fell asleep would have been worth waiting for."""
_TRY_AGAIN = (errno.EINTR, errno.EAGAIN, errno.ENOENT)
"""ENOENT: the request was withdrawn between waking up and reading it."""


class Receiver:
    """Receives the requests of one connection. Used by one thread at a time."""

    def __init__(self, processors: IdleProcessors) -> None:
        self._processors = processors
        self._polls: dict[int, select.poll] = {}
        self._awake_ns = 0

    def receive(self, device: int, buffer: memoryview, *, alone: bool) -> int:
        """The length of the next request, or 0 when the file system was unmounted. ``alone``: no other thread has
        work to do, so that staying awake takes nothing from it."""
        since = time.monotonic_ns() if alone else 0
        slept = not (self._awake_ns and since and self._came_within(device, since + self._awake_ns))
        while True:
            try:
                length = os.readv(device, [buffer])
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return 0
                if error.errno not in _TRY_AGAIN:
                    raise
            else:
                self._processors.request()
                if slept and since:
                    self._learn(time.monotonic_ns() - since)
                return length

    def _came_within(self, device: int, until: int) -> bool:
        """Whether a request comes before ``until``."""
        poll = self._polls.get(device)
        if poll is None:
            poll = self._polls[device] = select.poll()
            poll.register(device, select.POLLIN)
        while not poll.poll(0):
            if time.monotonic_ns() >= until:
                return False
            os.sched_yield()  # whoever is to send the request may share our processor
        return True

    def _learn(self, waited_ns: int) -> None:
        """Stay awake longer next time when a little longer would have been enough, else shorter."""
        if waited_ns < _NEAR_NS:
            self._awake_ns = min(max(self._awake_ns * 2, _LEAST_AWAKE_NS), MOST_AWAKE_NS)
        else:
            self._awake_ns = self._awake_ns // 2 if self._awake_ns > _LEAST_AWAKE_NS else 0
