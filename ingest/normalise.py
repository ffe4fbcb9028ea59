"""Normalisation that leaves Chinese as it was written.

Done to every text: line ends become ``\\n``; C0 and C1 control characters other than tab and newline go, and so do
zero-width characters without meaning in the text (U+FEFF, U+200B, U+2060, U+00AD); spaces and tabs at the end of a line
go; empty lines before and after the text go.

Not done, because each changes what a Chinese text says or how it is set: no NFC (it rewrites compatibility ideographs
such as U+F900 to other code points), no NFKC (㎡ would become m2, ① 1, full-width punctuation ASCII), no change of
quotes or punctuation. ZWJ and ZWNJ stay, because emoji and other scripts need them, and so does U+3000 at the beginning
of a line, which is the Chinese paragraph indent. U+2028, U+2029 and U+0085 stay as they are.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_LINE_END = re.compile("\r\n?")
_JUNK = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]")
_TRAILING = re.compile("[ \t\u00a0\u3000]+(?=\n|$)")
_OUTER = re.compile(r"\A\n+|\n+\Z")

_NEEDS_WORK = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x{84}\x{86}-\x{9f}\x{ad}\x{200b}\x{2060}\x{feff}]"
    r"|[ \t\x{a0}\x{3000}]\n|[ \t\x{a0}\x{3000}]\z|\A\n|\n\z"
)
"""RE2: whether a text would be changed at all."""


def normalise_text(text: str) -> str:
    """One text, normalised as this module says."""
    text = _LINE_END.sub("\n", text)
    text = _JUNK.sub("", text)
    text = _TRAILING.sub("", text)
    return _OUTER.sub("", text)


def normalise_column(column: pa.LargeStringArray) -> tuple[pa.LargeStringArray, dict[int, str]]:
    """A column of texts, normalised, and the texts that changed by row; only those became Python strings."""
    mask = pc.match_substring_regex(column, _NEEDS_WORK)
    rows = pc.indices_nonzero(mask).to_pylist()
    if not rows:
        return column, {}
    changed = {row: normalise_text(column[row].as_py()) for row in rows}
    return pc.replace_with_mask(column, mask, pa.array(list(changed.values()), pa.large_string())), changed
