"""Findings applied to a text column: placeholders, masks, dropped documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compliance.detect.shadow import INVISIBLE, foldings
from compliance.findings import ACTED_SCHEMA
from compliance.policy import Action, Policy

Column: TypeAlias = "pa.Array | pa.ChunkedArray"

PLACEHOLDERS: Mapping[str, str] = MappingProxyType(
    {
        "resident_id": "身份证号",
        "mobile": "手机号",
        "email": "邮箱",
        "bank_card": "银行卡号",
        "uscc": "统一社会信用代码",
        "ipv4": "IP地址",
        "plate": "车牌号",
    }
)
"""What a placeholder calls an entity: ``<手机号_1>``."""

_ENTITY_OF = {name: entity for entity, name in PLACEHOLDERS.items()}
_PLACEHOLDER_SHAPE = f"<({'|'.join(PLACEHOLDERS.values())})_([0-9]{{1,9}})>"
_PLACEHOLDER = re.compile(_PLACEHOLDER_SHAPE)

_FOLDINGS = str.maketrans({**foldings(), **dict.fromkeys(INVISIBLE)})
_NOT_ALNUM = re.compile(r"[^0-9A-Za-z]")
_AT_WORD = re.compile(r"\s?[\[({<]\s?(?:at|AT|@|#)\s?[\])}>]\s?")
_DOT_WORD = re.compile(r"\s?[\[({<]\s?(?:dot|DOT|\.)\s?[\])}>]\s?")
_PREFIX = re.compile(r"(?:00)?86(?=1\d{10}\Z)")
_PLATE_GAP = re.compile(r"[ .·\-]")


def normalised(entity: str, value: str) -> str:
    """``value`` in the one spelling that all spellings of the same thing share (separators, width, case, +86)."""
    folded = value.translate(_FOLDINGS)
    match entity:
        case "mobile":
            return _PREFIX.sub("", _NOT_ALNUM.sub("", folded))
        case "email":
            return _DOT_WORD.sub(".", _AT_WORD.sub("@", folded)).lower()
        case "ipv4":
            return folded
        case "plate":
            return _PLATE_GAP.sub("", folded).upper()
        case _:
            return _NOT_ALNUM.sub("", folded).upper()


def _stars(value: str, first: int, last: int) -> str:
    """``value`` with its letters and digits starred except the first and last few; separators stay."""
    places = [index for index, char in enumerate(value) if char.isalnum()]
    hidden = set(places[first : max(first, len(places) - last)])
    return "".join("*" if index in hidden else char for index, char in enumerate(value))


def _mask_mobile(value: str) -> str:
    digits = sum(char.isalnum() for char in value)
    return _stars(value, digits - 8, 4)


def _mask_email(value: str) -> str:
    at = _AT_WORD.search(value) or re.search(r"[@＠]", value)
    local_length = at.start() if at else len(value)
    return value[:1] + "***" + value[local_length:]


def _mask_ipv4(value: str) -> str:
    first, second, *_ = value.translate(_FOLDINGS).split(".")
    return f"{first}.{second}.*.*"


_MASKS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "resident_id": lambda value: _stars(value, 1, 1),
        "mobile": _mask_mobile,
        "email": _mask_email,
        "bank_card": lambda value: _stars(value, 0, 4),
        "uscc": lambda value: _stars(value, 2, 2),
        "ipv4": _mask_ipv4,
        "plate": lambda value: _stars(value, 2, 1),
    }
)


def masked(entity: str, value: str) -> str:
    """``value`` with its middle hidden, such as ``138****5678``; too little stays to find it again."""
    return _MASKS[entity](value)


class _Numbers:
    """Placeholders, numbered within a group in the order in which values first appear.

    Numbering goes on behind the placeholders that a group's texts hold already: a second person must not become the
    same as the first in a text that was de-identified in part before.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str, str], int] = {}
        self._used: dict[tuple[int, str], int] = {}

    def keep_clear_of(self, group: int, text: str) -> None:
        """Note the placeholders in a text of ``group`` as it was before."""
        for match in _PLACEHOLDER.finditer(text):
            key = (group, _ENTITY_OF[match[1]])
            self._used[key] = max(self._used.get(key, 0), int(match[2]))

    def placeholder(self, group: int, entity: str, value: str) -> str:
        key = (group, entity, normalised(entity, value))
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = self._used[group, entity] = self._used.get((group, entity), 0) + 1
        return f"<{PLACEHOLDERS[entity]}_{number}>"


def redact(
    column: Column, findings: pa.Table, policy: Policy, groups: pa.UInt64Array | None = None
) -> tuple[Column, pa.Table]:
    """``column`` with ``policy`` applied, and ``findings`` with the ``action`` that each finding got.

    ``findings`` are those of :meth:`compliance.detect.Detector.scan` on this very column. ``groups`` numbers the
    dialogue of each row: placeholders are numbered within it, and equal values (after :func:`normalised`) share a
    number, behind those of placeholders that are there already; by default each row is its own group. A row with a
    ``drop_document`` or ``reject`` finding becomes null, so that a caller who forgets to leave it out publishes
    nothing. Type and chunks of the column stay; rows without an action are copied by Arrow, not through Python.
    """
    actions: list[Action] = [
        policy.decide(entity, score)
        for entity, score in zip(findings["entity"].to_pylist(), findings["score"].to_pylist(), strict=True)
    ]
    acted = findings.append_column(ACTED_SCHEMA.field("action"), pa.array(actions, pa.string()))
    chosen = pa.array([action != "keep" for action in actions], pa.bool_())
    changed = acted.filter(chosen)
    if not changed.num_rows:
        return column, acted
    rows = changed["row"].to_numpy()
    changed_rows, first_finding = np.unique(rows, return_index=True)
    texts = column.take(pa.array(changed_rows)).to_pylist()
    numbers = _Numbers()
    row_groups = changed_rows if groups is None else groups.take(pa.array(changed_rows)).to_numpy()
    for group, text in _with_placeholders(column, changed_rows, groups):
        numbers.keep_clear_of(group, text)
    borders = [*first_finding.tolist(), len(rows)]
    spans = changed.select(["start", "end", "entity", "action"]).to_pylist()
    renewed = [
        _rewritten(text, spans[borders[index] : borders[index + 1]], int(row_groups[index]), numbers)
        for index, text in enumerate(texts)
    ]
    mask = np.zeros(len(column), np.bool_)
    mask[changed_rows] = True
    return _with_rows(column, mask, pa.array(renewed, column.type)), acted


def _with_placeholders(
    column: Column, changed_rows: np.ndarray[tuple[int], np.dtype[np.uint64]], groups: pa.UInt64Array | None
) -> Iterator[tuple[int, str]]:
    """(group, text) of each text with a placeholder in it, among all texts of the groups of ``changed_rows``."""
    if groups is None:
        rows = row_groups = changed_rows
    else:
        all_groups = groups.to_numpy()
        rows = np.flatnonzero(np.isin(all_groups, all_groups[changed_rows])).astype(np.uint64)
        row_groups = all_groups[rows]
    texts = column.take(pa.array(rows))
    for index in pc.indices_nonzero(pc.match_substring_regex(texts, _PLACEHOLDER_SHAPE)).to_pylist():
        yield int(row_groups[index]), texts[index].as_py()


def _rewritten(text: str, spans: list[dict[str, object]], group: int, numbers: _Numbers) -> str | None:
    """One document with its spans, ascending and disjoint, replaced; None when it is to go altogether."""
    if any(span["action"] in ("drop_document", "reject") for span in spans):
        return None
    pieces: list[str] = []
    at = 0
    for span in spans:
        start, end, entity = int(str(span["start"])), int(str(span["end"])), str(span["entity"])
        value = text[start:end]
        new = masked(entity, value) if span["action"] == "mask" else numbers.placeholder(group, entity, value)
        pieces += (text[at:start], new)
        at = end
    return "".join((*pieces, text[at:]))


def _with_rows(column: Column, mask: np.ndarray[tuple[int], np.dtype[np.bool_]], values: pa.Array) -> Column:
    if not isinstance(column, pa.ChunkedArray):
        return pc.replace_with_mask(column, pa.array(mask), values)
    chunks: list[pa.Array] = []
    row = used = 0
    for chunk in column.chunks:
        part = mask[row : row + len(chunk)]
        count = int(part.sum())
        chunks.append(pc.replace_with_mask(chunk, pa.array(part), values.slice(used, count)) if count else chunk)
        row, used = row + len(chunk), used + count
    return pa.chunked_array(chunks, column.type)
