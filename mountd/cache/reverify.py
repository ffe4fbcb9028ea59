"""Every sealed file is hashed again once in :data:`EVERY_DAYS`, slowly, and not while readers keep the disks busy.

How far it has come is kept in the index: it goes on there after a restart. A damaged file is removed and told of.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Generator
from pathlib import Path

from mountd.cache.store import Cache
from mountd.cache.verify import verify_sealed
from openshelf.units import MIB

log = logging.getLogger("openshelf.mount.cache")

EVERY_DAYS = 30
RATE_BYTES_S = 8 * MIB
"""How fast at least; a cache too large for that in half the time is hashed faster."""
DAY_S = 86_400
FIRST_AFTER_S = 60.0
"""Nothing is hashed in the first minute of a mount."""
KEEP_EVERY_S = 30.0
BUSY_PERCENT = 10.0
"""Pressure on the disks (share of the last ten seconds in which some process waited) that makes it pause."""
LONGEST_PAUSE_S = 30.0
"""So long at a time: on a node that is always busy a megabyte is hashed after each."""
_PRESSURE = Path("/proc/pressure/io")


class Reverify:
    """The hashing again of one cache's files."""

    def __init__(self, cache: Cache, stop: threading.Event) -> None:
        self._cache = cache
        self._stop = stop
        kept = dict(cache.index.execute("SELECT name, value FROM standing"))
        self._after = bytes(kept.get("verified_up_to", b""))
        self._began = float(kept.get("verifying_since", 0))
        self.files = int(kept.get("files_reverified", 0))
        self.damaged = int(kept.get("files_damaged", 0))
        self._kept_at = time.monotonic()

    def run(self) -> None:
        """Go on until stopped."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread alone
        self._stop.wait(FIRST_AFTER_S)
        while not self._stop.is_set():
            try:
                self._wait_for_round()
                self.round()
            except (OSError, sqlite3.Error) as error:
                self._cache.room.trouble.note(error)
                self._stop.wait(DAY_S / 24)

    def _wait_for_round(self) -> None:
        """Until the last round is old enough (or was cut short, or the clock went back)."""
        while not self._after and not self._stop.is_set():
            if not 0 <= time.time() - self._began < EVERY_DAYS * DAY_S:
                return
            self._stop.wait(DAY_S / 24)

    def round(self) -> None:
        """Hash all files once, or the rest of a round that was cut short. Raises OSError, sqlite3.Error."""
        if not self._after:
            self._began = time.time()
        rate = max(RATE_BYTES_S, self._cache.total_bytes / (EVERY_DAYS * DAY_S / 2))
        with contextlib.closing(self._verdicts(rate)) as verdicts:
            for _ in verdicts:
                if self._stop.is_set():
                    self._keep()
                    return
        self._after = b""
        self._keep()

    def _verdicts(self, rate: float) -> Generator[None]:
        pace = _Pace(rate, self._stop)
        for verdict in verify_sealed(self._cache, read=pace.read, after=self._after):
            self._after = verdict.sha256
            self.files += 1
            if not verdict.intact:
                self.damaged += 1
                log.error("The cached file %s was damaged on the disk; it will be fetched again.", verdict.sha256.hex())
            if time.monotonic() - self._kept_at > KEEP_EVERY_S:
                self._keep()
            yield

    def _keep(self) -> None:
        standing = {
            "verified_up_to": self._after,
            "verifying_since": int(self._began),
            "files_reverified": self.files,
            "files_damaged": self.damaged,
        }
        with self._cache.index.batch():
            for name, value in standing.items():
                self._cache.index.execute("INSERT OR REPLACE INTO standing VALUES (?, ?)", (name, value))
        self._kept_at = time.monotonic()


class _Pace:
    """Holds reading to a rate, and up while the disks are busy."""

    def __init__(self, rate: float, stop: threading.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._due = time.monotonic()

    def read(self, count: int) -> None:
        """So many bytes were read: wait for as long as they may take."""
        self._due = max(self._due, time.monotonic() - 1.0) + count / self._rate
        self._stop.wait(max(0.0, self._due - time.monotonic()))
        until = time.monotonic() + LONGEST_PAUSE_S
        while _pressure_percent() > BUSY_PERCENT and time.monotonic() < until and not self._stop.is_set():
            self._stop.wait(1.0)


def _pressure_percent() -> float:
    """How much processes wait for disks, from the kernel (PSI); 0 where it does not tell."""
    try:
        text = _PRESSURE.read_text("ascii")
    except OSError:
        return 0.0
    _, _, rest = text.partition("some avg10=")
    return float(rest.split(maxsplit=1)[0]) if rest else 0.0
