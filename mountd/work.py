"""The worker's side of its control socket: commands that take a while, each in a thread, reported as they go on."""

from __future__ import annotations

import errno
import json
import logging
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from mountd import control
from mountd.interfaces import Work
from openshelf.errors import OpenshelfError, UsageError

_logger = logging.getLogger(__name__)

MOST_AT_ONCE = 16
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_PAUSE_S = 0.2
"""Before a connection is accepted again that could not be for want of descriptors or memory."""
_PATIENCE_S = 10.0
"""How long a client may take to send its command, and to take a report."""


class WorkServer:
    """Serves the commands of ``work`` to whoever connects, until the process ends."""

    def __init__(self, listener: socket.socket, work: Mapping[str, Work]) -> None:
        self._listener = listener
        self._work = work
        self._places = threading.Semaphore(MOST_AT_ONCE)

    def start(self) -> None:
        """Begin to accept, in a thread of its own."""
        threading.Thread(target=self._accept, name="work", daemon=True).start()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while self._listener.fileno() >= 0:
            poll.poll()
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    return  # the mount has ended
                time.sleep(_PAUSE_S)
                continue
            self._places.acquire()
            threading.Thread(target=self._serve, args=(connection,), name="command", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_PATIENCE_S)
                for report in self._reports(connection):
                    connection.sendall(json.dumps(report, ensure_ascii=False).encode() + b"\n")
        except (OSError, ValueError) as error:
            _logger.info("a command was given up: %s", error)
        finally:
            self._places.release()

    def _reports(self, connection: socket.socket) -> Iterator[Mapping[str, Any]]:
        """What goes to the client; an error is the last."""
        try:
            request = json.loads(control.read_line(connection))
            work = self._work.get(request.pop("command", "")) if isinstance(request, dict) else None
            if work is None:
                raise UsageError("unknown_command", "The worker knows no such command", "Is it of an older version?")
            yield from work(request)
        except OpenshelfError as error:
            yield control.failure_of(error)
        except (OSError, ValueError):
            raise
        except Exception as error:  # a fault in one command must not be silent, nor end anything else
            _logger.exception("a command failed")
            yield control.failure_of(
                OpenshelfError("command_failed", f"It failed: {type(error).__name__}", "See the log.")
            )
