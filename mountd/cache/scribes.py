"""The worker's side of the processes that write the files of packs (:mod:`mountd.cache.scribe`)."""

from __future__ import annotations

import logging
import marshal
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from mountd.cache import scribe
from mountd.cache.scribe import LENGTH, Order

log = logging.getLogger("openshelf.mount.cache")

_PATIENCE_S = 60.0
"""How long a disk may take for one order; then the process is given up."""
_END_S = 2.0


class ScribeLost(Exception):
    """The process is gone or does not answer; what it was ordered to do may be half done."""


class Scribe:
    """One process. ``memory``, of ``memory_bytes``, is shared with it; used by one thread at a time."""

    def __init__(self, memory_bytes: int) -> None:
        """Start the process; OSError when that cannot be done."""
        descriptor = os.memfd_create("openshelf-pack", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, memory_bytes)
            self.memory = memoryview(mmap.mmap(descriptor, memory_bytes))
            self._connection, other = socket.socketpair()
            with other:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", scribe.__file__, str(other.fileno()), str(descriptor), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(other.fileno(), descriptor),
                )
        finally:
            os.close(descriptor)
        self._connection.settimeout(_PATIENCE_S)

    def order(self, files: Sequence[Order]) -> None:
        """Have files written; to be followed by one :meth:`answer`. Raises ScribeLost."""
        body = marshal.dumps(list(files))
        try:
            self._connection.sendall(LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise ScribeLost from error

    def answer(self, files: int) -> bytes:
        """What became of the files of the oldest order, one byte each. Raises ScribeLost."""
        try:
            return bytes(scribe.receive(self._connection, files))
        except (OSError, EOFError) as error:
            raise ScribeLost from error

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Scribes:
    """Gives out processes, each to one pack at a time; one is kept for the next pack. Thread-safe."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._kept: Scribe | None = None
        self._closed = False

    def take(self) -> Scribe | None:
        """A process, or None when none can be started: the caller then writes by itself."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            return kept
        try:
            return Scribe(self._memory_bytes)
        except OSError as error:
            log.warning("No process can be started for writing small files: %s.", error.strerror)
            return None

    def give_back(self, used: Scribe) -> None:
        """Keep the process for the next pack, or end it."""
        with self._lock:
            if self._kept is None and not self._closed:
                self._kept = used
                return
        used.close()

    def close(self) -> None:
        """End what is kept; what is given back later is ended then."""
        with self._lock:
            kept, self._kept, self._closed = self._kept, None, True
        if kept is not None:
            kept.close()
