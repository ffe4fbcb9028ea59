"""What goes on beside the readers: making room in good time, counting what is not objects, hashing old files again."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time

from mountd.cache.own import measure
from mountd.cache.reverify import Reverify
from mountd.cache.store import Cache

log = logging.getLogger("openshelf.mount.cache")

STEP_S = 5.0
MEASURE_SHARE = 50
"""Counting what is not objects takes at most this part of the time."""
ASK_AGAIN_S = 1.0
DROPPED_AT_ONCE = 10_000


class Upkeep:
    """The upkeep of one cache, in a thread of its own between :meth:`start` and :meth:`close`."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._stop = threading.Event()
        self._measured_at = float("-inf")
        self._measuring_s = 0.0
        self._shrinking = False
        self.reverify = Reverify(cache, self._stop)
        self._threads = [
            threading.Thread(target=self._run, name="upkeep", daemon=True),
            threading.Thread(target=self.reverify.run, name="reverify", daemon=True),
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End; before the cache is closed."""
        self._stop.set()
        self._cache.room.pressed.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def figures(self) -> dict[str, int]:
        """Counters for the status."""
        return {
            "evictions": self._cache.evictions,
            "cache_files": self._cache.used_files,
            "disks_out": len(self._cache.layout.disks.out()),
            "files_reverified": self.reverify.files,
            "files_damaged": self.reverify.damaged,
        }

    def _run(self) -> None:
        while not self._stop.is_set():
            pressed = self._cache.room.pressed.wait(STEP_S)
            try:
                self.step(pressed=pressed)
            except Exception as error:  # a fault here must not end what keeps the cache within its limits
                log.exception("The upkeep of the cache failed.")
                self._cache.room.trouble.note(error)
                self._stop.wait(STEP_S)

    def step(self, *, pressed: bool) -> None:
        """One round: measure, evict down to the low-water mark when files had to go, ask for protection to be given up
        when nothing could go, forget what lay on a disk that is out."""
        room = self._cache.room
        room.pressed.clear()
        self._measure()
        self._shrinking = self._shrinking or pressed or room.over_limits()
        while self._shrinking and not self._stop.is_set():
            self._shrinking = room.shrink()
        if room.starved:
            room.starved = False
            self._give_up_protection()
        self._forget_disks()

    def _measure(self) -> None:
        """Count again what is not objects, unless that was done lately in view of how long it takes."""
        started = time.monotonic()
        if started - self._measured_at < max(STEP_S, self._measuring_s * MEASURE_SHARE):
            return
        try:
            self._cache.room.own_bytes, self._cache.room.own_files = measure(
                self._cache.layout.disks, self._cache.limit_bytes
            )
        except OSError as error:
            self._cache.room.trouble.note(error)
        self._measured_at = time.monotonic()
        self._measuring_s = self._measured_at - started

    def _give_up_protection(self) -> None:
        """Ask in turn, until one has given something up, and leave time for it; what needs room then finds it."""
        if not any(ask() for ask in list(self._cache.before_evict)):
            self._stop.wait(ASK_AGAIN_S)

    def _forget_disks(self) -> None:
        index, disks = self._cache.index, self._cache.layout.disks
        try:
            for number in index.totals():
                while disks.get(number) is None and index.drop_disk(number, DROPPED_AT_ONCE):
                    if self._stop.is_set():
                        return
        except sqlite3.Error as error:
            self._cache.room.trouble.note(error)
