"""``openshelf scan``: where personal data stands in files, without changing them and without showing it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import pyarrow.compute as pc
import typer

from compliance.detect import Detector
from compliance.findings import SidecarWriter
from ingest.durable import disk_full_explained
from ingest.plan import find_layout
from ingest.scanning import read_file, scan_batch
from ingest.sources import find, shown_name
from openshelf.console import emit_json, progress, say


def scan(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Files and folders.")],
    findings: Annotated[
        str, typer.Option(metavar="OUT", help="Where to: a .parquet or .jsonl file, or - for JSONL on stdout.")
    ],
    entities: Annotated[str | None, typer.Option(metavar="A,B", help="Look for these entities only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON (not together with -).")] = False,
) -> None:
    """Find personal data and say where: file, line, field, entity, start, end, score, detector.

    Lines count from 1 and are the record's number in JSON arrays and Parquet; start and end are code points of the
    decoded field, half-open. The values themselves are written nowhere.

    Examples:

      openshelf scan chat.jsonl --findings findings.parquet

      openshelf scan corpus/ --findings - --entities mobile,email | head
    """
    wanted = [name.strip() for name in entities.split(",") if name.strip()] if entities else None
    detector = Detector(wanted)
    found = find(files)
    total = sum(file.path.stat().st_size for file in found.files)
    counts: Counter[str] = Counter()
    records = unread = 0
    cut: list[str] = []
    with (
        disk_full_explained(Path(findings).parent),
        progress("Scanning", total) as bar,
        SidecarWriter(findings, sys.stdout) as sink,
    ):
        for file in found.files:
            name = os.fsencode(file.path).decode("utf-8", "replace")
            for batch in read_file(file, find_layout(file)):
                table = scan_batch(batch, name, detector)
                sink.write(table)
                for item in pc.value_counts(table["entity"]).to_pylist():
                    counts[item["values"]] += item["counts"]
                records += len(batch.records)
                unread += len(batch.rejects)
                if batch.truncated:
                    cut.append(shown_name(name))
                bar.advance(batch.size_bytes)
    _tell(counts, records, unread, len(found.files), as_json=as_json and findings != "-")
    if cut:
        names = ", ".join(dict.fromkeys(cut))
        say(f"openshelf: Incomplete: cut short or damaged is {names}; all that could be read was scanned.")
        raise typer.Exit(1)


def _tell(counts: Counter[str], records: int, unread: int, files: int, *, as_json: bool) -> None:
    if as_json:
        emit_json({"files": files, "records": records, "unread": unread, "findings": dict(sorted(counts.items()))})
        return
    found = ", ".join(f"{entity} {count:,}" for entity, count in sorted(counts.items())) or "nothing"
    say(f"{files:,} files, {records:,} records: {found}")
    if unread:
        say(f"{unread:,} records could not be read (`openshelf ingest` names each with its reason).")
