"""Parquet: ranges of row groups, in batches that stay small in memory."""

from __future__ import annotations

import base64
import datetime
import decimal
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ingest.readers.batch import BATCH_BYTES, MAX_RECORD_BYTES, Batch, distinct_names
from ingest.readers.json_values import holds_nul
from ingest.rejects import Reason, Reject
from openshelf.errors import OpenshelfError


class UnreadableParquet(OpenshelfError):
    """The file is damaged, encrypted or not Parquet."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            "unreadable_file",
            f"{path} is not a readable Parquet file (damaged, cut short or encrypted)",
            "Fetch the file again, or leave it out.",
        )


def row_groups(path: Path) -> list[tuple[int, int]]:
    """(rows, bytes) of every row group of the file at ``path``."""
    try:
        with pq.ParquetFile(path) as file:
            groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
            return [(group.num_rows, group.total_byte_size) for group in groups]
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise UnreadableParquet(path) from error


def read_parquet(path: Path, first_group: int, last_group: int, first_row: int) -> Iterator[Batch]:
    """Rows of the groups ``first_group`` to ``last_group`` (exclusive); ``first_row`` is the number of the first."""
    number = first_row
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            plain = not any(_is_odd(field.type) for field in file.schema_arrow)
            names = distinct_names(file.schema_arrow.names)
            for group in range(first_group, last_group):
                about = file.metadata.row_group(group)
                per_row = max(1, about.total_byte_size // max(1, about.num_rows))
                rows = max(1, min(65_536, BATCH_BYTES // per_row))
                for record_batch in file.iter_batches(batch_size=rows, row_groups=[group]):
                    yield _to_batch(record_batch.rename_columns(names), number, plain=plain)
                    number += record_batch.num_rows
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise UnreadableParquet(path) from error


def _to_batch(records: pa.RecordBatch, number: int, *, plain: bool) -> Batch:
    batch = Batch(size_bytes=records.nbytes)
    # Looked at before Python strings are made of it: a row may have gigabytes.
    large = records.nbytes > MAX_RECORD_BYTES
    rows = _rows_one_by_one(records) if large else _rows(records)
    # One search over the buffers spares a walk over every record.
    suspicious = large or any(b"\0" in buffer for buffer in _string_buffers(records))
    for index, row in enumerate(rows):
        reason = row if isinstance(row, Reason) else Reason.NUL if suspicious and holds_nul(row) else None
        if reason is None:
            batch.records.append(row if plain else as_json(row))
            batch.lines.append(number + index)
        else:
            batch.rejects.append(Reject(number + index, None, None, reason))
    return batch


def _rows(records: pa.RecordBatch) -> Iterable[dict[str, Any] | Reason]:
    try:
        rows: list[dict[str, Any] | Reason] = records.to_pylist()
    except (ValueError, OverflowError):
        return _rows_one_by_one(records)
    return rows


def _rows_one_by_one(records: pa.RecordBatch) -> Iterator[dict[str, Any] | Reason]:
    """Each row, or why it is refused."""
    for index in range(records.num_rows):
        row = records.slice(index, 1)
        if row.nbytes > MAX_RECORD_BYTES:
            yield Reason.TOO_LONG
            continue
        try:
            yield row.to_pylist()[0]
        except UnicodeDecodeError:
            yield Reason.UNDECODABLE
        except (ValueError, OverflowError):
            yield Reason.BAD_VALUE


def _string_buffers(records: pa.RecordBatch) -> Iterator[bytes]:
    """The bytes of every string column and child column."""
    stack: list[pa.Array] = list(records.columns)
    while stack:
        array = stack.pop()
        kind = array.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            data = array.buffers()[2]
            if data is not None:
                yield data.to_pybytes()
        elif pa.types.is_struct(kind):
            stack.extend(array.field(index) for index in range(kind.num_fields))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            stack.append(array.flatten())
        elif pa.types.is_dictionary(kind):
            stack.append(array.dictionary)


def _is_odd(kind: pa.DataType) -> bool:
    """Whether values of this type are not JSON values by themselves."""
    if pa.types.is_struct(kind):
        return any(_is_odd(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_odd(kind.value_type)
    simple = (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_integer, pa.types.is_null)
    return not any(check(kind) for check in simple)


def as_json(value: Any) -> Any:
    """``value`` with dates as ISO 8601, decimals as digits, bytes as Base64, NaN and infinity as null."""
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
