"""Ways to reach a person: mobile number and e-mail address."""

from __future__ import annotations

import re

from compliance.detect.context import (
    FILE_EXTENSIONS,
    CueWords,
    Window,
    cue,
    in_file_name,
    in_hexadecimal,
    in_url,
    letters_before,
)
from compliance.detect.rule import NON_DIGIT, Found, Pattern

_PREFIX = rb"(?:\(?(?:\+ ?|00)?86\)?(?: |-| - )?)?"
_GAP = rb"(?: |-|\.| - )?"
_NUMBER = rb"1[3-9][0-9]" + _GAP + rb"[0-9]{4}" + _GAP + rb"[0-9]{4}"
_MOBILE = re.compile(rb"(?P<prefix>" + _PREFIX + rb")(?P<number>" + _NUMBER + rb")")
_NUMBER_BEFORE = re.compile(_NUMBER + rb"[ .-]\Z")
_NUMBER_AFTER = re.compile(rb"[ .-]" + _NUMBER + rb"(?![0-9])")
_GROUP_BEFORE = re.compile(rb"[0-9][ .-]\Z")
_GROUP_AFTER = re.compile(rb"[ .-][0-9]")
_DECIMAL_BEFORE = re.compile(rb"[0-9]\.\Z")
_DECIMAL_AFTER = re.compile(rb"\.[0-9]")
_CODE_BEFORE = re.compile(rb"[0-9A-Za-z]-")
_CODE_AFTER = re.compile(rb"-[0-9A-Za-z]")
_DIGITS = 11
_AMOUNT_AFTER = re.compile(" ?(?:%|‰|元|万|亿|美元|吨|公里|千米|平方|字节|bytes|rmb|usd)".encode(), re.IGNORECASE)
_SEGMENTS = re.compile(rb"1(?:3[0-9]|4[0145-9]|5[0-35-9]|6[2567]|7[0-8]|8[0-9]|9[0-35-9])")
"""Segments in use in 2022 (numbers move between operators since 2019): evidence, never a filter."""

_PHONE_LABELS = frozenset(b"tel phone mobile mob cell cellphone telephone t m p vx wx v sj dh".split())
_PHONE = CueWords(
    "手机 手機 电话 電話 联系 聯繫 联络 致电 拨打 来电 短信 微信 热线 号码是 客服 咨询 机主 "
    "tel phone mobile cell call contact whatsapp wechat"
)
_OTHER_NUMBER = CueWords(
    "订单 單號 单号 流水号 编号 編號 快递 运单 物流 发票 序列号 条码 条形码 货号 型号 版本 工号 学号 案号 合同 证书 "
    "批号 批次 时间戳 凭证 设备号 交易号 哈希 邮编 isbn doi order serial sku tracking timestamp uid trace invoice"
)
_PHONE_PARAMETER = re.compile(rb"(?:phone|mobile|tel|cell|sj|shouji)=\Z", re.IGNORECASE)


def _is_part_of_a_longer_number(window: Window, number: bytes) -> bool:
    before, after = window.before(16), window.after(16)
    if before.endswith((b"*", b"+", b"\xe2\x80\xa6")) or after.startswith((b"*", b"%")):
        return True
    # "138 1234 5678 9012" is no mobile, "0.13812345678" neither; but two mobiles may stand side by side.
    before_joint, after_joint = (
        (_GROUP_BEFORE, _GROUP_AFTER) if len(number) > _DIGITS else (_DECIMAL_BEFORE, _DECIMAL_AFTER)
    )
    if before_joint.search(before[-2:]) and not _NUMBER_BEFORE.search(before):
        return True
    return bool(after_joint.match(after) and not _NUMBER_AFTER.match(after))


def _oddness(window: Window, number: bytes) -> float:
    """How much the neighbourhood speaks against a telephone number, 0 to 1."""
    odd = 0.0
    before, after = window.before(2), window.after(2)
    if before[-1:].isalpha() and letters_before(window) not in _PHONE_LABELS:
        odd += 0.35
    if after[:1].isalpha() or b"_" in (before[-1:], after[:1]):
        odd += 0.35
    if len(number) == _DIGITS and (_CODE_BEFORE.match(before) or _CODE_AFTER.match(after)):
        odd += 0.2
    if before.endswith(b"#"):
        odd += 0.2
    if after[:1] in (b".", b"_", b"-") and in_file_name(window):
        odd += 0.35
    if number.endswith(b"000000") or len(set(number)) <= 2:
        odd += 0.4
    return odd


def mobile(window: Window) -> Found | None:
    """A mainland mobile number, with or without +86 and with separators 3-4-4. The prefix belongs to the finding."""
    match = _MOBILE.fullmatch(window.value)
    if match is None:
        return None
    number, prefix = match["number"], match["prefix"]
    if _is_part_of_a_longer_number(window, number) or in_hexadecimal(window):
        return None
    near = cue(window, _PHONE, _OTHER_NUMBER)
    if _PHONE_PARAMETER.search(window.before(16)) or prefix.strip(b"( ").startswith((b"+", b"00")):
        near = 1
    elif in_url(window) or (near <= 0 and _AMOUNT_AFTER.match(window.after(8))):
        return None
    known = _SEGMENTS.match(number) is not None
    score = {1: 0.98, 0: 0.85, -1: 0.25}[near] - (0.0 if known else 0.2 if near > 0 else 0.4)
    score -= _oddness(window, number) * (0.5 if near > 0 else 1.0)
    if score < 0.3:
        return None
    start = window.start
    if (b"(" in prefix) != (b")" in prefix):
        start += len(prefix) if b")" in prefix else 1
    return Found(start, window.end, score, "mobile.segment" if known else "mobile.shape", 1)


_LOCAL = re.compile(rb"[A-Za-z0-9_](?:[A-Za-z0-9._%+\-]*[A-Za-z0-9_+\-])?\Z")
_LOCAL_BYTES = re.compile(rb"[A-Za-z0-9._%+\-]*\Z")
_LABELS = rb"(?:[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?\.)+"
_DOMAIN = re.compile(_LABELS + rb"(?P<top>[A-Za-z]{2,24}|xn--[A-Za-z0-9\-]{2,59})(?![A-Za-z0-9_@])")
_AT_WORD = rb" ?[\[({<] ?(?:at|AT|@|#) ?[\])}>] ?"
_OBFUSCATED = re.compile(
    rb"(?P<local>[A-Za-z0-9_][A-Za-z0-9._+\-]{0,63})" + _AT_WORD + rb"[A-Za-z0-9\-]{1,63}"
    rb"(?:(?:\.| ?[\[({<] ?(?:dot|DOT|\.) ?[\])}>] ?)[A-Za-z0-9\-]{1,63}){1,4}(?![A-Za-z0-9_@])"
)
_COMMON_TOPS = frozenset(
    b"com cn net org edu gov info biz io me top vip xyz ltd club shop site online tech cc hk tw mo jp kr us uk de fr "
    b"ru ca au sg eu dev app ai co in it nl es ch se int mil".split()
)
_REPOSITORY_USERS = frozenset((b"git", b"hg", b"svn"))


def email(window: Window) -> Found | None:
    """An e-mail address with an ASCII local part; the candidate runs from before its ``@`` to the first dot."""
    at = window.start + 1
    raw = _LOCAL_BYTES.search(window.data[:at])
    local = _LOCAL.search(raw.group().lstrip(b".%+-")) if raw else None
    domain = _DOMAIN.match(window.data, at + 1)
    if local is None or domain is None or not 1 <= len(local.group()) <= 64:
        return None
    start, top = at - len(local.group()), domain["top"].lower()
    before = window.data[max(0, start - 200) : start]
    if top in FILE_EXTENSIONS or before.endswith((b"*", b"\xe2\x80\xa6", b"@")):
        return None
    if re.search(rb"[A-Za-z0-9]/\Z", before) or re.search(rb"://[^\s/]*\Z", before):
        return None
    if local.group().lower() in _REPOSITORY_USERS and window.data[domain.end() : domain.end() + 1] in (b":", b"/"):
        return None
    return Found(start, domain.end(), 0.95 if top in _COMMON_TOPS or len(top) == 2 else 0.7, "email.address", 2)


def obfuscated_email(window: Window) -> Found | None:
    """An address written with ``[at]`` or ``(#)`` instead of ``@``; the candidate is the middle."""
    bracket = re.search(rb" ?[\[({<]", window.value)
    left = _LOCAL_BYTES.search(window.data[: window.start + bracket.start()]) if bracket else None
    match = _OBFUSCATED.match(window.data, left.start()) if left else None
    if match is None or match.end() < window.end:
        return None
    return Found(match.start(), match.end(), 0.7, "email.obfuscated", 1)


PATTERNS = (
    Pattern("mobile", NON_DIGIT + _PREFIX + _NUMBER + NON_DIGIT, mobile),
    Pattern("email", rb"[A-Za-z0-9._%+\-]@[A-Za-z0-9\-]{1,63}\.[A-Za-z0-9]", email, bordered=False),
    Pattern("email", rb"[A-Za-z0-9_]" + _AT_WORD + rb"[A-Za-z0-9]", obfuscated_email, bordered=False),
)
