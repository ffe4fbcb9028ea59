"""The bytes that are scanned: documents between separators, with full-width forms folded to ASCII where needed.

A *shadow* has fewer bytes than its documents (``１`` takes three bytes, ``1`` one) and not their invisible characters
(a zero-width space inside a number hides it from no reader), so that offsets go through
:meth:`Shadow.original_starts` and :meth:`Shadow.original_ends`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

SEPARATOR = b"\xff"
"""Stands before and after every document. 0xFF never occurs in UTF-8, and no pattern's values contain it."""

Positions = npt.NDArray[np.int64]

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_SPACES = "\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_DOTS = "\u2022\u2027\u2219\u22c5\u25cf\u30fb\uff65\uff0e"
INVISIBLE = (
    "\u00ad\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    "\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069\ufeff"
)
"""Characters without width: a shadow does not have them."""
_LETTERS_AND_DIGITS = [*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B)]


_NOTHING = "\0"
"""Stands in for what is left out, while a shadow is made."""


@cache
def foldings() -> dict[str, str]:
    """Every folded character with its ASCII stand-in: full-width forms, multiplication sign, dashes, spaces, dots."""
    table = {chr(code): chr(code - 0xFEE0) for code in [*_LETTERS_AND_DIGITS, 0xFF0B, 0xFF20, 0xFF3F]}
    table["×"] = "X"
    table |= dict.fromkeys(_DASHES, "-") | dict.fromkeys(_SPACES, " ") | dict.fromkeys(_DOTS, ".")
    return table


@cache
def _folding_keys(width: int) -> tuple[Positions, npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """For characters of ``width`` UTF-8 bytes: sorted big-endian keys, the ASCII byte of each, and their lead bytes."""
    table = {**foldings(), **dict.fromkeys(INVISIBLE, _NOTHING)}
    encoded = sorted((char.encode(), ord(stand_in)) for char, stand_in in table.items())
    chosen = [(int.from_bytes(raw), ascii_byte) for raw, ascii_byte in encoded if len(raw) == width]
    keys = np.array([key for key, _ in chosen], np.int64)
    stand_ins = np.array([ascii_byte for _, ascii_byte in chosen], np.uint8)
    return keys, stand_ins, np.unique((keys >> (8 * (width - 1))).astype(np.uint8))


@dataclass(frozen=True, slots=True)
class Shadow:
    """Scannable bytes of some documents.

    ``buffer`` holds them; document ``i`` is row ``rows[i]`` of the column and takes the bytes
    ``starts[i]:ends[i]`` of the buffer, with separators outside.
    """

    buffer: memoryview
    rows: Positions
    starts: Positions
    ends: Positions
    source: Shadow | None = None
    """The documents as they are, None when this is them."""
    folded_at: Positions = field(default_factory=lambda: np.empty(0, np.int64))
    """Twice the buffer position of each folded character, plus one; twice that of what follows a left-out one."""
    folded_away: Positions = field(default_factory=lambda: np.zeros(1, np.int64))
    """How many bytes the first n of them lost, for n = 0 … len(folded_at)."""

    def original_starts(self, positions: Positions, documents: Positions) -> Positions:
        """Byte offsets, inside their own unfolded documents, of the characters at buffer ``positions``."""
        return self._original(positions, 2 * positions + 1, documents)

    def original_ends(self, positions: Positions, documents: Positions) -> Positions:
        """Byte offsets, inside their own unfolded documents, behind the characters that end at ``positions``."""
        return self._original(positions, 2 * positions, documents)

    def _original(self, positions: Positions, keys: Positions, documents: Positions) -> Positions:
        starts = self.starts[documents]
        if not len(self.folded_at):
            return positions - starts
        lost = self.folded_away[np.searchsorted(self.folded_at, keys)]
        return positions - starts + lost - self.folded_away[np.searchsorted(self.folded_at, 2 * starts)]


def joined(column: pa.LargeStringArray, rows: Positions) -> Shadow:
    """The documents of ``column``, unchanged, each between two separators. Nulls count as empty documents."""
    binary = column.cast(pa.large_binary())
    empty, separator = (pa.scalar(value, pa.large_binary()) for value in (b"", SEPARATOR))
    fenced: Any = pc.binary_join_element_wise(
        empty, binary, empty, separator, null_handling="replace", null_replacement=b""
    )
    _, offsets, values = fenced.buffers()
    borders = np.frombuffer(offsets, np.int64, len(fenced) + 1, 8 * fenced.offset)
    return Shadow(memoryview(values or b""), rows, borders[:-1] + 1, borders[1:] - 1)


def folded(plain: Shadow) -> Shadow:
    """``plain`` with every character of :func:`foldings` replaced by its ASCII stand-in, and without invisible ones."""
    source = np.frombuffer(plain.buffer, np.uint8)
    target, keep = source.copy(), np.ones(len(source), np.bool_)
    found: list[Positions] = []
    bytes_lost: list[Positions] = []
    for width in (2, 3):
        keys, stand_ins, leads = _folding_keys(width)
        is_lead = np.zeros(256, np.bool_)
        is_lead[leads] = True
        at = np.flatnonzero(is_lead[source]).astype(np.int64)
        key = np.zeros(len(at), np.int64)
        for step in range(width):
            key = (key << 8) | source[at + step]
        slot = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        hit = keys[slot] == key
        at, stand_in = at[hit], stand_ins[slot[hit]]
        target[at] = stand_in
        left_out = stand_in == ord(_NOTHING)
        keep[at[left_out]] = False
        for step in range(1, width):
            keep[at + step] = False
        found.append(at)
        bytes_lost.append(np.where(left_out, width, width - 1).astype(np.int64))
    positions, lost = np.concatenate(found), np.concatenate(bytes_lost)
    order = np.argsort(positions, kind="stable")
    positions, total = positions[order], np.concatenate([[0], np.cumsum(lost[order])]).astype(np.int64)

    def moved(borders: Positions) -> Positions:
        return borders - total[np.searchsorted(positions, borders)]

    marks = 2 * moved(positions) + keep[positions]
    return Shadow(
        memoryview(target[keep].data), plain.rows, moved(plain.starts), moved(plain.ends), plain, marks, total
    )  # fmt: skip
