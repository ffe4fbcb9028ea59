"""Opaque cursors for lists that are read a page at a time."""

from __future__ import annotations

import base64
import binascii
import json
from urllib.parse import urlencode

from fastapi import Request, Response

from catalog.web.problems import BadRequest


def encode_cursor(value: str | int) -> str:
    """The cursor that continues after ``value``."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _decode(cursor: str) -> object:
    try:
        return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None


def text_cursor(cursor: str | None) -> str:
    """The text to continue after; empty at the beginning."""
    value = "" if cursor is None else _decode(cursor)
    if not isinstance(value, str):
        raise _bad_cursor()
    return value


def number_cursor(cursor: str | None) -> int:
    """The number to continue at; 0 at the beginning."""
    value = 0 if cursor is None else _decode(cursor)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise _bad_cursor()
    return value


def _bad_cursor() -> BadRequest:
    return BadRequest("bad_cursor", "The cursor is not one that this catalog gave", "Start again without a cursor.")


def link_next(request: Request, response: Response, cursor: str | None) -> None:
    """Add ``Link: …; rel="next"`` to ``response`` when there is a next page."""
    if cursor is not None:
        query = {**{key: value for key, value in request.query_params.items() if key != "cursor"}, "cursor": cursor}
        response.headers["Link"] = f'<{request.url.path}?{urlencode(query)}>; rel="next"'
