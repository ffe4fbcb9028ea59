"""Findings and rejects of a whole run, gathered from its parts: where and why, never what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compliance.finding_counts import FindingCounts
from ingest import rejects
from ingest.dedup import kept_mask
from ingest.deidentify import FINDINGS_SCHEMA
from ingest.durable import publish_file
from ingest.parts import Part
from ingest.plan import Plan, Split

RELEASE_FINDINGS_SCHEMA = pa.schema(
    [
        pa.field("document_id", pa.large_string(), nullable=False),
        *(field for field in FINDINGS_SCHEMA if field.name not in ("row", "id")),
    ]
)
"""``findings.parquet``: findings in the rows of the release, in their order. Offsets are those of the normalised field
before anything was replaced."""


def _read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def write_findings(parts: Sequence[Part], folder: Path, duplicates: Path, destination: Path) -> FindingCounts:
    """Write the findings of all rows that are in the release to ``destination`` and count them."""
    counts = FindingCounts()
    temporary = destination.with_name(f".{destination.name}.new")
    with pq.ParquetWriter(temporary, RELEASE_FINDINGS_SCHEMA, compression="zstd") as writer:
        for number, part in enumerate(parts):
            table = _read(folder / part.key / "findings.arrow")
            kept = kept_mask(duplicates, number, part.rows)[table["row"].to_numpy()]
            table = table.filter(pa.array(kept))
            if table.num_rows:
                columns = [table["id"], *(table[name] for name in RELEASE_FINDINGS_SCHEMA.names[1:])]
                writer.write_table(pa.Table.from_arrays(columns, schema=RELEASE_FINDINGS_SCHEMA))
                counts.add(table)
    publish_file(temporary, destination)
    return counts


def write_rejects(
    plan: Plan, bundles: Sequence[Sequence[Split]], parts: Sequence[Part], folder: Path, destination: Path
) -> int:
    """Write the rejects of all parts, which go with ``bundles``, to ``destination`` and return their number."""
    count = 0
    temporary = destination.with_name(f".{destination.name}.new")
    with pq.ParquetWriter(temporary, rejects.SCHEMA, compression="zstd") as writer:
        for bundle, part in zip(bundles, parts, strict=True):
            table = _read(folder / part.key / "rejects.arrow")
            if table.num_rows:
                writer.write_table(rejects.with_files(table, [plan.files[split.file].label for split in bundle]))
                count += table.num_rows
    publish_file(temporary, destination)
    return count
