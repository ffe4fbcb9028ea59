"""The daemon's log: ``<cache>/mountd.log``, written by supervisor and worker alike, rotated by size."""

from __future__ import annotations

import fcntl
import logging
import logging.handlers
import os
from pathlib import Path

LOG_NAME = "mountd.log"
MAX_BYTES = 8 << 20
KEPT = 3
"""Older files kept beside the log: ``mountd.log.1`` is the newest of them."""

_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class SharedLogHandler(logging.handlers.WatchedFileHandler):
    """A log file that several processes append to; whoever finds it too long rotates it, under a lock."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, rotating before it when the file is full."""
        if self.stream is not None and self.stream.tell() >= MAX_BYTES:
            self._rotate()
        super().emit(record)

    def _rotate(self) -> None:
        path = Path(self.baseFilename)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists() and path.stat().st_size < MAX_BYTES:
                return  # another process was first
            for number in range(KEPT, 0, -1):
                older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
                if older.exists():
                    older.replace(path.with_name(f"{path.name}.{number}"))


def configure(cache: Path, *, foreground: bool) -> None:
    """Send the log of this process and its children to the cache folder, to stderr as well when in the foreground."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    handlers: list[logging.Handler] = [SharedLogHandler(cache / LOG_NAME, encoding="utf-8")]
    if foreground:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
    logging.captureWarnings(True)


def last_line(cache: Path) -> str:
    """The last line of the log, or an empty text."""
    try:
        with (cache / LOG_NAME).open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 4096))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
