"""Files that are damaged, misnamed or made to hurt: one clear line, everything readable read, memory bounded."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from ingest.plan import find_layout, read_split, whole
from ingest.readers import streams
from ingest.readers.parquet import UnreadableParquet, read_parquet, row_groups
from ingest.readers.streams import WrongContent
from ingest.rejects import Reason
from ingest.sources import classify, find
from openshelf.__main__ import run as openshelf
from openshelf.errors import OpenshelfError, UsageError
from tests.ingest.conftest import Run, rejects_of, rows_of
from tests.support.shared_data import shared

LINE = b'{"text":"\xe4\xbd\xa0\xe5\xa5\xbd"}\n'


def read(path: Path) -> tuple[list[Any], list[Reason], bool]:
    """Records, reasons of rejects, and whether the file was cut short."""
    found = classify(path, path.name)
    assert found
    layout = find_layout(found)
    batches = list(read_split(path, layout, whole(layout, path.stat().st_size, 0)))
    records = [record for batch in batches for record in batch.records]
    reasons = [reject.reason for batch in batches for reject in batch.rejects]
    return records, reasons, any(batch.truncated for batch in batches)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("plain.jsonl.gz", LINE * 2),
        ("plain.jsonl.zst", LINE * 2),
        ("zipped.jsonl", gzip.compress(LINE * 2)),
        ("zipped.jsonl.zst", gzip.compress(LINE * 2)),
        ("zst.jsonl", zstandard.compress(LINE * 2)),
        ("frames.jsonl.zst", zstandard.compress(LINE) + SKIPPABLE + zstandard.compress(LINE)),
        ("skippable.jsonl.zst", SKIPPABLE + zstandard.compress(LINE * 2)),
        ("members.jsonl.gz", gzip.compress(LINE) + gzip.compress(LINE)),
    ],
)
def test_content_and_not_the_suffix_says_how_a_file_is_compressed(tmp_path: Path, name: str, data: bytes) -> None:
    assert read(written(tmp_path / name, data)) == ([{"text": "你好"}] * 2, [], False)


@pytest.mark.parametrize("name", ["empty.jsonl.gz", "empty.jsonl.zst"])
def test_a_compressed_file_of_no_bytes_counts_as_cut_short(tmp_path: Path, name: str) -> None:
    assert read(written(tmp_path / name, b"")) == ([], [], True)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", b"PK\x03\x04\x14\0\0\0rest", "is a zip archive"),
        ("a.txt", b"\xfd7zXZ\0rest", "is an xz file"),
        ("a.csv", b"BZh91AY&SYrest", "is a bzip2 file"),
        ("a.json", b"PAR1\0rest", "is a Parquet file"),
        ("a.jsonl.gz", b"\0\1\2\3 neither", "is not a gzip file"),
        ("a.jsonl.zst", b"\x1f\x8b", "is not a zstd file"),
    ],
)
def test_other_formats_under_a_name_of_text_are_refused_by_name(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    with pytest.raises(WrongContent) as caught:
        read(written(tmp_path / name, data))
    assert caught.value.line().startswith(f"{tmp_path / name} {said}")


def test_a_text_that_begins_like_an_archive_is_text(tmp_path: Path) -> None:
    assert read(written(tmp_path / "a.txt", b"PAR1 is a name"))[0] == [{"text": "PAR1 is a name"}]


@pytest.mark.parametrize("depth", [201, 500, 990, 1020, 100_000])
def test_a_record_nested_too_deeply_is_rejected_alone(run: Run, tmp_path: Path, depth: int) -> None:
    deep = (
        b'{"text":"13912345678 \xe5\x86\x8d\xe8\xa7\x81","x":' + b"[" * depth + b'"13912345678"' + b"]" * depth + b"}\n"
    )
    outcome = run(written(tmp_path / "deep.jsonl", deep + LINE))
    assert [row["text"] for row in rows_of(outcome)] == ["你好"]
    (reject,) = rejects_of(outcome)
    assert (reject["line"], reject["reason"]) == (1, "malformed_json" if depth > 1020 else "too_deep")


@pytest.mark.parametrize("depth", [150, 1020])
def test_scan_bears_deep_nesting(tmp_path: Path, capsys: pytest.CaptureFixture[str], depth: int) -> None:
    path = written(tmp_path / "deep.jsonl", b"[" * depth + b'"a@example.com"' + b"]" * depth + b"\n" + LINE)
    assert openshelf(["scan", str(path), "--findings", "-"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == (1 if depth < 200 else 0)
    assert ("1 records could not be read" in err) == (depth > 200)


def test_a_poem_of_sections_without_end_is_no_poem(tmp_path: Path, run: Run) -> None:
    poem = b'{"paragraphs":' + b"[" * 900 + b'"\xe8\xaf\x97"' + b"]" * 900 + b"}\n"
    good = b'{"paragraphs":["\xe8\xaf\x97"]}\n'
    outcome = run(written(tmp_path / "poems.jsonl", poem + good * 3))
    assert [reject["reason"] for reject in rejects_of(outcome)] == ["wrong_shape"]


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"text,b\xffd,b\xffd\nx,1,2\n", ["text", "b\ufffdd", "b\ufffdd_3"]),
        (b"text,n\0l,\nx,1,2\n", ["text", "n\ufffdl", "column_3"]),
        (b"text,a,b\rx,1,2\r", ["text", "a", "b"]),
    ],
)
def test_odd_csv_headers_and_line_ends_lose_nothing(tmp_path: Path, data: bytes, names: list[str]) -> None:
    assert read(written(tmp_path / "a.csv", data)) == ([dict(zip(names, "x12", strict=True))], [], False)


def test_a_csv_field_over_the_limit_costs_only_its_record(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text\nfirst\n" + b"x" * ((64 << 20) + 1) + b"\nlast\n")
    assert read(path) == ([{"text": "first"}, {"text": "last"}], [Reason.TOO_LONG], False)


def test_parquet_columns_of_one_name_are_both_kept(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["甲"]), pa.array(["乙"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    (batch,) = read_parquet(tmp_path / "a.parquet", 0, 1, 1)
    assert batch.records == [{"text": "甲", "text_2": "乙"}]


def test_a_parquet_time_outside_the_calendar_costs_only_its_row(tmp_path: Path) -> None:
    table = pa.table({"text": ["甲", "乙", "丙"], "at": pa.array([0, 2**62, 0], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet")
    (batch,) = read_parquet(tmp_path / "a.parquet", 0, 1, 1)
    assert [record["text"] for record in batch.records] == ["甲", "丙"]
    assert [(reject.line, reject.reason) for reject in batch.rejects] == [(2, Reason.BAD_VALUE)]


def test_every_bad_parquet_file_is_read_or_refused_by_name() -> None:
    for path in sorted(shared("parquet-testing").rglob("*.parquet")):
        if path.name.startswith("large_string_map"):  # 2 GiB of memory and half a minute
            continue
        try:
            for _ in read_parquet(path, 0, len(row_groups(path)), 1):
                pass
        except UnreadableParquet as error:
            assert error.line().startswith(f"{path} is not a readable Parquet file")


def test_pipes_devices_and_links_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        find([tmp_path / "pipe.jsonl"])
    folder = tmp_path / "in"
    (folder / "below").mkdir(parents=True)
    written(folder / "below" / "good.jsonl", LINE)
    (folder / "file.jsonl").symlink_to(folder / "below" / "good.jsonl")
    (folder / "around").symlink_to(folder)
    (folder / "nowhere.jsonl").symlink_to(folder / "absent")
    (folder / "myself.jsonl").symlink_to(folder / "myself.jsonl")
    (folder / "zero.jsonl").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.jsonl")
    sources = find([folder])
    assert [found.label for found in sources.files] == ["in/below/good.jsonl", "in/file.jsonl"]
    assert sources.skipped == [
        f"in/{name}" for name in ("around", "myself.jsonl", "nowhere.jsonl", "pipe.jsonl", "zero.jsonl")
    ]


def test_names_that_are_no_text_are_read_and_shown_on_one_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = '{"text": "信 a@example.com"}\n'.encode()
    names = [b"new\nline.jsonl", b"bad\xff.jsonl", "中 文..jsonl".encode()]
    for name in names:
        written(tmp_path / os.fsdecode(name), record)
    assert openshelf(["scan", str(tmp_path), "--findings", "-"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3
    assert {Path(json.loads(line)["file"]).name for line in out.splitlines()} == {
        "new\nline.jsonl", "bad\ufffd.jsonl", "中 文..jsonl",
    }  # fmt: skip
    outcome = run(*(tmp_path / os.fsdecode(name) for name in names))
    assert len(rows_of(outcome)) == 1
    plan = json.loads((outcome.folder / "plan.json").read_text("utf-8"))
    assert [file["label"] for file in plan["files"]] == ["new\ufffdline.jsonl", "bad\ufffd.jsonl", "中 文..jsonl"]


BOUNDED = r"""
import re, sys
from pathlib import Path
from ingest.sources import find
from ingest.plan import find_layout, read_split, whole
(found,) = find([Path(sys.argv[1])]).files
layout = find_layout(found)
for batch in read_split(found.path, layout, whole(layout, found.path.stat().st_size, 0)):
    print(len(batch.records), [(one.line, one.length, one.reason.value) for one in batch.rejects])
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


def _read_in_another_process(path: Path) -> tuple[list[str], int]:
    done = subprocess.run([sys.executable, "-c", BOUNDED, str(path)], capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr[-500:]
    *said, peak_kib = done.stdout.splitlines()
    return said, int(peak_kib) >> 10


def test_an_endless_line_in_a_small_file_is_rejected_in_bounded_memory(tmp_path: Path) -> None:
    packer = zlib.compressobj(1, wbits=31)
    with (tmp_path / "line.jsonl.gz").open("wb") as sink:
        sink.write(packer.compress(LINE + b'{"text":"'))
        for _ in range(48):
            sink.write(packer.compress(b"x" * (16 << 20)))
        sink.write(packer.compress(b'"}\n' + LINE) + packer.flush())
    said, peak_mib = _read_in_another_process(tmp_path / "line.jsonl.gz")
    assert said == ["1 []", f"0 [(2, {(768 << 20) + 11}, 'too_long')]", "1 []"]
    assert peak_mib < 600


def test_a_zstd_stream_that_expands_beyond_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = zstandard.compress(b"x" * (64 << 20), 19)
    path = written(tmp_path / "bomb.jsonl.zst", frame * 3)
    assert len(frame) * 10_000 < 64 << 20
    assert read(path) == ([], [Reason.TOO_LONG], False)
    monkeypatch.setattr(streams, "_EXPANSION_GRACE_BYTES", 100 << 20)
    with pytest.raises(WrongContent, match="expands more than 10,000-fold"):
        read(path)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("korean.txt", "안녕하세요, 반갑습니다.".encode("euc-kr"), "undecodable 1"),
        ("nul.jsonl", b"\0\n\0\n", "nul 2"),
        ("array.json", b'[{"text": "never closed', "truncated 1"),
    ],
)
def test_a_file_without_any_legible_record_is_told_by_its_reasons(
    run: Run, tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    with pytest.raises(OpenshelfError) as caught:
        run(written(tmp_path / name, data))
    assert (caught.value.code, caught.value.message.rpartition("rejected: ")[2]) == ("no_rows", reason)
