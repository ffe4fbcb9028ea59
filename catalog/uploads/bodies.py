"""Request bodies as iterators of bytes that a thread can read, and as files."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.from_thread
from starlette.requests import Request

from catalog.disk import writing_to
from catalog.web.problems import BadRequest, LengthRequired, RequestTimeout, TooLarge
from openshelf.units import MIB, format_size

PORTION_BYTES = 1 * MIB
PORTION_S = 120.0
"""A mebibyte that takes longer comes from nowhere any more, or too slowly to hold one of the few threads for bodies."""


def content_length(request: Request, limit_bytes: int) -> int:
    """The length that the request announces; :class:`LengthRequired` or :class:`TooLarge` otherwise."""
    text = request.headers.get("content-length")
    if text is None:
        raise LengthRequired("length_required", "The body's length is not announced", "Send Content-Length.")
    if not (text.isascii() and text.isdigit()):
        raise BadRequest("bad_length", "Content-Length is not a number", "Send the body's size in bytes.")
    size = int(text)
    if size > limit_bytes:
        raise TooLarge("body_too_large", f"The body is over {format_size(limit_bytes)}", "Split it.")
    return size


async def _portions(request: Request) -> AsyncIterator[bytes]:
    """The body in portions of about a mebibyte, so that the hand-over to the thread is rare."""
    gathered = bytearray()
    async for part in request.stream():
        gathered += part
        if len(gathered) >= PORTION_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def body_portions(request: Request) -> Iterator[bytes]:
    """The body for a worker thread; the event loop reads ahead of it by one portion at most.

    :class:`RequestTimeout` when the sender falls silent or is too slow.
    """
    portions = _portions(request)

    async def following() -> bytes | None:
        try:
            with anyio.fail_after(PORTION_S):
                return await anext(portions, None)
        except TimeoutError:
            raise RequestTimeout(
                "slow_body", f"No mebibyte of the body arrived within {PORTION_S:.0f} seconds", "Send it again."
            ) from None

    while (portion := anyio.from_thread.run(following)) is not None:
        yield portion


@contextmanager
def spooled(folder: Path, portions: Iterator[bytes]) -> Iterator[Path]:
    """The body as a temporary file, removed at the end."""
    path = folder / secrets.token_hex(16)
    try:
        with writing_to(folder), path.open("xb") as sink:
            for portion in portions:
                sink.write(portion)
        yield path
    finally:
        path.unlink(missing_ok=True)
