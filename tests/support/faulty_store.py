"""A small HTTP server with the catalog's object addresses that does what it is told to do wrong."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Fault = Literal["error", "short", "wrong", "drip", "silent", "missing", "whole", "half"]


class FaultyStore:
    """Serves ``objects`` (hexadecimal digest → bytes) with ranges; ``faults`` are used up one a request."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = dict(objects)
        self.faults: deque[Fault] = deque()
        self.always: Fault | None = None
        self.requests: list[tuple[str, int, int]] = []
        self.delay_s = 0.0
        self._lock = threading.Lock()
        self._released = threading.Event()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                store.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that went away is what these tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FaultyStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _next_fault(self) -> Fault | None:
        with self._lock:
            return self.faults.popleft() if self.faults else self.always

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.rpartition("/")[2]
        first, _, last = request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        body = self.objects.get(name, b"")
        start, stop = int(first), int(last) + 1 if last else len(body)
        with self._lock:
            self.requests.append((name, start, stop))
        time.sleep(self.delay_s)
        fault = self._next_fault()
        if fault == "silent":
            self._released.wait(30)
            return
        if fault in ("error", "missing") or name not in self.objects:
            request.send_response(500 if fault == "error" else 404)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        part = body[start:stop]
        if fault == "wrong":
            part = bytes([part[0] ^ 0xFF]) + part[1:]
        request.send_response(206)
        request.send_header("Content-Length", str(len(part)))
        request.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(body)}")
        request.end_headers()
        if fault == "short":
            request.wfile.write(part[: len(part) // 2])
            request.close_connection = True
        elif fault == "half":  # and then nothing, until the client gives up
            request.wfile.write(part[: len(part) // 2])
            self._released.wait(30)
            request.close_connection = True
        elif fault == "drip":
            for byte in part:
                if self._released.wait(0.1):
                    return
                request.wfile.write(bytes([byte]))
        else:
            request.wfile.write(part)
