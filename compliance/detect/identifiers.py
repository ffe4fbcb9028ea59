"""Numbers with a check digit: resident identity, unified social credit code, bank card."""

from __future__ import annotations

import re
from datetime import date
from operator import mul

from compliance.detect.context import CueWords, Window, cue, in_hexadecimal, in_url, letters_before
from compliance.detect.rule import GAP, NON_DIGIT, Found, Pattern

PROVINCES = frozenset(
    (*range(11, 16), *range(21, 24), *range(31, 38), *range(41, 47), *range(50, 55), *range(61, 66), 71, 81, 82, 83)
)
"""First two digits of GB/T 2260 codes; 83 is the residence permit for people from Taiwan."""

BIRTH_YEARS = range(1900, 2050)
"""Fixed, so that a run tomorrow finds what a run today finds."""

_MOD_11_2_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_LUHN_DOUBLES = str.maketrans("0123456789", "0246813579")
"""Digit sums of the doubled digits."""
_MOD_11_2_CHECKS = "10X98765432"
_USCC_VALUES = {char: value for value, char in enumerate("0123456789ABCDEFGHJKLMNPQRTUWXY")}
_USCC_WEIGHTS = (1, 3, 9, 27, 19, 26, 16, 17, 20, 29, 25, 13, 8, 24, 10, 30, 28)
_USCC_REGISTRIES = frozenset(
    re.findall("..", "1112131921293132333435394149515253545559616269717279818991929399A1A9N1N2N3N9Y1")
)
"""Registration department and kind of body, the first two characters."""

_IDENTITY = CueWords("身份证 身份證 证件号 證件號 身份号码 身份信息 公民身份 idcard identity sfz")
_CARD = CueWords(
    "银行卡 銀行卡 卡号 卡號 储蓄卡 借记卡 信用卡 账号 帳號 账户 帐号 银行 开户行 收款 汇款 转账 "
    "打款 尾号 银联 card visa unionpay"
)
_CARD_ALONE = CueWords("银行卡 銀行卡 储蓄卡 借记卡 信用卡 bank")
"""What makes a number of no known issuer a card, as some old debit cards are."""
_CREDIT_CODE = CueWords("信用代码 信用代碼 税号 稅號 纳税人识别号 执照 注册号 机构代码 uscc taxpayer")
_OTHER_NUMBER = CueWords(
    "订单 單號 单号 流水号 编号 編號 快递 运单 物流 发票 序列号 条码 条形码 商品码 货号 时间戳 哈希 批号 批次 "
    "案号 凭证 设备号 交易号 imei iccid isbn order serial tracking timestamp trace uuid hash"
)
_NOT_A_CARD = _OTHER_NUMBER + _IDENTITY
_NOT_DIGITS = re.compile(rb"[^0-9A-Za-z]")


def has_resident_checksum(digits: str) -> bool:
    """Whether the last of 18 characters is the MOD 11-2 check of the first 17 (GB 11643-1999, ISO 7064)."""
    total = sum(map(mul, _MOD_11_2_WEIGHTS, map(int, digits[:17])))
    return _MOD_11_2_CHECKS[total % 11] == digits[17]


def has_uscc_checksum(code: str) -> bool:
    """Whether the last of 18 characters is the MOD 31 check of the first 17 (GB 32100-2015)."""
    values = [_USCC_VALUES.get(char, -1) for char in code]
    return min(values) >= 0 and -sum(map(mul, _USCC_WEIGHTS, values)) % 31 == values[17]


def has_luhn_checksum(digits: str) -> bool:
    """Whether ``digits`` pass the Luhn check (ISO/IEC 7812-1, annex B)."""
    doubled = digits[-2::-2].translate(_LUHN_DOUBLES)
    return (sum(map(int, digits[-1::-2])) + sum(map(int, doubled))) % 10 == 0


def is_birth_date(year: int, month: int, day: int) -> bool:
    """Whether the date exists and a living person may be born on it."""
    try:
        return date(year, month, day).year in BIRTH_YEARS
    except ValueError:
        return False


def _compact(value: bytes) -> str:
    return _NOT_DIGITS.sub(b"", value).decode("ascii").upper()


def _touches_word(window: Window) -> bool:
    return window.after(1).isalnum() or window.before(1) == b"_" or window.after(1) == b"_"


def resident_id_18(window: Window) -> Found | None:
    """An 18-character number of a resident: province, birth date, check digit; the latter may fail beside a cue."""
    number = _compact(window.value)
    if int(number[:2]) not in PROVINCES or window.after(1).isalnum():
        return None
    if not is_birth_date(int(number[6:10]), int(number[10:12]), int(number[12:14])):
        return None
    if in_hexadecimal(window):
        return None
    near = cue(window, _IDENTITY, _OTHER_NUMBER)
    if not has_resident_checksum(number):
        return Found(window.start, window.end, 0.6, "resident_id.cue", 0) if near > 0 else None
    score = {1: 0.99, 0: 0.95, -1: 0.7}[near]
    if near <= 0 and (in_url(window) or letters_before(window) not in (b"", b"id", b"no", b"sfz")):
        score = 0.7
    return Found(window.start, window.end, score, "resident_id.checksum", 2)


def resident_id_15(window: Window) -> Found | None:
    """A 15-digit number of the first generation: no check digit, so that only a cue makes it likely."""
    number = _compact(window.value)
    if int(number[:2]) not in PROVINCES or _touches_word(window) or window.before(1).isalpha():
        return None
    if not is_birth_date(1900 + int(number[6:8]), int(number[8:10]), int(number[10:12])):
        return None
    near = cue(window, _IDENTITY, _OTHER_NUMBER)
    if near < 0 or in_url(window) or in_hexadecimal(window):
        return None
    return Found(window.start, window.end, 0.85 if near else 0.3, "resident_id.15", 0)


def uscc(window: Window) -> Found | None:
    """A unified social credit code: registry, province, check character."""
    raw = window.value
    if raw != raw.upper() and raw != raw.lower():
        return None
    code = raw.decode("ascii").upper()
    if code[:2] not in _USCC_REGISTRIES or not has_uscc_checksum(code):
        return None
    if code[2:4] != "10" and int(code[2:4]) not in PROVINCES:
        return None
    near = cue(window, _CREDIT_CODE, _OTHER_NUMBER)
    if near < 0 or in_hexadecimal(window):
        return None
    score = 0.98 if near else 0.9
    if not near and (code.isdigit() or raw.islower()):
        score = 0.6 if code[0] == "9" else 0.3
    return Found(window.start, window.end, score, "uscc.checksum", 2)


def _issuer(digits: str) -> tuple[str, float] | None:
    """The card scheme of ``digits`` by leading digits and length, with the score of a bare, ungrouped number."""
    two, four, size = int(digits[:2]), int(digits[:4]), len(digits)
    if two == 62 and 16 <= size <= 19:
        return "unionpay", 0.8
    if four == 9558 and size == 19:
        return "unionpay", 0.7
    if digits[0] == "4" and size in (13, 16, 19):
        return "visa", 0.55 if size == 16 else 0.2
    if (51 <= two <= 55 or 2221 <= four <= 2720) and size == 16:
        return "mastercard", 0.55
    if two in (34, 37) and size == 15:
        return "amex", 0.3
    if 3528 <= four <= 3589 and size == 16:
        return "jcb", 0.55
    if (four == 6011 or two in (60, 65)) and 16 <= size <= 19:
        return "discover", 0.5
    if two in (30, 36, 38, 39) and size == 14:
        return "diners", 0.2
    return None


def bank_card(window: Window) -> Found | None:
    """A payment card: Luhn, a known issuer range or a cue; groups of four and cues raise the score."""
    digits = _compact(window.value)
    if not 13 <= len(digits) <= 19 or not digits.isdigit() or not has_luhn_checksum(digits):
        return None
    if _touches_word(window) or window.before(1) in (b"*", b".") or window.after(1) == b"*":
        return None
    if window.after(1) == b"." and window.after(2)[1:].isdigit():
        return None
    if len(set(digits)) == 1 or in_hexadecimal(window) or in_url(window):
        return None
    issuer = _issuer(digits)
    near = cue(window, _CARD if issuer else _CARD_ALONE, _NOT_A_CARD)
    grouped = len(window.value) > len(digits)
    if near < 0 or (issuer is None and near == 0) or (letters_before(window) and near == 0):
        return None
    score = 0.6 if issuer is None else issuer[1]
    if near and issuer:
        score = 0.98
    elif grouped:
        score = min(0.95, score + 0.2)
    if score < 0.3:
        return None
    name = "bank_card.luhn" if issuer is None else f"bank_card.{issuer[0]}"
    return Found(window.start, window.end, score, name, 2 if near or grouped or score >= 0.7 else 1)


_RESIDENT_18 = GAP.join((rb"[1-8][0-9]{5}", rb"(?:19|20)[0-9]{2}", rb"[01][0-9][0-3][0-9]", rb"[0-9]{3}", rb"[0-9Xx]"))

PATTERNS = (
    Pattern("resident_id", NON_DIGIT + _RESIDENT_18 + NON_DIGIT, resident_id_18),
    Pattern("resident_id", NON_DIGIT + rb"[1-8][0-9]{7}[01][0-9][0-3][0-9]{4}" + NON_DIGIT, resident_id_15),
    Pattern("uscc", rb"[^0-9A-Za-z][1-9ANYany][0-9][0-9]{6}[0-9A-Za-z]{10}[^0-9A-Za-z]", uscc),
    Pattern("bank_card", NON_DIGIT + rb"[2-69][0-9]{12,18}" + NON_DIGIT, bank_card),
    Pattern("bank_card", NON_DIGIT + rb"[2-69][0-9]{3}(?:[ -][0-9]{4}){2,3}[ -][0-9]{1,4}" + NON_DIGIT, bank_card),
    Pattern("bank_card", NON_DIGIT + rb"[2-69][0-9]{5}[ -][0-9]{10,13}" + NON_DIGIT, bank_card),
    Pattern("bank_card", NON_DIGIT + rb"3[47][0-9]{2}[ -][0-9]{6}[ -][0-9]{5}" + NON_DIGIT, bank_card),
)
