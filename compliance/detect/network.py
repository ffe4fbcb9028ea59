"""Network addresses: IPv4.

Decision: every valid address is reported, because a text does not say which networks are whose. Loopback, unspecified,
broadcast and netmask values get 0.3 (the standard policy keeps them); private and documentation ranges 0.6 or more.
Version numbers and section numbers are told apart by what stands around them.
"""

from __future__ import annotations

import re

from compliance.detect.context import CueWords, Window, cue, letters_before
from compliance.detect.rule import NON_DIGIT, Found, Pattern

_ADDRESS = CueWords(
    "ip 地址 服务器 主机 网关 网段 登录 登陆 访问 来自 端口 代理 host server ping gateway dns proxy ssh http"
)
_NUMBERING = CueWords(
    "版本 固件 补丁 升级 更新 驱动 内核 第 章 附录 条款 标准 version ver release build firmware sdk driver kernel "
    "section chapter clause oid §"
)
_FIRST_MULTICAST = 224
_SMALL = 32
"""Four numbers below this, without a cue, may as well be a version or a section."""
_PRIVATE_SCORES = (0.75, 0.65, 0.5)
_PUBLIC_SCORES = (0.95, 0.8, 0.4)
"""With a cue; without; without and all octets small."""
_PRODUCT_BEFORE = re.compile(rb"[A-Za-z][/_]\Z|[A-Za-z_]-?\Z")
_HEADING_BEFORE = re.compile(rb"(?:\A|\n)[ \t#*]*\Z")
_HEADING_AFTER = re.compile(rb"[ \t]|\xe3\x80[\x80\x81]|[\xe4-\xe9]")
_WORD_AFTER = re.compile(rb"[A-Za-z_]|-[A-Za-z]|\.[0-9a-z]")


def _is_private(first: int, second: int) -> bool:
    """Whether the first two octets are of RFC 1918, shared (RFC 6598) or link-local space."""
    match first:
        case 10:
            return True
        case 172:
            return 16 <= second < 32
        case 192:
            return second == 168
        case 100:
            return 64 <= second < 128
        case _:
            return first == 169 and second == 254


def ipv4(window: Window) -> Found | None:
    """A dotted quad with octets 0 to 255 and no leading zeros that is not a version or a heading number."""
    parts = window.value.split(b".")
    if any(int(part) > 255 or (len(part) > 1 and part.startswith(b"0")) for part in parts):
        return None
    before = window.before(24)
    if (_PRODUCT_BEFORE.search(before) and letters_before(window) != b"ip") or _WORD_AFTER.match(window.after(2)):
        return None
    near = cue(window, _ADDRESS, _NUMBERING)
    small = all(int(part) < _SMALL for part in parts)
    if near < 0:
        return None
    if near == 0 and small and _HEADING_BEFORE.search(before) and _HEADING_AFTER.match(window.after(1)):
        return None
    first, second, *_ = map(int, parts)
    if first in (0, 127) or first >= _FIRST_MULTICAST:
        return Found(window.start, window.end, 0.3, "ipv4.reserved", 1)
    private = _is_private(first, second)
    cued, plain, ambiguous = _PRIVATE_SCORES if private else _PUBLIC_SCORES
    score = cued if near else ambiguous if small else plain
    return Found(window.start, window.end, score, "ipv4.private" if private else "ipv4.public", 1)


_QUAD = rb"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}"

PATTERNS = (Pattern("ipv4", rb"[^0-9.]" + _QUAD + NON_DIGIT, ipv4),)
