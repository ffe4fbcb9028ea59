"""What the cache's disks refused: said once, shown for a while, and the disk left alone for a moment or for good."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable

from mountd.cache.disk import Disk, Disks

log = logging.getLogger("openshelf.mount.cache")

RETRY_S = 10.0
"""After a failed write a disk is left alone for this long."""
SHOWN_S = 30.0
"""Trouble is shown in the status for this long after it last happened."""
SAY_AGAIN_S = 60.0
"""The same trouble is logged once in this time."""

_ALL = -1


class Trouble:
    """Failure notes of one cache. ``broken`` is told of a disk that must be taken out. Thread-safe."""

    def __init__(self, disks: Disks, broken: Callable[[Disk, str], None]) -> None:
        self._disks = disks
        self._broken = broken
        self._lock = threading.Lock()
        self._text = ""
        self._failed_at: dict[int, float] = {}
        self._said_at = float("-inf")
        self._logged: dict[str, float] = {}

    def note(self, error: Exception, disk: Disk | None = None) -> None:
        """A disk refused something: nothing is written to it for :data:`RETRY_S` seconds; it is taken out when it is
        broken and there are others. Without ``disk`` it is the one that the error names, else all are left alone."""
        reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if disk is None and isinstance(error, OSError) and isinstance(error.filename, str):
            disk = self._disks.holding(error.filename)
        code = error.errno if isinstance(error, OSError) else None
        if disk is not None and len(self._disks) > 1 and isinstance(error, OSError):
            if disk.out:
                return
            if disk.fails(error):
                self._broken(disk, reason)
                return
        if code in (errno.EMFILE, errno.ENFILE):
            self.say(f"no descriptor is left ({reason}); a higher LimitNOFILE gives more")
        elif code in (errno.ENOSPC, errno.EDQUOT):
            self.say(f"the cache's disk is full ({reason})")
        else:
            self.say(f"the cache's disk fails ({reason})")
        self._failed_at[_ALL if disk is None else disk.number] = time.monotonic()

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
        """Which disks are out and why, and why files were not kept in the last :data:`SHOWN_S` seconds."""
        lately = self._text if time.monotonic() - self._said_at < SHOWN_S else ""
        out = [f"the cache's disk {disk.root} is out ({disk.out})" for disk in self._disks.out()]
        return "; ".join(filter(None, (*out, lately)))

    def writable(self, disk: Disk | None = None) -> bool:
        """Whether a disk (any, if none is given) may be tried."""
        failed_at = self._failed_at.get(_ALL, float("-inf"))
        if disk is not None:
            failed_at = max(failed_at, self._failed_at.get(disk.number, float("-inf")))
        return time.monotonic() - failed_at > RETRY_S
