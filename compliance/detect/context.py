"""What stands around a candidate: cue words, and machine-made text such as URLs and hexadecimal strings.

Windows are UTF-8 bytes. ``\\b`` and ``\\d`` are never used, because their meaning beside Chinese is not what one
expects.
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

_BREAK = re.compile("[,;!?\n\t，。；！？、]")
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
    """Words that say what a number nearby is, given between white space in one text.

    ASCII words ignore case and begin where a word begins; up to three letters, they end there too. Only places with a
    word's first character are looked at: an alternation of dozens of words in ``re`` takes ten times as long.
    """

    def __init__(self, text: str) -> None:
        self._words = tuple(text.lower().split())
        self._by_beginning: dict[str, list[str]] = {}
        for word in self._words:
            self._by_beginning.setdefault(word[0], []).append(word)
        self._beginnings = re.compile("[" + re.escape("".join(self._by_beginning)) + "]")

    def __add__(self, other: CueWords) -> CueWords:
        return CueWords(" ".join(self._words + other._words))

    def last_end(self, text: str) -> int:
        """Where the last of these words ends in ``text`` (in lower case), or -1."""
        last = -1
        for match in self._beginnings.finditer(text):
            start = match.start()
            for word in self._by_beginning[match.group()]:
                end = start + len(word)
                if end > last and text.startswith(word, start) and _is_word(text, start, end):
                    last = end
        return last


def _is_word(text: str, start: int, end: int) -> bool:
    if not text[start].isascii():
        return True
    if _is_ascii_letter(text[start - 1 : start]):
        return False
    return end - start > _SHORT_WORD_LENGTH or not _is_ascii_letter(text[end : end + 1])


def _is_ascii_letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


def _readable(raw: bytes) -> str:
    """``raw``, perhaps cut inside a character, as text in lower case."""
    return raw.decode("utf-8", "ignore").lower()


def cue(window: Window, wanted: CueWords, unwanted: CueWords | None = None) -> int:
    """1 when a wanted word is the nearest cue of ``window``, -1 when an unwanted one is, else 0.

    A wanted word may stand 48 bytes before or 24 after. An unwanted word counts only before the value and with no
    punctuation between: in ``订单号 17，手机 138…`` it belongs to another number.
    """
    text = _readable(window.before(_CUE_BEFORE_BYTES))
    good = wanted.last_end(text)
    bad = unwanted.last_end(text) if unwanted else -1
    if bad >= 0 and _BREAK.search(text, bad):
        bad = -1
    if good >= 0 or bad >= 0:
        return 1 if good >= bad else -1
    return 1 if wanted.last_end(_readable(window.after(_CUE_AFTER_BYTES))) >= 0 else 0


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
