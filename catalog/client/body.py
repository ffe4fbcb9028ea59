"""The body of an answer, read straight from its socket, by somebody who does not wait for ever.

A time limit for each read of a socket does not help against a source that sends a byte now and then. Here a source
counts as stalled when it sent less than :data:`LEAST_BYTES_S` in a whole ``stall_s`` spent waiting for it.
"""

from __future__ import annotations

import http.client
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError

from openshelf.units import KIB

LEAST_BYTES_S = 64 * KIB
"""A source slower than this stalls."""
PIECE_BYTES = 256 * KIB
"""What is asked of the socket at a time: the kernel wakes the reader once for it."""
LOOK_EVERY_S = 1.0
"""How often a reader that is waiting looks whether the body was cancelled, or has stalled."""
BROKEN = (HTTPError, http.client.HTTPException, OSError)
_TIMEVAL = struct.Struct("@ll")


class Body:
    """``length`` bytes of an answer whose headers are read. One thread reads; :meth:`cancel` may come from another.

    ``kind`` says who answered: ``catalog``, ``store`` or ``site_cache``. ``trouble`` is why a read came short.
    """

    def __init__(self, answer: urllib3.BaseHTTPResponse, length: int, kind: str, stall_s: float) -> None:
        self.kind = kind
        self.trouble = ""
        self._answer = answer
        self._left = length
        self._stall_s = stall_s
        self._cancelled = False
        self._buffered = 0
        """Bytes that came along with the headers and lie before what the socket has."""
        self._fresh = True
        self._waited_s = 0.0
        self._came = 0
        self._source: Any = getattr(answer, "_fp", answer)
        self._socket = _socket_below(self._source)
        self._flags = 0
        look_s = min(LOOK_EVERY_S, stall_s / 4)
        if type(self._socket) is socket.socket:
            # A blocking socket with a limit of its own: MSG_WAITALL then fills a piece in one call.
            self._socket.settimeout(None)
            limit = _TIMEVAL.pack(int(look_s), int(look_s % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._flags = socket.MSG_WAITALL
        elif self._socket is not None:
            self._socket.settimeout(look_s)

    def read_into(self, view: memoryview, before: Callable[[int], None] | None = None) -> int:
        """Fill ``view`` with the next bytes; fewer only when the body broke off (:attr:`trouble` says how).

        ``before`` is called before each piece with its length, and may wait: that does not count as stalling.
        """
        view = view[: self._left]
        done = 0
        try:
            while done < len(view) and not self.trouble:
                self._look_into_buffer()
                piece = view[done : done + (self._buffered or PIECE_BYTES)]
                if before is not None:
                    before(len(piece))
                count = self._receive(piece)
                done += count
                self._left -= count
        except BROKEN:
            self.trouble = self.trouble or "the connection broke"
        return done

    def _look_into_buffer(self) -> None:
        if self._fresh and self._socket is not None:
            self._buffered = len(self._source.fp.peek(1))
        self._fresh = False

    def _receive(self, piece: memoryview) -> int:
        """Up to a piece; short of it ``trouble`` is set."""
        if self._buffered:
            count = int(self._source.readinto(piece))
            self._buffered -= count
            return count
        done = 0
        while done < len(piece) and not self.trouble:
            started = time.monotonic()
            count, ended = self._receive_some(piece[done:])
            done += count
            self._judge(count, time.monotonic() - started, ended=ended)
        return done

    def _receive_some(self, view: memoryview) -> tuple[int, bool]:
        """What comes within the time between two looks, and whether the other side has ended."""
        if self._socket is None:
            count = int(self._source.readinto(view) or 0)
            return count, count == 0
        try:
            count = self._socket.recv_into(view, 0, self._flags)
        except (BlockingIOError, TimeoutError):
            return 0, False
        return count, count == 0

    def _judge(self, count: int, took_s: float, *, ended: bool) -> None:
        if self._cancelled:
            self.trouble = "it was given up"
        elif ended:
            self.trouble = "the connection ended early"
        else:
            self._waited_s += took_s
            self._came += count
            if self._waited_s >= self._stall_s:
                if self._came < LEAST_BYTES_S * self._waited_s:
                    self.trouble = f"it sent {self._came} bytes in {self._waited_s:.1f} s"
                self._waited_s, self._came = 0.0, 0

    def cancel(self) -> None:
        """Have whoever reads it stop soon."""
        self._cancelled = True

    def close(self) -> None:
        """Give the connection back when everything was read; else end it."""
        if self._left == 0 and not self.trouble:
            if self._socket is not None:
                self._source.length = 0
                self._source.close()
            self._answer.release_conn()
        else:
            discard(self._answer)


def discard(answer: urllib3.BaseHTTPResponse) -> None:
    """Give up an answer and its connection."""
    answer.close()
    answer.release_conn()


def _socket_below(source: Any) -> socket.socket | None:
    """The socket below a response of ``http.client``, when what is left on it is the body and nothing else."""
    found = getattr(getattr(getattr(source, "fp", None), "raw", None), "_sock", None)
    bare = not getattr(source, "chunked", True) and source.length is not None
    return found if isinstance(found, socket.socket) and bare else None
