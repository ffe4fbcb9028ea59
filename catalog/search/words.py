"""The tokeniser: one for documents and queries, whatever the database.

Text is NFKC-normalised and case-folded. Runs of ASCII letters and digits are words. A run of Chinese, Japanese or
Korean characters has no spaces to cut at, so it becomes its overlapping pairs (人工智能 → 人工 工智 智能), and its
last character by itself, so that a query of one character finds it anywhere as a prefix.
"""

from __future__ import annotations

import re
import unicodedata

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_RUN = re.compile(f"[{_CJK}]+|[^\\W_{_CJK}]+")
_IS_CJK = re.compile(f"[{_CJK}]")


def _runs(text: str) -> list[str]:
    return _RUN.findall(unicodedata.normalize("NFKC", text).casefold())


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]


def document_words(text: str) -> list[str]:
    """The words under which a document with this text is found."""
    words: list[str] = []
    for run in _runs(text):
        words.extend([*_pairs(run), run[-1]] if _IS_CJK.match(run) else [run])
    return words


def query_terms(text: str) -> list[str]:
    """Terms that must all match, as FTS5 writes them; the last word and single characters match as prefixes."""
    terms: list[str] = []
    runs = _runs(text)
    for run in runs:
        if not _IS_CJK.match(run):
            terms.append(f'"{run}"*' if run is runs[-1] else f'"{run}"')
        elif len(run) == 1:
            terms.append(f'"{run}"*')
        else:
            terms.extend(f'"{pair}"' for pair in _pairs(run))
    return terms
