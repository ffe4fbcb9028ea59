"""One JSON text to a Python value, strictly, and the reason when it is refused; errors never quote the text.

orjson does the work. It has three habits that cost data, and each is met here: it turns integers beyond 64 bits into
floats (such texts are read again with exact integers), it reports every fault in one way (the reason is found
afterwards), and it accepts an escaped NUL.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from ingest.rejects import Reason

_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_LONG_RUN = b"0" * 19
"""Digits from which on an integer may not fit 64 bits."""
_STRIDE, _SAMPLED_RUN = 6, b"000"
"""A run of 19 digits holds three neighbours of any sample of every sixth byte."""
_ESCAPED_NUL = b"\\u0000"
_ISO_2022 = b"\x1b$"
"""The escape sequence that announces ISO-2022 text, which is ASCII in every byte and Chinese in meaning."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Refused(Exception):
    """A text is not taken; ``reason`` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class _NotANumber(ValueError):
    pass


def needs_care(block: bytes) -> bool:
    """Whether some text inside ``block`` must be read by :func:`parse_carefully`; cheap, asked once per block."""
    return b"\0" in block or _ESCAPED_NUL in block or _ISO_2022 in block or _has_long_run(block)


def _has_long_run(text: bytes) -> bool:
    """Whether ``text`` has 19 digits one after another; a sixth of it is looked at first."""
    return _SAMPLED_RUN in text[::_STRIDE].translate(_DIGITS) and _LONG_RUN in text.translate(_DIGITS)


def parse(text: bytes) -> Any:
    """The value of ``text``, which :func:`needs_care` has cleared; raises :class:`Refused`."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Refused(_diagnose(text)) from None


def parse_carefully(text: bytes) -> Any:
    """The value of any ``text``, with exact integers; raises :class:`Refused`."""
    if b"\0" in text:
        raise Refused(Reason.NUL)
    if _ISO_2022 in text:
        raise Refused(Reason.UNDECODABLE)
    value = parse(text)
    if _has_long_run(text):
        value = json.loads(text)
    if _ESCAPED_NUL in text and holds_nul(value):
        raise Refused(Reason.NUL)
    return value


def holds_nul(value: Any) -> bool:
    """Whether a string or key anywhere inside ``value`` has a NUL character."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if "\0" in item:
                return True
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return False


def _refuse_constant(name: str) -> Any:
    raise _NotANumber(name)


def _diagnose(text: bytes) -> Reason:
    """Why orjson refused ``text``."""
    if b"\0" in text:
        return Reason.NUL
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        return Reason.UNDECODABLE
    try:
        value = json.loads(decoded, parse_constant=_refuse_constant)
    except _NotANumber:
        return Reason.NOT_A_NUMBER
    except (ValueError, RecursionError):
        return Reason.MALFORMED_JSON
    return Reason.LONE_SURROGATE if _holds_surrogate(value) else Reason.MALFORMED_JSON


def _holds_surrogate(value: Any) -> bool:
    try:
        return _SURROGATE.search(json.dumps(value, ensure_ascii=False)) is not None
    except RecursionError:
        return False


def is_cut_short(text: bytes) -> bool:
    """Whether ``text`` is the beginning of a JSON object or array that never ends: a file's cut tail."""
    shadow = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    inside = False
    depth = 0
    for token in re.findall(rb'["{}\[\]]', shadow):
        if token == b'"':
            inside = not inside
        elif not inside:
            depth += 1 if token in b"{[" else -1
    return text.lstrip()[:1] in (b"{", b"[") and (inside or depth > 0)
