"""Around every request: its id, its line in the log, its time, a limit on its body, and an answer when all else fails.

Plain ASGI, because Starlette's own base class buffers what is streamed.
"""

from __future__ import annotations

import re
import time
import uuid

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from catalog.web.metrics import Metrics
from catalog.web.problems import TooLarge, problem_response
from openshelf.units import MIB, format_size

JSON_BODY_BYTES = 16 * MIB
"""Limit for bodies that are read whole; streamed bodies (objects, seals, attachments) have their own."""
_STREAMED = re.compile(r"/v1/collections/.+/(objects/[^/]+|seal|attachments/[^/]+)")
_REQUEST_ID = re.compile(r"[A-Za-z0-9-]{8,64}")
_UNKNOWN_METHOD = "OTHER"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})

log = structlog.get_logger("catalog.http")


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


class _OverLimit(Exception):
    """The body goes on past its limit. No handler knows it, so that it comes through to the frame."""


def _too_large() -> TooLarge:
    return TooLarge(
        "body_too_large", f"The body is over {format_size(JSON_BODY_BYTES)}", "Send it in several requests."
    )


class _Limited:
    """Receives a body of at most ``limit_bytes`` bytes; any when None."""

    def __init__(self, receive: Receive, limit_bytes: int | None) -> None:
        self._receive = receive
        self._left = limit_bytes
        self.exceeded = False

    async def __call__(self) -> Message:
        message = await self._receive()
        if self._left is not None:
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                self.exceeded = True
                raise _OverLimit
        return message


class RequestFrame:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

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
        limited = _Limited(receive, None if _STREAMED.fullmatch(scope["path"]) else JSON_BODY_BYTES)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                if limited.exceeded:
                    raise _OverLimit  # whatever the application made of the broken body
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id.encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        try:
            await self._app(scope, limited, sending)
        except ClientDisconnect:
            status = status or 499
        except _OverLimit:
            limited.exceeded = False
            await self._answer(scope, receive, sending, status, _too_large())
        except Exception as error:
            log.error("request.failed", exc_info=error)
            await self._answer(scope, receive, sending, status, None)
        finally:
            self._account(scope, status, time.perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, status: int, error: TooLarge | None) -> None:
        if status:
            return  # the answer has begun: the connection is closed short of its length, which the client notices
        request_id = scope["openshelf.request_id"]
        if error is not None:
            response = problem_response(request_id, error.status, error.code, error.message, error.hint)
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
