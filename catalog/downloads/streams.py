"""Stored bytes as an HTTP answer: conditions, one range, and a body that is read as it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from catalog.web.metrics import Metrics
from catalog.web.ranges import matches, parse_range

Open = Callable[[int, int], Iterator[bytes]]
"""Opens the bytes from a start, so many of them."""
_PLAIN: Mapping[str, str] = {"Content-Type": "application/octet-stream"}


def not_modified(request: Request, digest: str) -> Response | None:
    """304 when the caller has the bytes already."""
    etag = f'"{digest}"'
    if matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=_headers(etag))
    return None


def _headers(etag: str) -> dict[str, str]:
    return {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=31536000, immutable",
        "Vary": "Authorization",
    }


async def answer(
    request: Request,
    metrics: Metrics,
    digest: str,
    size_bytes: int,
    open_bytes: Open,
    extra: Mapping[str, str] = _PLAIN,
) -> Response:
    """The bytes that ``request`` asks for of the object ``digest``; a HEAD gets the headers of the whole.

    ``extra`` holds the Content-Type and whatever else the answer says.
    """
    cached = not_modified(request, digest)
    if cached is not None:
        return cached
    etag = f'"{digest}"'
    headers = {**_headers(etag), **extra}
    if request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(size_bytes)})
    if_range = request.headers.get("if-range")
    wanted = parse_range(request.headers.get("range"), size_bytes) if if_range in (None, etag) else None
    start, stop = wanted or (0, size_bytes)
    headers["Content-Length"] = str(stop - start)
    if wanted:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size_bytes}"
    portions = open_bytes(start, stop - start)
    first = await run_in_threadpool(next, portions, None)  # a missing object is an error here, not a broken body
    return StreamingResponse(_body(portions, first, metrics), 206 if wanted else 200, headers)


async def _body(portions: Iterator[bytes], portion: bytes | None, metrics: Metrics) -> AsyncIterator[bytes]:
    try:
        while portion is not None:
            yield portion
            metrics.sent.inc(len(portion))
            portion = await run_in_threadpool(next, portions, None)
    finally:
        if isinstance(portions, Generator):
            portions.close()
