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
_BREAK = re.compile("[,;!?\n\t]|，|。|；|！|？|、".encode())
_TOKEN_BEFORE = re.compile(rb"[0-9A-Za-z_\-./:%=?&#~+@]*\Z")
_TOKEN_AFTER = re.compile(rb"[0-9A-Za-z_\-./:%=?&#~+@]*")
_WORD_BEFORE = re.compile(rb"[0-9A-Za-z]*\Z")
_WORD_AFTER = re.compile(rb"[0-9A-Za-z]*")
_LETTERS_BEFORE = re.compile(rb"[A-Za-z]+\Z")
_UUID = re.compile(rb"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}")
_HEXADECIMAL = re.compile(rb"(?:0[xX])?[0-9A-Fa-f]+")
_URL = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://|(?<![A-Za-z0-9])www\.", re.IGNORECASE)
_HEX_WORD_LENGTH = 16
_SHORT_WORD_LENGTH = 3

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


def words(text: str) -> re.Pattern[bytes]:
    """One pattern for any of the cue words in ``text``, which stand between white space; ``_`` is an optional space.

    ASCII words ignore case and begin where a word begins; up to three letters, they end there too.
    """
    patterns: list[bytes] = []
    for word in text.split():
        pattern = word.encode().replace(b"_", b"[ _]?")
        if word[0].isascii():
            pattern = rb"(?<![A-Za-z])" + pattern + (rb"(?![A-Za-z])" if len(word) <= _SHORT_WORD_LENGTH else b"")
        patterns.append(pattern)
    return re.compile(b"|".join(patterns), re.IGNORECASE)


def _end_of_last(pattern: re.Pattern[bytes], text: bytes) -> int:
    end = -1
    for match in pattern.finditer(text):
        end = match.end()
    return end


def cue(window: Window, wanted: re.Pattern[bytes], unwanted: re.Pattern[bytes] | None = None) -> int:
    """1 when a wanted word is the nearest cue of ``window``, -1 when an unwanted one is, else 0.

    A wanted word may stand 48 bytes before or 24 after. An unwanted word counts only before the value and with no
    punctuation between: in ``订单号 17，手机 138…`` it belongs to another number.
    """
    text = window.before(_CUE_BEFORE_BYTES)
    good = _end_of_last(wanted, text)
    bad = _end_of_last(unwanted, text) if unwanted else -1
    if bad >= 0 and _BREAK.search(text, bad):
        bad = -1
    if good >= 0 or bad >= 0:
        return 1 if good >= bad else -1
    return 1 if wanted.search(window.after(_CUE_AFTER_BYTES)) else 0


def letters_before(window: Window) -> bytes:
    """The run of ASCII letters that touches the candidate on the left, in lower case."""
    match = _LETTERS_BEFORE.search(window.before(32))
    return match.group().lower() if match else b""


def in_hexadecimal(window: Window) -> bool:
    """Whether the candidate is part of a UUID or of a longer hexadecimal string with letters in it."""
    before, after = window.before(64), window.after(64)
    left, right = _WORD_BEFORE.search(before), _WORD_AFTER.match(after)
    word = (left.group() if left else b"") + window.value + (right.group() if right else b"")
    if len(word) > len(window.value) and len(word) >= _HEX_WORD_LENGTH and _HEXADECIMAL.fullmatch(word):
        return True
    low, high = len(before), len(before) + window.end - window.start
    return any(found.start() < high and low < found.end() for found in _UUID.finditer(before + window.value + after))


def in_url(window: Window) -> bool:
    """Whether the candidate is part of a URL."""
    match = _TOKEN_BEFORE.search(window.data[: window.start])
    return bool(match and _URL.search(match.group()))


def in_file_name(window: Window) -> bool:
    """Whether the token that holds the candidate ends like a file name."""
    match = _TOKEN_AFTER.match(window.data, window.end)
    return bool(match and b"." in match.group() and match.group().rpartition(b".")[2].lower() in FILE_EXTENSIONS)
