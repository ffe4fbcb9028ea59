from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openshelf.__main__ import run

MOBILE, EMAIL = "13912345678", "planted@example.com"


def scan(capsys: pytest.CaptureFixture[str], *arguments: str, expected: int = 0) -> list[dict[str, Any]]:
    code = run(["scan", *arguments, "--findings", "-"])
    out, err = capsys.readouterr()
    assert code == expected, err
    assert MOBILE not in out + err
    assert EMAIL not in out + err
    return [json.loads(line) for line in out.splitlines()]


def test_findings_of_jsonl_name_line_field_and_code_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    turns = [{"from": "human", "value": "好"}, {"from": "gpt", "value": f"𠮷：{EMAIL}"}]
    records = [{"text": "无"}, None, {"text": f"电话{MOBILE}"}, {"conversations": turns, "tel": int(MOBILE)}]
    path.write_text(
        "\n".join("" if record is None else json.dumps(record, ensure_ascii=False) for record in records), "utf-8"
    )
    found = scan(capsys, str(path))
    assert [(row["line"], row["field"], row["entity"], row["start"], row["end"]) for row in found] == [
        (3, "text", "mobile", 2, 13),
        (4, "conversations[1].value", "email", 2, 2 + len(EMAIL)),
        (4, "tel", "mobile", 0, 11),
    ]
    assert {row["file"] for row in found} == {str(path)}
    assert all(0 < row["score"] <= 1 and row["detector"] for row in found)


@pytest.mark.parametrize("kind", ["json", "keyed", "csv", "parquet", "txt", "gz", "gb18030"])
def test_lines_mean_the_record_where_a_format_has_no_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    texts = ["你好，世界，这是第一行", "没有任何东西在这里", f"请拨打电话{MOBILE}"]
    records = [{"text": text} for text in texts]
    suffix = {"keyed": "json", "gz": "jsonl.gz", "gb18030": "jsonl"}.get(kind, kind)
    path = tmp_path / f"x.{suffix}"
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    match kind:
        case "json":
            path.write_text(json.dumps(records), "utf-8")
        case "keyed":
            path.write_text(json.dumps(dict(zip("abc", records, strict=True)), indent=1), "utf-8")
        case "csv":
            path.write_text("text,n\n" + "".join(f'"{text}\n",1\n' for text in texts), "utf-8")
        case "parquet":
            pq.write_table(pa.table({"text": texts}), path)
        case "txt":
            path.write_text("\n".join(texts), "utf-8")
        case "gz":
            path.write_bytes(gzip.compress(lines.encode()))
        case _:
            path.write_bytes(lines.encode("gb18030"))
    (row,) = scan(capsys, str(path))
    assert (row["line"], row["field"], row["entity"]) == (6 if kind == "csv" else 3, "text", "mobile")
    assert (row["start"], row["end"]) == (5, 16)


def test_findings_go_to_a_file_by_its_suffix_and_entities_are_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"a": f"{MOBILE} {EMAIL}"}) + "\n", "utf-8")
    for name in ("out.parquet", "out.jsonl"):
        assert run(["scan", str(path), "--findings", str(tmp_path / name), "--entities", "email", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["findings"] == {"email": 1}
    assert pq.read_table(tmp_path / "out.parquet")["entity"].to_pylist() == ["email"]
    assert json.loads((tmp_path / "out.jsonl").read_text())["field"] == "a"


def test_a_field_whose_name_is_personal_data_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({EMAIL: f"电话{MOBILE}"}) + "\n", "utf-8")
    assert {row["field"] for row in scan(capsys, str(path))} == {"*"}


def test_a_cut_file_is_scanned_up_to_the_cut_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(json.dumps({"text": f"电话{MOBILE}", "n": number}) + "\n" for number in range(2000))
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode())[:-50])
    assert len(scan(capsys, str(path), expected=1)) > 1000


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["nowhere.jsonl", "--findings", "-"], 2), (["--findings", "-"], 2), (["{file}", "--findings", "x.xlsx"], 2)],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    assert run(["scan", *(argument.format(file=path) for argument in arguments)]) == code
    assert capsys.readouterr().out == ""
