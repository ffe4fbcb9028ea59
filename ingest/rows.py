"""Canonical rows: the three schemas, and how a batch of records becomes a batch of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128_digest, xxh3_128_hexdigest

from compliance.detect import Detector
from compliance.policy import Policy
from ingest.deidentify import FINDINGS_SCHEMA, Redacted, deidentify
from ingest.normalise import normalise_column
from ingest.readers.batch import Batch
from ingest.rejects import Reason, Reject
from ingest.shapes import INSTRUCTION_FIELDS, Record, Row, Schema

_TURN = pa.struct([pa.field("role", pa.large_string()), pa.field("content", pa.large_string())])
SCHEMAS: dict[Schema, pa.Schema] = {
    "text": pa.schema([("id", pa.large_string()), ("text", pa.large_string()), ("meta", pa.large_string())]),
    "instruction": pa.schema(
        [
            ("id", pa.large_string()),
            *((name, pa.large_string()) for name in INSTRUCTION_FIELDS),
            ("meta", pa.large_string()),
        ]
    ),
    "messages": pa.schema([("id", pa.large_string()), ("messages", pa.list_(_TURN)), ("meta", pa.large_string())]),
}
"""The columns of a release, by canonical schema."""

INDEX_SCHEMA = pa.schema([("key", pa.binary(16)), ("size_bytes", pa.uint64())])
"""For each row: XXH3-128 of its normalised, de-identified text, and its size before compression."""

_BETWEEN_TURNS = "\x1e"
_BETWEEN_FIELDS = "\x1f"
"""Separators inside what is hashed; normalisation removes these characters from texts."""


class Converter(Protocol):
    """What makes rows of records: a known shape, or a recipe's rule."""

    def convert(self, record: Record, /) -> Row | None:
        """The row of ``record``, None when it is not of the shape."""


@dataclass(slots=True)
class RowBatch:
    """Rows in the release's schema with their index and findings, and the records that made none."""

    rows: pa.RecordBatch
    index: pa.RecordBatch
    findings: pa.Table
    removed: pa.Table
    """The findings of rows that the policy left out; there are no rows for them to point to."""
    rejects: list[Reject]


@dataclass(slots=True)
class _Draft:
    """Rows on their way, with the line each stands at."""

    rows: list[Row]
    lines: list[int]


def canonical_meta(meta: Record) -> str:
    """``meta`` as JSON with sorted keys and no spaces; equal objects give equal strings, integers stay exact."""
    if not meta:
        return "{}"
    try:
        return orjson.dumps(meta, option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONEncodeError, TypeError):
        return json.dumps(meta, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    begun = time.process_time()
    yield
    seconds[stage] += time.process_time() - begun


class RowMaker:
    """Makes rows of the records of one file. ``source`` is the file's SHA-256, from which missing ids are derived."""

    def __init__(
        self, source: str, schema: Schema, converter: Converter | None, detector: Detector, policy: Policy
    ) -> None:
        self._source = source
        self._schema: Schema = schema
        self._converter = converter
        self._detector = detector
        self._policy = policy

    def make(self, batch: Batch, *, first_row: int, seconds: dict[str, float]) -> RowBatch:
        """Rows of ``batch``; findings count rows from ``first_row``. Work time is added to ``seconds`` by stage."""
        refused: list[Reject] = []
        with _timed(seconds, "map"):
            draft = self._convert(batch, refused)
        with _timed(seconds, "normalise"):
            texts, owners, fields = self._columns(draft)
            texts, _ = normalise_column(texts)
            kept = self._readable(texts, owners, draft, refused)
            if len(kept) < len(draft.rows):
                texts, owners, fields = self._narrow(draft, texts, owners, fields, kept)
        with _timed(seconds, "de-identify"):
            names = [row.identifier for row in draft.rows]
            metas = [row.meta for row in draft.rows]
            found = deidentify(texts, owners, fields, names, metas, self._detector, self._policy)
            texts, removed = self._drop(draft, found, owners, fields, refused)
        with _timed(seconds, "columns"):
            identifiers = pa.array(self._identifiers(draft), pa.large_string())
            meta = pa.array([canonical_meta(row.meta) for row in draft.rows], pa.large_string())
            rows = self._assemble(draft, identifiers, texts, meta)
        with _timed(seconds, "sign"):
            index = self._index(draft, texts, meta)
        findings = _with_ids(found, identifiers, first_row)
        return RowBatch(rows, index, findings, removed, refused)

    def _convert(self, batch: Batch, refused: list[Reject]) -> _Draft:
        draft = _Draft([], [])
        if self._converter is None:
            refused += [Reject(line, None, None, Reason.UNKNOWN_SHAPE) for line in batch.lines]
            return draft
        convert = self._converter.convert
        for index, record in enumerate(batch.records):
            row = convert(record) if isinstance(record, dict) else None
            if row is None:
                refused.append(Reject(batch.lines[index], None, None, Reason.WRONG_SHAPE))
                continue
            if batch.keys is not None and row.identifier is None:
                row.identifier = batch.keys[index]
            draft.rows.append(row)
            draft.lines.append(batch.lines[index])
        return draft

    def _columns(self, draft: _Draft) -> tuple[pa.LargeStringArray, Any, Sequence[str]]:
        """All texts in one column, the row of each, and the field of each.

        ``instruction`` goes field by field, so that its three columns are slices of the one; ``messages`` turn by
        turn. In both, the texts of one row come in reading order.
        """
        count = len(draft.rows)
        if self._schema == "messages":
            texts = [text for row in draft.rows for text in row.texts]
            owners = np.repeat(np.arange(count, dtype=np.uint64), [len(row.texts) for row in draft.rows])
            return pa.array(texts, pa.large_string()), owners, _TurnNames(draft.rows)
        width = 1 if self._schema == "text" else len(INSTRUCTION_FIELDS)
        if width == 1:
            texts = [row.texts[0] for row in draft.rows]
        else:
            texts = [row.texts[index] for index in range(width) for row in draft.rows]
        owners = np.tile(np.arange(count, dtype=np.uint64), width)
        return pa.array(texts, pa.large_string()), owners, _FieldNames(self._schema, count)

    def _readable(self, texts: pa.LargeStringArray, owners: Any, draft: _Draft, refused: list[Reject]) -> list[int]:
        """The rows that say anything; the others are rejected."""
        filled = pc.invert(pc.match_substring_regex(texts, r"\A[\s\x{3000}\x{a0}]*\z")).to_numpy(zero_copy_only=False)
        heard = np.zeros(len(draft.rows), dtype=np.bool_)
        heard[owners[filled]] = True
        refused += [Reject(draft.lines[row], None, None, Reason.EMPTY_TEXT) for row in np.flatnonzero(~heard).tolist()]
        return [int(row) for row in np.flatnonzero(heard)]

    def _narrow(
        self, draft: _Draft, texts: pa.LargeStringArray, owners: Any, fields: Sequence[str], kept: list[int]
    ) -> tuple[pa.LargeStringArray, Any, Sequence[str]]:
        """Texts, owners and fields of the ``kept`` rows alone; ``draft`` is narrowed in place."""
        chosen = np.isin(owners, kept)
        narrowed = texts.filter(pa.array(chosen))
        draft.rows[:] = [draft.rows[row] for row in kept]
        draft.lines[:] = [draft.lines[row] for row in kept]
        count = len(kept)
        renumbered = np.searchsorted(np.array(kept, np.uint64), owners[chosen]).astype(np.uint64)
        names: Sequence[str] = (
            _TurnNames(draft.rows) if self._schema == "messages" else _FieldNames(self._schema, count)
        )
        return narrowed, renumbered, names

    def _drop(
        self, draft: _Draft, found: Redacted, owners: Any, fields: Sequence[str], refused: list[Reject]
    ) -> tuple[pa.LargeStringArray, pa.Table]:
        """Apply the decisions about whole rows, documents to leave out and identifiers to derive.

        Gives the texts that stay and the findings of those that go.
        """
        for row in found.named:
            draft.rows[row].identifier = None
        if not found.dropped:
            return found.texts, found.findings.slice(0, 0)
        refused += [Reject(draft.lines[row], None, None, reason) for row, reason in sorted(found.dropped.items())]
        kept = [row for row in range(len(draft.rows)) if row not in found.dropped]
        places = found.findings["row"].to_numpy()
        staying = np.isin(places, kept)
        renumbered = np.searchsorted(np.array(kept, np.uint64), places[staying]).astype(np.uint64)
        findings, removed = found.findings.filter(pa.array(staying)), found.findings.filter(pa.array(~staying))
        found.findings = findings.set_column(0, findings.schema.field(0), pa.array(renumbered, pa.uint64()))
        texts, _, _ = self._narrow(draft, found.texts, owners, fields, kept)
        return texts, removed

    def _identifiers(self, draft: _Draft) -> list[str]:
        return [
            row.identifier if row.identifier is not None else xxh3_128_hexdigest(f"{self._source}:{line}".encode())
            for row, line in zip(draft.rows, draft.lines, strict=True)
        ]

    def _assemble(
        self, draft: _Draft, identifiers: pa.Array, texts: pa.LargeStringArray, meta: pa.Array
    ) -> pa.RecordBatch:
        count = len(draft.rows)
        if self._schema == "messages":
            roles = pa.array([role for row in draft.rows for role in row.roles or ()], pa.large_string())
            offsets = np.concatenate([[0], np.cumsum([len(row.texts) for row in draft.rows])]).astype(np.int32)
            turns = pa.StructArray.from_arrays([roles, texts], fields=list(_TURN))
            columns = [identifiers, pa.ListArray.from_arrays(pa.array(offsets), turns), meta]
        else:
            width = 1 if self._schema == "text" else len(INSTRUCTION_FIELDS)
            columns = [identifiers, *(texts.slice(index * count, count) for index in range(width)), meta]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[self._schema])

    def _index(self, draft: _Draft, texts: pa.LargeStringArray, meta: pa.Array) -> pa.RecordBatch:
        count = len(draft.rows)
        lengths = np.asarray(pc.binary_length(texts)).astype(np.uint64)
        if self._schema == "messages":
            values = texts.to_pylist()
            borders = np.concatenate([[0], np.cumsum([len(row.texts) for row in draft.rows])]).astype(np.int64).tolist()
            keys = [
                xxh3_128_digest(
                    _BETWEEN_TURNS.join(
                        f"{role}{_BETWEEN_FIELDS}{text}"
                        for role, text in zip(row.roles or (), values[borders[at] : borders[at + 1]], strict=True)
                    ).encode()
                )
                for at, row in enumerate(draft.rows)
            ]
            sizes = np.add.reduceat(lengths, borders[:-1]) if count else lengths
        elif self._schema == "instruction":
            parts = [texts.slice(index * count, count).to_pylist() for index in range(len(INSTRUCTION_FIELDS))]
            keys = [xxh3_128_digest(_BETWEEN_FIELDS.join(fields).encode()) for fields in zip(*parts, strict=True)]
            sizes = lengths.reshape(len(INSTRUCTION_FIELDS), count).sum(axis=0)
        else:
            keys = _digests(texts)
            sizes = lengths
        total = sizes + np.asarray(pc.binary_length(meta)).astype(np.uint64)
        return pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.binary(16)), pa.array(total, pa.uint64())], schema=INDEX_SCHEMA
        )


def _digests(texts: pa.LargeStringArray) -> list[bytes]:
    """XXH3-128 of each text's UTF-8, straight from the column's buffer."""
    if not len(texts):
        return []
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, 8 * texts.offset).tolist()
    data = memoryview(texts.buffers()[2] or b"")
    return [xxh3_128_digest(data[offsets[row] : offsets[row + 1]]) for row in range(len(texts))]


def _with_ids(found: Redacted, identifiers: pa.Array, first_row: int) -> pa.Table:
    """Findings with the document's id, and rows counted in the part."""
    rows = found.findings["row"]
    ids = pc.take(identifiers, rows)
    numbered = pc.add(rows, pa.scalar(first_row, pa.uint64()))
    columns = [numbered, ids, *(found.findings[name] for name in FINDINGS_SCHEMA.names[2:])]
    return pa.table(columns, schema=FINDINGS_SCHEMA).sort_by([("row", "ascending")])


class _FieldNames(Sequence[str]):
    """The field of each text when texts go field by field."""

    def __init__(self, schema: Schema, count: int) -> None:
        self._names = ("text",) if schema == "text" else INSTRUCTION_FIELDS
        self._count = count

    def __len__(self) -> int:
        return len(self._names) * self._count

    def __getitem__(self, index: Any) -> Any:
        return self._names[index // self._count]


class _TurnNames(Sequence[str]):
    """The field of each text when texts go turn by turn; names are made only for those asked for."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._starts = np.concatenate([[0], np.cumsum([len(row.texts) for row in rows])]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: Any) -> Any:
        row = int(np.searchsorted(self._starts, index, "right")) - 1
        return f"messages[{index - int(self._starts[row])}].content"
