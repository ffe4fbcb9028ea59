"""What the cache's disk refused: said once, shown for a while, and the disk left alone for a moment."""

from __future__ import annotations

import errno
import logging
import threading
import time

log = logging.getLogger("openshelf.mount.cache")

RETRY_S = 10.0
"""After a failed write the disk is left alone for this long."""
SHOWN_S = 30.0
"""Trouble is shown in the status for this long after it last happened."""
SAY_AGAIN_S = 60.0
"""The same trouble is logged once in this time."""


class Trouble:
    """Failure notes of one cache. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._failed_at = float("-inf")
        self._said_at = float("-inf")
        self._logged: dict[str, float] = {}

    def note(self, error: Exception) -> None:
        """The disk refused something: nothing is written for :data:`RETRY_S` seconds."""
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        self.say(f"the cache's disk is full ({reason})" if full else f"the cache's disk fails ({reason})")
        self._failed_at = time.monotonic()

    def say(self, text: str) -> None:
        """Why files are served straight from the store now; logged once in :data:`SAY_AGAIN_S` seconds."""
        with self._lock:
            self._text = text
            self._said_at = now = time.monotonic()
            if now - self._logged.get(text, float("-inf")) <= SAY_AGAIN_S:
                return
            self._logged[text] = now
        log.warning("Files are served straight from the store: %s.", text)

    def text(self) -> str:
        """Why files were not kept in the last :data:`SHOWN_S` seconds; empty when they were."""
        return self._text if time.monotonic() - self._said_at < SHOWN_S else ""

    def writable(self) -> bool:
        """Whether the disk may be tried."""
        return time.monotonic() - self._failed_at > RETRY_S
