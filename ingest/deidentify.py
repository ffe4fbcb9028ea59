"""De-identification of one batch: every text, identifier and string inside ``meta``, in one scan of one column.

All that belongs to one row is one group, so the same phone number gets the same placeholder in the instruction, the
answer and the metadata of a row, and in every turn of a dialogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from compliance.detect import Detector
from compliance.policy import Policy
from compliance.redact import redact
from ingest.rejects import Reason

_DROPPING = ("drop_document", "reject")
_SHORTEST_VALUE = 5
"""Characters; shorter strings in ``meta`` cannot hold any personal data that is looked for."""
_SHORTEST_NUMBER = 10**9
MAX_DEPTH = 200
"""Containers inside one another. No record of a corpus has so many, and readers of its JSON fail at 250 to 1,000."""
_KEY_DIGITS = 3
"""No number, plate or address that is looked for has fewer digits."""

FINDINGS_SCHEMA = pa.schema(
    [
        pa.field("row", pa.uint64(), nullable=False),
        pa.field("id", pa.large_string(), nullable=False),
        pa.field("field", pa.large_string(), nullable=False),
        pa.field("entity", pa.string(), nullable=False),
        pa.field("start_byte", pa.uint64(), nullable=False),
        pa.field("end_byte", pa.uint64(), nullable=False),
        pa.field("start", pa.uint64(), nullable=False),
        pa.field("end", pa.uint64(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("detector", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
    ]
)
"""Findings of a part. Offsets are those of the normalised field before anything was replaced; no column has a value."""


Trail = tuple[Any, Any] | None
"""Where something lies inside ``meta``: the trail of what holds it, and its key or index there."""


class Leaf(NamedTuple):
    """A string or long integer inside a row's ``meta``, or (``is_key``) a key of an object there."""

    row: int
    text: str
    container: Any
    key: Any
    trail: Trail
    is_key: bool = False

    def put(self, text: str) -> None:
        """Replace it in its container; a number becomes a string, so that the JSON stays valid."""
        if self.is_key:
            items = [(text if name == self.key else name, value) for name, value in self.container.items()]
            self.container.clear()
            self.container.update(items)
        else:
            self.container[self.key] = text

    @property
    def field(self) -> str:
        """Its path from ``meta`` on; keys that could be personal data themselves are shown as ``*``."""
        steps: list[str] = [".{key}" if self.is_key else _step(self.key)]
        trail = self.trail
        while trail is not None:
            trail, key = trail
            steps.append(_step(key))
        return "meta" + "".join(reversed(steps))


def _step(key: Any) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{shown_key(key)}"


class TooDeep(Exception):
    """A value holds more containers inside one another than :data:`MAX_DEPTH`."""


def collect_leaves(value: Any, row: int, trail: Trail, found: list[Leaf], depth: int = 1) -> None:
    """Append what inside ``value`` may hold personal data to ``found``: values before the key that leads to them.

    Raises :class:`TooDeep`.
    """
    if depth > MAX_DEPTH:
        raise TooDeep
    keyed = isinstance(value, dict)
    for key, item in value.items() if keyed else enumerate(value):
        kind = type(item)
        if kind is str:
            if len(item) >= _SHORTEST_VALUE:
                found.append(Leaf(row, item, value, key, trail))
        elif kind is dict or kind is list:
            collect_leaves(item, row, (trail, key), found, depth + 1)
        elif (kind is int or (kind is float and item.is_integer())) and abs(item) >= _SHORTEST_NUMBER:
            found.append(Leaf(row, str(int(item)), value, key, trail))
    if keyed:
        found += [
            Leaf(row, key, value, key, trail, is_key=True)
            for key in value
            if not key.isalpha() and len(key) >= _SHORTEST_VALUE and shown_key(key) != key
        ]


@lru_cache(maxsize=4096)
def shown_key(key: str) -> str:
    """``key`` as it may stand in a field's name: ``*`` when it could be personal data itself."""
    return "*" if "@" in key or "＠" in key or sum(map(str.isdigit, key)) >= _KEY_DIGITS else key


@dataclass(slots=True)
class Redacted:
    """A batch after the policy: texts in their order, findings, and which rows are to be left out, and why.

    ``named`` are the rows whose identifier carried personal data. ``findings`` has :data:`FINDINGS_SCHEMA` without
    ``id``, which the caller knows.
    """

    texts: pa.LargeStringArray
    findings: pa.Table
    dropped: dict[int, Reason]
    named: set[int]


def deidentify(
    texts: pa.LargeStringArray,
    rows: np.ndarray[Any, np.dtype[np.uint64]],
    fields: Sequence[str],
    identifiers: Sequence[str | None],
    metas: Sequence[dict[str, Any]],
    detector: Detector,
    policy: Policy,
) -> Redacted:
    """Detect and redact. ``rows[i]`` and ``fields[i]`` say to which row and field ``texts[i]`` belongs.

    ``metas`` are changed in place. A finding in a key of ``meta`` has the field ``….{key}``.
    """
    found: list[Leaf] = []
    dropped: dict[int, Reason] = {}
    for row, meta in enumerate(metas):
        if meta:
            reached = len(found)
            try:
                collect_leaves(meta, row, None, found)
            except TooDeep:
                del found[reached:]
                dropped[row] = Reason.TOO_DEEP
    named = [(row, name) for row, name in enumerate(identifiers) if name is not None and len(name) >= _SHORTEST_VALUE]
    own = len(texts)
    extra = pa.array([leaf.text for leaf in found] + [name for _, name in named], pa.large_string())
    column = pa.concat_arrays([texts, extra]) if len(extra) else texts
    extra_rows = np.array([leaf.row for leaf in found] + [row for row, _ in named], np.uint64)
    groups = np.concatenate([rows, extra_rows])
    redacted, findings = redact(column, detector.scan(column), policy, pa.array(groups, pa.uint64()))
    result = Redacted(redacted.slice(0, own), FINDINGS_SCHEMA.empty_table().drop_columns(["id"]), dropped, set())
    if not findings.num_rows:
        return result
    places = findings["row"].to_numpy()
    actions = findings["action"].to_pylist()
    owners = groups[places]
    for row, action in zip(owners.tolist(), actions, strict=True):
        if action in _DROPPING:
            dropped.setdefault(row, Reason.POLICY)
    names: list[str] = []
    keys: dict[int, str] = {}
    for place, action in zip(places.tolist(), actions, strict=True):
        if place < own:
            names.append(fields[place])
        elif place < own + len(found):
            leaf = found[place - own]
            names.append(leaf.field)
            if action != "keep" and action not in _DROPPING:
                if leaf.is_key:
                    keys[place] = redacted[place].as_py()
                else:
                    leaf.put(redacted[place].as_py())
        else:
            names.append("id")
            if action != "keep":
                result.named.add(int(groups[place]))
    for place, text in keys.items():
        found[place - own].put(text)
    columns = {
        "row": pa.array(owners, pa.uint64()),
        "field": pa.array(names, pa.large_string()),
        **{name: findings[name] for name in FINDINGS_SCHEMA.names if name not in ("row", "id", "field")},
    }
    result.findings = pa.table(columns, schema=pa.schema([part for part in FINDINGS_SCHEMA if part.name != "id"]))
    return result
