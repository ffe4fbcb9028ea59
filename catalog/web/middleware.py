"""Around every request: its id, its line in the log, its time, a limit on its body, and an answer when all else fails.

Plain ASGI, because Starlette's own base class buffers what is streamed.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from catalog.web.metrics import Metrics
from catalog.web.problems import Problem, TooLarge, Unauthorized, problem_response
from openshelf.units import KIB, MIB, format_size

JSON_BODY_BYTES = 16 * MIB
"""Limit for bodies that are read whole; streamed bodies (objects, seals, attachments) have their own."""
UNKNOWN_CALLER_BYTES = 64 * KIB
"""So much of such a body is received before it is known who sends it: FastAPI looks at the token only afterwards."""
_STREAMED = re.compile(r"/v1/collections/[^/]+/[^/]+/[^/]+/releases/[^/]+/(objects/[^/]+|seal|attachments/[^/]+)")
_REQUEST_ID = re.compile(r"[A-Za-z0-9-]{8,64}")
_UNKNOWN_METHOD = "OTHER"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})

log = structlog.get_logger("catalog.http")


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


class _Refused(Exception):
    """The body is not received any further. No handler knows it, so that it comes through to the frame."""


class _Limited:
    """Receives a body that is read whole: of limited length, and past its beginning only once ``admit`` returns."""

    def __init__(self, receive: Receive, admit: Callable[[], None]) -> None:
        self._receive = receive
        self._admit = admit
        self._received = 0
        self._admitted = False
        self.refusal: Problem | None = None

    async def __call__(self) -> Message:
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > JSON_BODY_BYTES:
            limit = format_size(JSON_BODY_BYTES)
            self.refusal = TooLarge("body_too_large", f"The body is over {limit}", "Send it in several requests.")
        elif self._received > UNKNOWN_CALLER_BYTES and not self._admitted:
            try:
                await run_in_threadpool(self._admit)
            except Unauthorized as error:
                self.refusal = error
            self._admitted = True
        if self.refusal is not None:
            raise _Refused
        return message


class RequestFrame:
    """The outermost middleware. ``admit`` takes an Authorization header and raises ``Unauthorized`` when it is none."""

    def __init__(self, app: ASGIApp, metrics: Metrics, admit: Callable[[str | None], None]) -> None:
        self._app = app
        self._metrics = metrics
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = _header(scope, b"x-request-id")
        request_id = given if given and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope["openshelf.request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        began = time.perf_counter()
        status = 0
        limited = _Limited(receive, lambda: self._admit(_header(scope, b"authorization")))
        streamed = _STREAMED.fullmatch(scope["path"]) is not None  # its endpoint looks at the token first

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                if limited.refusal is not None:
                    raise _Refused  # whatever the application made of the broken body
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        try:
            await self._app(scope, receive if streamed else limited, sending)
        except ClientDisconnect:
            status = status or 499
        except _Refused:
            refusal, limited.refusal = limited.refusal, None
            await self._answer(scope, receive, sending, status, refusal)
        except Exception as error:
            log.error("request.failed", exc_info=error)
            await self._answer(scope, receive, sending, status, None)
        finally:
            self._account(scope, status, time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, status: int, error: Problem | None) -> None:
        if status:
            return  # the answer has begun: the connection is closed short of its length, which the client notices
        request_id = scope["openshelf.request_id"]
        if error is not None:
            response = problem_response(
                request_id, error.status, error.code, error.message, error.hint, headers=error.headers
            )
        else:
            response = problem_response(
                request_id,
                500,
                "internal_error",
                "The catalog failed while it handled this request",
                f"Give the operator the request id {request_id}; the log says more.",
            )
        response.headers["Connection"] = "close"
        await response(scope, receive, send)

    def _account(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else _UNKNOWN_METHOD
        self._metrics.requests.labels(route, method, str(status)).observe(seconds)
        log.info(
            "request",
            method=method,
            path=scope["raw_path"].decode("ascii", "backslashreplace"),
            status=status,
            ms=round(seconds * 1000, 1),
            principal=scope.get("openshelf.principal"),
        )
