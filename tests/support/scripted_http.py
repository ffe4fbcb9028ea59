"""An HTTP server that answers what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(frozen=True)
class Asked:
    """A request as it arrived; names of headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Reply:
    """What to answer. ``cut_after`` breaks the connection after that many bytes of the body."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None


def ranged(content: bytes, asked: Asked) -> Reply:
    """A right answer to a request for a range of ``content``."""
    wanted = asked.headers.get("range")
    if wanted is None:
        return Reply(200, {}, content)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start, stop = int(first), min(int(last) + 1 if last else len(content), len(content))
    return Reply(206, {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}, content[start:stop])


class ScriptedServer:
    """Listens on ``host``; every request is given to ``answer``."""

    def __init__(self, answer: Callable[[Asked], Reply], host: str = "127.0.0.1") -> None:
        self.asked: list[Asked] = []
        self.answer = answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                asked = Asked(
                    self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body
                )
                outer.asked.append(asked)
                reply = outer.answer(asked)
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if reply.cut_after is not None:
                    self.wfile.write(reply.body[: reply.cut_after])
                    self.close_connection = True
                else:
                    self.wfile.write(reply.body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self.host, self.port = host, self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def netloc(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.netloc}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
