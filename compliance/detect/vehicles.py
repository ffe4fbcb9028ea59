"""Vehicle registration plates of GA 36, including new energy and the special series."""

from __future__ import annotations

import re

from compliance.detect.context import CueWords, Window, cue
from compliance.detect.rule import Found, Pattern

_PROVINCES = "京津沪渝冀豫云辽黑湘皖鲁新苏浙赣鄂桂甘晋蒙陕吉闽贵粤青藏川宁琼"
_PROVINCE = b"(?:" + b"|".join(char.encode() for char in _PROVINCES) + b")"
_GAP = rb"(?: |-|\.|\xc2\xb7)?"
_SPECIAL_ENDS = "(?:挂|学|警|港|澳|领)".encode()
_END = rb"(?![0-9A-Za-z])"

_CIVIL = re.compile(
    rb"(?P<area>" + _PROVINCE + rb"[A-Z])(?P<gap>" + _GAP + rb")(?:"
    rb"(?P<new_energy>[A-HJK][A-HJ-NP-Z0-9][0-9]{4}|[0-9]{5}[A-HJK])" + _END + rb"|"
    rb"(?P<special>[A-HJ-NP-Z0-9]{4}" + _SPECIAL_ENDS + rb")|"
    rb"(?P<ordinary>[A-HJ-NP-Z0-9]{5})" + _END + rb")",
    re.IGNORECASE,
)
_POLICE = re.compile(rb"WJ ?" + _PROVINCE + rb"? ?[0-9]{4}[0-9A-Z]" + _END)
_EMBASSY = re.compile("使".encode() + rb"[0-9]{6}" + _END)
_MOST_LETTERS = 2
"""An ordinary number has at most two letters among its five characters."""

_VEHICLE = CueWords(
    "车牌 車牌 牌照 号牌 车号 车辆 轿车 货车 客车 驾驶 车主 违章 违停 停车 摩托 机动车 肇事 开着 一辆 的车 plate"
)
_OTHER = CueWords("型号 股票 代码 产品 编号 型材")
_COMPOUNDS = tuple(
    word.encode()
    for word in re.findall(
        "..",
        "南京北京东京天津新津江苏姑苏四川辽宁南宁西宁济宁甘青最新全新更新创新崭新重新刷新里云讯云为云务云白云乌云多云"
        "珍贵昂贵尊贵漆黑乌黑",
    )
)
"""Words that end in a province's character without meaning the province's plates."""
_MODEL_AFTER = re.compile(" ?(?:型|款|系列|系|股)".encode())


def civil_plate(window: Window) -> Found | None:
    """A plate that begins with a province: ordinary, new energy, or ending in 挂 学 警 港 澳 领."""
    match = _CIVIL.match(window.data, window.start)
    if match is None:
        return None
    kind = match.lastgroup or ""
    letters = bytes(byte for byte in match.group() if byte < 0x80 and chr(byte).isalpha())
    if letters != letters.upper() and letters != letters.lower():
        return None
    body = match[kind]
    if kind == "ordinary" and sum(chr(byte).isalpha() for byte in body) > _MOST_LETTERS:
        return None
    found = Window(window.data, match.start(), match.end())
    near = cue(found, _VEHICLE, _OTHER)
    if near < 0 or (near == 0 and _MODEL_AFTER.match(found.after(8))):
        return None
    score = 0.97 if near else 0.75 + (0.15 if match["gap"] in (b"\xc2\xb7", b".") else 0.0)
    if not near:
        score -= 0.2 if match["gap"] in (b" ", b"-") else 0.0
        score -= 0.2 if letters.islower() else 0.0
        score -= 0.3 if (found.before(3) + match["area"][:3]) in _COMPOUNDS else 0.0
    return Found(found.start, found.end, score, f"plate.{kind}", 1)


def service_plate(window: Window) -> Found | None:
    """A plate of the armed police (WJ…) or, beside a cue, of an embassy (使……)."""
    police = _POLICE.match(window.data, window.start)
    match = police or _EMBASSY.match(window.data, window.start)
    if match is None:
        return None
    found = Window(window.data, match.start(), match.end())
    near = cue(found, _VEHICLE)
    if police is None and not near:
        return None
    return Found(found.start, found.end, 0.95 if near else 0.7, "plate.police" if police else "plate.embassy", 1)


PATTERNS = (
    Pattern("plate", _PROVINCE + rb"[A-Za-z]" + _GAP + rb"[0-9A-HJ-NP-Za-hj-np-z]{4}", civil_plate, bordered=False),
    Pattern("plate", rb"WJ ?" + _PROVINCE + rb"? ?[0-9]{4}", service_plate, bordered=False),
    Pattern("plate", "使".encode() + rb"[0-9]{6}", service_plate, bordered=False),
)
