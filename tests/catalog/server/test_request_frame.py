"""What the outermost frame does when the application fails."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
import structlog
from starlette.types import Message, Receive, Scope, Send

from catalog.web.metrics import Metrics
from catalog.web.middleware import RequestFrame

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/x",
    "raw_path": b"/x%0a",
    "headers": [],
    "query_string": b"token=secret",
}


def admit_everybody(_authorization: str | None) -> None:
    pass


def call(app: Any) -> tuple[list[Message], list[Any]]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    # Whatever level a catalog in a test before this one was started with:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with structlog.testing.capture_logs() as logs:
        asyncio.run(RequestFrame(app, Metrics(), admit_everybody)({**SCOPE}, receive, send))
    return sent, logs


def test_an_unexpected_failure_is_a_problem_without_its_details() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a value nobody may see")

    sent, logs = call(failing)
    problem = json.loads(sent[1]["body"])
    assert (sent[0]["status"], problem["code"]) == (500, "internal_error")
    assert "nobody" not in str(sent)
    request_id = dict(sent[0]["headers"])[b"x-request-id"].decode()
    assert request_id in problem["hint"]
    assert [entry["event"] for entry in logs] == ["request.failed", "request"]
    assert logs[1]["status"] == 500
    assert logs[1]["path"] == "/x%0a"
    assert "secret" not in str(logs[1])


def test_a_failure_after_the_answer_began_adds_nothing_to_it() -> None:
    async def breaking(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError

    sent, logs = call(breaking)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert "request.failed" in [entry["event"] for entry in logs]


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_request_passes_through(kind: str) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def nothing() -> Message:
        return {}

    async def ignore(message: Message) -> None:
        pass

    asyncio.run(RequestFrame(app, Metrics(), admit_everybody)({"type": kind}, nothing, ignore))
    assert seen == [kind]
