"""Looking for personal data in source files as they are: no mapping, no normalisation, nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compliance.detect import Detector
from compliance.findings import SIDECAR_SCHEMA
from ingest.deidentify import MAX_DEPTH, TooDeep, shown_key
from ingest.plan import Layout, read_split, whole
from ingest.readers.batch import Batch
from ingest.readers.parquet import row_groups
from ingest.rejects import Reason, Reject
from ingest.sources import Found

_SHORTEST_NUMBER = 10**9


def _texts(value: Any, path: str, found: list[tuple[str, str]], depth: int = 0) -> None:
    """Append (field, text) of every string and long integer inside ``value``; raises :class:`TooDeep`."""
    if depth > MAX_DEPTH:
        raise TooDeep
    if isinstance(value, str):
        found.append((path or "value", value))
    elif isinstance(value, dict):
        for key, item in value.items():
            name = shown_key(key)
            _texts(item, f"{path}.{name}" if path else name, found, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _texts(item, f"{path}[{index}]", found, depth + 1)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _SHORTEST_NUMBER:
        found.append((path or "value", str(value)))


def scan_batch(batch: Batch, file: str, detector: Detector) -> pa.Table:
    """The findings of one batch as :data:`compliance.findings.SIDECAR_SCHEMA`.

    A record that is nested too deeply becomes one more of the batch's rejects.
    """
    lines: list[int] = []
    fields: list[str] = []
    texts: list[str] = []
    for line, record in zip(batch.lines, batch.records, strict=True):
        found: list[tuple[str, str]] = []
        try:
            _texts(record, "", found)
        except TooDeep:
            batch.rejects.append(Reject(line, None, None, Reason.TOO_DEEP))
            continue
        lines += [line] * len(found)
        fields += [name for name, _ in found]
        texts += [text for _, text in found]
    findings = detector.scan(pa.array(texts, pa.large_string()))
    rows = findings["row"]
    own = {
        "file": pa.array([file] * findings.num_rows, pa.string()),
        "line": pc.take(pa.array(lines, pa.uint64()), rows),
        "field": pa.array([fields[row] for row in rows.to_pylist()], pa.string()),
    }
    columns = [own[part.name] if part.name in own else findings[part.name] for part in SIDECAR_SCHEMA]
    return pa.table(columns, schema=SIDECAR_SCHEMA)


def read_file(found: Found, layout: Layout) -> Iterator[Batch]:
    """Every record of a file in one pass; a text file is given line by line."""
    size = found.path.stat().st_size
    if layout.kind == "parquet":
        yield from read_split(found.path, layout, whole(layout, size, len(row_groups(found.path))))
        return
    for batch in read_split(found.path, layout, whole(layout, size, 0)):
        yield _by_line(batch) if layout.kind == "text" else batch


def _by_line(batch: Batch) -> Batch:
    r"""The lines of a document as records of their own. Only ``\n`` ends a line."""
    if not batch.records:
        return batch
    texts = batch.records[0]["text"].split("\n")
    records = [{"text": text} for text in texts]
    return Batch(records, list(range(1, len(texts) + 1)), None, batch.rejects, batch.size_bytes, batch.truncated)
