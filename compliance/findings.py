"""The table of findings, and the side-car that keeps it apart from the text. No column ever holds a detected value."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openshelf.errors import UsageError

FINDINGS_SCHEMA = pa.schema(
    [
        pa.field("row", pa.uint64(), nullable=False),
        pa.field("entity", pa.string(), nullable=False),
        pa.field("start_byte", pa.uint64(), nullable=False),
        pa.field("end_byte", pa.uint64(), nullable=False),
        pa.field("start", pa.uint64(), nullable=False),
        pa.field("end", pa.uint64(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("detector", pa.string(), nullable=False),
    ]
)
"""One finding a row: row of the column, entity, half-open byte offsets in that document's UTF-8, half-open code points,
score 0 to 1, name of the detector rule. Sorted by (row, start_byte); findings do not overlap."""

ACTED_SCHEMA = FINDINGS_SCHEMA.append(pa.field("action", pa.string(), nullable=False))
"""Findings after a policy: with what was done about each (see :data:`compliance.policy.Action`)."""

SIDECAR_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.uint64(), nullable=False),
        pa.field("field", pa.string(), nullable=False),
        pa.field("entity", pa.string(), nullable=False),
        pa.field("start", pa.uint64(), nullable=False),
        pa.field("end", pa.uint64(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("detector", pa.string(), nullable=False),
    ]
)
"""What ``openshelf scan --findings`` writes. ``line`` is 1-based, and the record's number for JSON arrays and Parquet;
``start`` and ``end`` are code points of the decoded field, half-open."""


def sidecar_rows(findings: pa.Table, file: str, lines: pa.Array, field: str) -> pa.Table:
    """``findings`` of one column as side-car rows: ``lines`` holds the line number of every row of that column."""
    count = findings.num_rows
    own = {
        "file": pa.array([file] * count, pa.string()),
        "line": pc.take(lines, findings["row"]).cast(pa.uint64()),
        "field": pa.array([field] * count, pa.string()),
    }
    columns = [own[part.name] if part.name in own else findings[part.name] for part in SIDECAR_SCHEMA]
    return pa.table(columns, schema=SIDECAR_SCHEMA)


class SidecarWriter:
    """Writes side-car rows to Parquet or JSONL by the suffix of ``destination``; ``-`` is JSONL on ``stdout``.

    A file comes into being under a temporary name and is renamed when the ``with`` block ends without an error.
    Raises :class:`openshelf.errors.UsageError` for another suffix.
    """

    def __init__(self, destination: str | Path, stdout: IO[str], schema: pa.Schema = SIDECAR_SCHEMA) -> None:
        self._path = None if str(destination) == "-" else Path(destination)
        self._partial = self._path.with_name(f".{self._path.name}.partial") if self._path else None
        self._parquet: pq.ParquetWriter | None = None
        self._lines: IO[str] = stdout
        if self._path is None or self._partial is None:
            return
        match self._path.suffix:
            case ".parquet":
                self._parquet = pq.ParquetWriter(self._partial, schema, compression="zstd")
            case ".jsonl":
                self._lines = self._partial.open("w", encoding="utf-8", newline="\n")
            case _:
                raise UsageError(
                    "bad_findings_suffix",
                    f"{self._path.name} is neither .parquet nor .jsonl",
                    "Choose the form of the findings by the suffix; '-' is JSONL on standard output.",
                )

    def __enter__(self) -> SidecarWriter:
        return self

    def write(self, rows: pa.Table) -> None:
        """Append ``rows`` (of the writer's schema)."""
        if self._parquet is not None:
            self._parquet.write_table(rows)
            return
        for row in rows.to_pylist():
            # float32 0.98 must not read 0.9800000190734863
            self._lines.write(json.dumps(row | {"score": round(row["score"], 4)}, ensure_ascii=False) + "\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._parquet is not None:
            self._parquet.close()
        elif self._path is not None:
            self._lines.close()
        else:
            self._lines.flush()
        if self._path is None or self._partial is None:
            return
        if kind is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)
