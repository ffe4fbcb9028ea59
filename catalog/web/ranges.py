"""``Range``, ``If-Range`` and ``If-None-Match`` (RFC 9110), for one range at a time.

Several ranges in one header are answered with the whole representation, which the RFC allows, so that no header can
make the catalog do quadratic work.
"""

from __future__ import annotations

import re

from catalog.web.problems import RangeUnsatisfiable

_RANGE = re.compile(r"bytes=[ \t]*(\d{0,18})-(\d{0,18})[ \t]*")


def parse_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """The (start, stop) that ``header`` asks for of ``size_bytes`` bytes, or None for all of them.

    What is not one well-formed range is ignored, as the RFC says; :class:`RangeUnsatisfiable` (416) when it is one
    that lies outside.
    """
    match = _RANGE.fullmatch(header) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(size_bytes - int(last), 0), size_bytes
        satisfiable = int(last) > 0 and size_bytes > 0
    else:
        start, stop = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < start:
            return None
        satisfiable = start < size_bytes
    if not satisfiable:
        raise RangeUnsatisfiable(
            "range_unsatisfiable",
            f"The range lies outside the {size_bytes} bytes",
            "Ask for bytes that exist.",
            headers={"Content-Range": f"bytes */{size_bytes}"},
        )
    return start, stop


def matches(header: str | None, etag: str) -> bool:
    """Whether ``If-None-Match: header`` names ``etag`` (given with its quotes; weak comparison)."""
    if header is None:
        return False
    return header.strip() == "*" or etag in (part.strip().removeprefix("W/") for part in header.split(","))
