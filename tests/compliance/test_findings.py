"""The side-car: its form, and that it never holds a value."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compliance.detect import Detector
from compliance.findings import SIDECAR_SCHEMA, SidecarWriter, sidecar_rows
from compliance.policy import Policy
from compliance.redact import redact
from openshelf.errors import UsageError
from tests.compliance.planted import corpus

DETECTOR = Detector()
TEXTS = ["x", "电话13812345678", "邮箱a@example.com和13912345678"]


def rows() -> pa.Table:
    return sidecar_rows(DETECTOR.scan(pa.array(TEXTS)), "a.jsonl", pa.array([1, 4, 9]), "text")


def test_rows_name_file_line_field_and_code_points() -> None:
    table = rows()
    assert table.schema == SIDECAR_SCHEMA
    assert [
        (row["file"], row["line"], row["field"], row["entity"], row["start"], row["end"]) for row in table.to_pylist()
    ] == [
        ("a.jsonl", 4, "text", "mobile", 2, 13),
        ("a.jsonl", 9, "text", "email", 2, 15),
        ("a.jsonl", 9, "text", "mobile", 16, 27),
    ]


def test_parquet_jsonl_and_standard_output_say_the_same(tmp_path: Path) -> None:
    out = io.StringIO()
    for destination in (tmp_path / "f.parquet", tmp_path / "f.jsonl", Path("-")):
        with SidecarWriter(destination, out) as writer:
            writer.write(rows())
            writer.write(rows())
    lines = (tmp_path / "f.jsonl").read_text(encoding="utf-8")
    assert lines == out.getvalue()
    from_lines = [json.loads(line) for line in lines.splitlines()]
    from_parquet = pq.read_table(tmp_path / "f.parquet").to_pylist()
    assert len(from_lines) == 6
    assert from_lines == [row | {"score": round(row["score"], 4)} for row in from_parquet]
    assert list(from_lines[0]) == ["file", "line", "field", "entity", "start", "end", "score", "detector"]


def test_an_empty_side_car_is_a_file_with_the_right_columns(tmp_path: Path) -> None:
    with SidecarWriter(tmp_path / "f.parquet", io.StringIO()):
        pass
    assert pq.read_table(tmp_path / "f.parquet").schema == SIDECAR_SCHEMA


@pytest.mark.parametrize("name", ["f.parquet", "f.jsonl"])
def test_a_failure_leaves_neither_a_file_nor_a_part_of_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("old")
    with pytest.raises(RuntimeError), SidecarWriter(tmp_path / name, io.StringIO()) as writer:
        writer.write(rows())
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "old"


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"f\.csv is neither \.parquet nor \.jsonl"):
        SidecarWriter(tmp_path / "f.csv", io.StringIO())
    assert list(tmp_path.iterdir()) == []


def test_no_table_of_findings_holds_a_value(tmp_path: Path) -> None:
    texts, plants = corpus(4, 500)
    column = pa.array(texts)
    findings = DETECTOR.scan(column)
    _, acted = redact(column, findings, Policy.load("standard"))
    lines = sidecar_rows(findings, "a.jsonl", pa.array(range(1, 501)), "text")
    with SidecarWriter(tmp_path / "f.parquet", io.StringIO()) as writer:
        writer.write(lines)
    everything = f"{acted.to_pylist()}{lines.to_pylist()}".encode() + (tmp_path / "f.parquet").read_bytes()
    assert findings.num_rows > 400
    for plant in plants:
        assert texts[plant.document][plant.start : plant.end].encode() not in everything
