"""Rejects: which records did not become rows, where they lie, and why; never what they said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc


class Reason(StrEnum):
    """Why a record is rejected."""

    UNDECODABLE = "undecodable"
    """Bytes that are not text in the file's encoding."""
    NUL = "nul"
    """A NUL character, raw or escaped."""
    LONE_SURROGATE = "lone_surrogate"
    """Half of a UTF-16 pair, which no UTF-8 can hold."""
    TOO_LONG = "too_long"
    """Longer than 64 MiB."""
    MALFORMED_JSON = "malformed_json"
    NOT_A_NUMBER = "not_a_number"
    """``NaN`` or ``Infinity``, which JSON does not have."""
    MALFORMED_CSV = "malformed_csv"
    WRONG_COLUMNS = "wrong_columns"
    """A CSV record with more or fewer fields than the header."""
    TOO_DEEP = "too_deep"
    """Objects and arrays inside one another, more than 200 of them."""
    BAD_VALUE = "bad_value"
    """A Parquet row with a date or time outside the calendar."""
    TRUNCATED = "truncated"
    """The file ends inside this record."""
    WRONG_SHAPE = "wrong_shape"
    """The record lacks what its file's shape needs."""
    UNKNOWN_SHAPE = "unknown_shape"
    """No record shape is recognised in the file, and the recipe maps none."""
    EMPTY_TEXT = "empty_text"
    """Nothing is left to read in the record."""
    POLICY = "policy"
    """The de-identification policy drops documents with such a finding."""


@dataclass(frozen=True, slots=True)
class Reject:
    """One rejected record. ``line`` counts from 1 (records for JSON arrays and Parquet).

    ``offset`` and ``length`` are bytes in the file, after decompression; both are None where the format has no
    byte position of a record (Parquet).
    """

    line: int
    offset: int | None
    length: int | None
    reason: Reason


_PLACE = pa.schema(
    [
        pa.field("line", pa.uint64(), nullable=False),
        pa.field("offset_bytes", pa.uint64()),
        pa.field("length_bytes", pa.uint64()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
PART_SCHEMA = pa.schema([pa.field("member", pa.uint32(), nullable=False), *_PLACE])
"""Rejects as a part keeps them; ``member`` numbers the part's splits from 0."""

SCHEMA = pa.schema([pa.field("file", pa.large_string(), nullable=False), *_PLACE])
"""Rejects of a run: ``rejects.parquet``."""


def to_table(rejects: Sequence[Reject], member: int) -> pa.Table:
    """``rejects`` of one member as a table of :data:`PART_SCHEMA`, in line order."""
    ordered = sorted(rejects, key=lambda reject: (reject.line, reject.offset or 0))
    columns = [
        pa.array([member] * len(ordered), pa.uint32()),
        pa.array([reject.line for reject in ordered], pa.uint64()),
        pa.array([reject.offset for reject in ordered], pa.uint64()),
        pa.array([reject.length for reject in ordered], pa.uint64()),
        pa.array([reject.reason.value for reject in ordered], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=PART_SCHEMA)


def with_files(table: pa.Table, labels: Sequence[str]) -> pa.Table:
    """A part's rejects in :data:`SCHEMA`; ``labels`` name the file of each member."""
    names = pc.take(pa.array(labels, pa.large_string()), table["member"])
    return pa.Table.from_arrays([names, *(table[name] for name in _PLACE.names)], schema=SCHEMA)
