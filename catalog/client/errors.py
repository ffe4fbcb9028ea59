"""What a catalog may answer instead of what was asked, each with what to do about it.

:func:`from_answer` is the one place that turns an HTTP answer into an error. What the catalog says in its problem
document (RFC 9457) is shown with control characters removed; anything else that answers (a proxy's page) is not.
"""

from __future__ import annotations

import json
import re

from openshelf.errors import OpenshelfError

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_SHOWN_CHARACTERS = 500


class CatalogError(OpenshelfError):
    """The catalog answered with an error. ``status`` is the HTTP status."""

    status = 0


class InvalidRequest(CatalogError):
    """What was sent is not acceptable (400, 413, 416, 422)."""


class Unauthorised(CatalogError):
    """No token, or one that the catalog does not know, has revoked, or that has expired (401)."""


class Forbidden(CatalogError):
    """The token's role or its principal may not do this (403)."""


class NotFound(CatalogError):
    """There is no such thing, or the token may not see it (404, 410)."""


class Conflict(CatalogError):
    """The release's state does not allow this (409, 412)."""


class TooManyRequests(CatalogError):
    """The catalog asks for fewer requests (429)."""


class CatalogFull(CatalogError):
    """The catalog's store has no room left (507)."""


class CatalogFailure(CatalogError):
    """The catalog, or what stands before it, failed (other 5xx)."""


class CatalogUnreachable(OpenshelfError):
    """Nothing answers at the catalog's address, or the connection breaks every time."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            "catalog_unreachable",
            f"The catalog at {url} does not answer: {reason}",
            "Check OPENSHELF_CATALOG, and that `openshelf serve` runs there.",
        )


class BadAnswer(OpenshelfError):
    """Something answers that does not behave like a catalog of this version."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(
            "bad_answer",
            f"The answer of {url} is not a catalog's: {what}",
            "Check OPENSHELF_CATALOG, and that both sides run the same version of openshelf.",
        )


class ReadFailed(OpenshelfError):
    """An object's bytes could not be had whole."""

    def __init__(self, sha256: str, reason: str) -> None:
        super().__init__(
            "read_failed", f"Object {sha256} could not be read: {reason}", "Try again; the object store may be down."
        )


class RedirectRefused(OpenshelfError):
    """The catalog pointed to a place where this client does not go. The address itself is never shown: it is a key."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "redirect_refused",
            f"The catalog redirected to a place that is refused: {reason}",
            "The operator must check the catalog's object store address; nothing was sent there.",
        )


_BY_STATUS: dict[int, type[CatalogError]] = {
    400: InvalidRequest,
    401: Unauthorised,
    403: Forbidden,
    404: NotFound,
    405: InvalidRequest,
    409: Conflict,
    410: NotFound,
    412: Conflict,
    413: InvalidRequest,
    415: InvalidRequest,
    416: InvalidRequest,
    422: InvalidRequest,
    429: TooManyRequests,
    507: CatalogFull,
}
_HINTS: dict[type[CatalogError], str] = {
    Unauthorised: "Set OPENSHELF_TOKEN to a token of this catalog; its administrators make them.",
    CatalogFull: "The operator must free space; then run the same command again, it goes on where it stopped.",
    CatalogFailure: "Try again; if it stays so, the catalog's log says why.",
    TooManyRequests: "Wait a moment and run the same command again.",
}


def _text(value: object) -> str:
    return _CONTROL.sub(" ", value)[:_SHOWN_CHARACTERS].strip() if isinstance(value, str) else ""


def from_answer(url: str, status: int, content_type: str, body: bytes) -> CatalogError:
    """The error that an answer with ``status`` of 400 or above means. ``url`` is the catalog's address."""
    problem: dict[str, object] = {}
    if content_type.split(";")[0].strip() == "application/problem+json":
        try:
            decoded = json.loads(body)
        except ValueError:
            decoded = None
        if isinstance(decoded, dict):
            problem = decoded
    kind = _BY_STATUS.get(status, CatalogFailure if status >= 500 else InvalidRequest)
    message = _text(problem.get("detail")) or _text(problem.get("title"))
    error = kind(
        _text(problem.get("code")) or f"http_{status}",
        message or f"The catalog at {url} answered with HTTP status {status}",
        _text(problem.get("hint")) or _HINTS.get(kind, ""),
    )
    error.status = status
    return error
