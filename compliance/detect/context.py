"""What stands around a candidate: cue words, and machine-made text such as URLs and hexadecimal strings.

Everything works on UTF-8 bytes. Chinese cue words are encoded, which is safe because no UTF-8 character begins
inside another; ``\\b`` and ``\\d`` are never used, because their meaning beside Chinese is not what one expects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BEFORE_BYTES = 160
AFTER_BYTES = 320
"""How much of its document a candidate sees on each side."""

_CUE_BEFORE_BYTES = 48
_CUE_AFTER_BYTES = 24
_HEX_WORD_LENGTH = 16
_SHORT_WORD_LENGTH = 3

_BREAK = re.compile("[,;!?\n\t]|，|。|；|！|？|、".encode())
_NOT_IN_TOKEN = re.compile(rb"[^0-9A-Za-z_\-./:%=?&#~+@]")
_TOKEN_AFTER = re.compile(rb"[0-9A-Za-z_\-./:%=?&#~+@]*")
_WORD_AFTER = re.compile(rb"[0-9A-Za-z]*")
_UUID = re.compile(rb"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}")
_HEXADECIMAL = re.compile(rb"(?:0[xX])?[0-9A-Fa-f]+")
_URL = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://|(?<![A-Za-z0-9])www\.", re.IGNORECASE)

FILE_EXTENSIONS = frozenset(
    b"jpg jpeg png gif bmp svg webp mp3 mp4 avi mov pdf zip rar gz tar txt html htm json xml log csv tsv "
    b"doc docx xls xlsx ppt pptx apk exe js css py java md jsonl parquet".split()
)
"""Last parts of dotted names that make a name a file, not a host."""


@dataclass(slots=True)
class Window:
    """A candidate with the bytes of its own document around it: the candidate is ``data[start:end]``."""

    data: bytes
    start: int
    end: int

    @property
    def value(self) -> bytes:
        """The candidate's bytes."""
        return self.data[self.start : self.end]

    def before(self, size: int) -> bytes:
        """Up to ``size`` bytes before the candidate."""
        return self.data[max(0, self.start - size) : self.start]

    def after(self, size: int) -> bytes:
        """Up to ``size`` bytes after the candidate."""
        return self.data[self.end : self.end + size]


class CueWords:
    """Words that say what a number nearby is. A few dozen ``rfind`` cost a fifth of one alternation in ``re``.

    ``text`` holds the words between white space. ASCII words ignore case and begin where a word begins; up to three
    letters, they end there too.
    """

    def __init__(self, text: str) -> None:
        words = text.lower().split()
        self._han = tuple(word.encode() for word in words if not word[0].isascii())
        self._ascii = tuple(word.encode() for word in words if word[0].isascii())

    def __add__(self, other: CueWords) -> CueWords:
        return CueWords(b" ".join((*self._han, *self._ascii, *other._han, *other._ascii)).decode())

    def last_end(self, text: bytes) -> int:
        """Where the last of these words ends in ``text``, or -1. ``text`` is in lower case."""
        last = -1
        for word in self._han:
            at = text.rfind(word)
            if at >= 0 and at + len(word) > last:
                last = at + len(word)
        for word in self._ascii:
            at = text.rfind(word)
            if at >= 0 and at + len(word) > last and _is_word(text, at, at + len(word)):
                last = at + len(word)
        return last


def _is_word(text: bytes, start: int, end: int) -> bool:
    if text[start - 1 : start].isalpha():
        return False
    return end - start > _SHORT_WORD_LENGTH or not text[end : end + 1].isalpha()


def cue(window: Window, wanted: CueWords, unwanted: CueWords | None = None) -> int:
    """1 when a wanted word is the nearest cue of ``window``, -1 when an unwanted one is, else 0.

    A wanted word may stand 48 bytes before or 24 after. An unwanted word counts only before the value and with no
    punctuation between: in ``订单号 17，手机 138…`` it belongs to another number.
    """
    text = window.before(_CUE_BEFORE_BYTES).lower()
    good = wanted.last_end(text)
    bad = unwanted.last_end(text) if unwanted else -1
    if bad >= 0 and _BREAK.search(text, bad):
        bad = -1
    if good >= 0 or bad >= 0:
        return 1 if good >= bad else -1
    return 1 if wanted.last_end(window.after(_CUE_AFTER_BYTES).lower()) >= 0 else 0


def letters_before(window: Window) -> bytes:
    """The run of ASCII letters that touches the candidate on the left, in lower case."""
    start = window.start
    while start > 0 and window.data[start - 1 : start].isalpha():
        start -= 1
    return window.data[start : window.start].lower()


def in_hexadecimal(window: Window) -> bool:
    """Whether the candidate is part of a UUID or of a longer hexadecimal string with letters in it."""
    left, right = window.before(1), window.after(1)
    if not (left.isalnum() or left == b"-" or right.isalnum() or right == b"-"):
        return False
    before, after = window.before(64), window.after(64)
    start = len(before)
    while start > 0 and before[start - 1 : start].isalnum():
        start -= 1
    tail = _WORD_AFTER.match(after)
    word = before[start:] + window.value + (tail.group() if tail else b"")
    if len(word) > len(window.value) and len(word) >= _HEX_WORD_LENGTH and _HEXADECIMAL.fullmatch(word):
        return True
    low, high = len(before), len(before) + window.end - window.start
    return any(found.start() < high and low < found.end() for found in _UUID.finditer(before + window.value + after))


def in_url(window: Window) -> bool:
    """Whether the candidate is part of a URL."""
    before = window.data[: window.start]
    if b"://" not in before and b"www." not in before.lower():
        return False
    return _URL.search(_NOT_IN_TOKEN.split(before)[-1]) is not None


def in_file_name(window: Window) -> bool:
    """Whether the token that holds the candidate ends like a file name."""
    match = _TOKEN_AFTER.match(window.data, window.end)
    return bool(match and b"." in match.group() and match.group().rpartition(b".")[2].lower() in FILE_EXTENSIONS)
