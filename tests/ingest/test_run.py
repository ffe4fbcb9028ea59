from __future__ import annotations

import codecs
import gzip
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from catalog.client import Client, NotFound
from compliance.policy import Policy
from ingest.readers.batch import MAX_RECORD_BYTES
from openshelf.errors import OpenshelfError
from tests.ingest.conftest import Run, findings_of, rejects_of, rows_of, write_jsonl
from tests.support.shared_data import shared


def test_a_mixed_folder_adds_up_and_keeps_its_order(run: Run, tmp_path: Path, client: Client) -> None:
    source = tmp_path / "corpus"
    write_jsonl(source / "b.jsonl", [{"id": 1, "text": "第二个文件"}, {"id": 2, "text": "重复的一行"}])
    write_jsonl(source / "a.jsonl", [{"id": 3, "text": "重复的一行 "}, {"id": 4, "text": " "}, {"oops": 1}])
    (source / "c.csv").write_text("id,text\n5,表格里的一行\n", "utf-8")
    (source / "d.md").write_text("# 标题\n\n正文\n", "utf-8")
    (source / "e.jsonl.gz").write_bytes(gzip.compress('{"id":6,"text":"压缩"}\n'.encode()))
    (source / "f.json.zst").write_bytes(zstandard.compress('[{"id":7,"text":"数组"}]'.encode()))
    pq.write_table(
        pa.table({"id": [8, 9], "text": ["列存", "重复的一行"], "n": [1.5, float("nan")]}), source / "g.parquet"
    )
    (source / "h.txt").write_text("", "utf-8")
    (source / "skip.bin").write_bytes(b"\0")
    outcome = run(source)
    account = outcome.account
    assert (account.rows_in, account.rows_out, account.duplicates) == (11, 7, 2)
    assert account.rejected == {"empty_text": 1, "wrong_shape": 1}
    rows = rows_of(outcome)
    assert [row["text"] for row in rows] == [
        "重复的一行", "第二个文件", "表格里的一行", "# 标题\n\n正文", "压缩", "数组", "列存",
    ]  # fmt: skip
    assert [row["id"] for row in rows if len(row["id"]) < 5] == ["3", "1", "5", "6", "7", "8"]
    assert rows[-1]["meta"] == '{"n":1.5}'
    assert [(reject["file"], reject["line"], reject["reason"]) for reject in rejects_of(outcome)] == [
        ("corpus/a.jsonl", 2, "empty_text"),
        ("corpus/a.jsonl", 3, "wrong_shape"),
    ]
    assert outcome.release is not None
    assert outcome.release.state == "sealed"
    assert {file.path for file in client.files(outcome.ref)} == {
        "README.md", "LICENSE", "croissant.json", "data/train-00000-of-00001.parquet",
    }  # fmt: skip


def test_what_the_design_accepts_comes_out_right(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "accepted"
    source.mkdir()
    long = "长" * (50_000_000 // 3)
    (source / "a.jsonl").write_bytes(codecs.BOM_UTF8 + '{"text":"有标记"}\n{"text":"一\u2028二"}'.encode())
    (source / "b.jsonl").write_bytes('{"text":"国标编码的中文，含生僻字㐂𠮷"}\n'.encode("gb18030"))
    (source / "c.jsonl").write_bytes('\ufeff{"text":"十六位"}\n'.encode("utf-16-le"))
    (source / "d.jsonl").write_text(json.dumps({"text": long}, ensure_ascii=False) + "\n", "utf-8")
    outcome = run(source)
    assert [row["text"] for row in rows_of(outcome)] == [
        "有标记", "一\u2028二", "国标编码的中文，含生僻字㐂𠮷", "十六位", long,
    ]  # fmt: skip
    assert outcome.account.rejected == {}


def test_what_the_design_rejects_is_rejected_and_the_rest_goes_on(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    good = '{"text":"好"}\n'.encode()
    with path.open("wb") as sink:
        sink.write(good + b'{"text":"\\udcb2"}\n' + b'{"text":"a\0b"}\n' + b'{"text":"\xff"}\n' + b'{"text":"')
        for _ in range(70):
            sink.write(b"x" * (1 << 20))
        sink.write(b'"}\n{"text":\n' + '{"text":"尾"}\n'.encode())
    outcome = run(path)
    assert [row["text"] for row in rows_of(outcome)] == ["好", "尾"]
    assert [(reject["line"], reject["reason"]) for reject in rejects_of(outcome)] == [
        (2, "lone_surrogate"),
        (3, "nul"),
        (4, "undecodable"),
        (5, "too_long"),
        (6, "malformed_json"),
    ]
    assert rejects_of(outcome)[3]["length_bytes"] > MAX_RECORD_BYTES


def test_an_identical_ingest_prints_the_same_release(run: Run, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "甲"}])
    first = run(path, ref="datasets/test/again@1.0")
    second = run(path, ref="datasets/test/again@1.0", data=tmp_path / "elsewhere")
    assert first.release is not None
    assert second.release is not None
    assert first.release.manifest_digest == second.release.manifest_digest


def test_an_identical_ingest_of_a_published_release_succeeds(run: Run, tmp_path: Path, client: Client) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "甲"}])
    first = run(path, ref="datasets/test/published@1.0")
    client.submit(first.ref)
    again = run(path, ref="datasets/test/published@1.0")
    assert again.release is not None
    assert again.release.state == "submitted"
    other = write_jsonl(tmp_path / "y.jsonl", [{"text": "乙"}])
    with pytest.raises(OpenshelfError) as caught:
        run(other, ref="datasets/test/published@1.0")
    assert caught.value.code == "version_exists"


def test_the_bytes_depend_on_neither_processes_nor_place(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.plan.SPLIT_BYTES", 1 << 18)
    monkeypatch.setattr("ingest.run._SMALL_BYTES", 0)
    filler = "这里是一段很长的文字。" * 30
    records = [{"text": f"第{number}行，电话1380013{number % 10000:04d}。{filler}"} for number in range(2500)]
    one = write_jsonl(tmp_path / "one" / "x.jsonl", records)
    two = write_jsonl(tmp_path / "two" / "x.jsonl", records)
    first = run(one, ref="datasets/test/jobs@1.0", shard_size="1MiB")
    second = run(two, ref="datasets/test/jobs@1.0", shard_size="1MiB", jobs=2, data=tmp_path / "other")
    made = [sorted(path for path in (one.folder / "release").rglob("*") if path.is_file()) for one in (first, second)]
    assert len(list((first.folder / "parts").iterdir())) > 5
    assert len(made[0]) > 4
    assert [path.read_bytes() for path in made[0]] == [path.read_bytes() for path in made[1]]
    texts = [row["text"] for row in rows_of(first)]
    assert texts == [f"第{number}行，电话<手机号_1>。{filler}" for number in range(2500)]


def test_long_numbers_and_odd_ids_stay_exact(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id":123456789012345678901234567890,"text":"x","n":98765432109876543210987}\n', "utf-8")
    row = rows_of(run(path))[0]
    assert row["id"] == "123456789012345678901234567890"
    assert row["meta"] == '{"n":98765432109876543210987}'


def test_rows_whose_keys_differ_share_one_schema(run: Run, tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "x.jsonl", [{"text": "a", "meta": {"z": 1, "b": {"y": 2}}}, {"text": "b", "symlink_target": "x"}]
    )
    assert [row["meta"] for row in rows_of(run(path))] == ['{"b":{"y":2},"z":1}', '{"symlink_target":"x"}']


def test_ids_of_rows_without_one_are_stable_and_distinct(run: Run, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "a"}, {"text": "b"}])
    first = [row["id"] for row in rows_of(run(path))]
    assert first == [row["id"] for row in rows_of(run(path))]
    assert len(set(first)) == 2


def test_splits_come_from_file_names(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "corpus"
    write_jsonl(source / "dev.jsonl", [{"text": "验证"}])
    write_jsonl(source / "part1.jsonl", [{"text": "训练一"}, {"text": "验证"}])
    outcome = run(source, splits={"validation": "dev*"})
    names = sorted(path.name for path in (outcome.folder / "release" / "data").iterdir())
    assert names == ["train-00000-of-00001.parquet", "validation-00000-of-00001.parquet"]
    assert outcome.account.duplicates == 1


def test_two_files_of_the_same_bytes_are_both_accounted_for(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "corpus"
    for name in ("a", "b"):
        write_jsonl(source / f"{name}.jsonl", [{"text": "一"}, {"text": "二"}])
    account = run(source).account
    assert (account.rows_in, account.rows_out, account.duplicates) == (4, 2, 2)


def test_mixed_schemas_are_refused_by_name_and_a_readme_beside_dialogues_is_not(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "corpus"
    write_jsonl(source / "chat.jsonl", [{"messages": [{"role": "user", "content": "在吗"}]}])
    (source / "README.md").write_text("# 说明", "utf-8")
    assert run(source).account.rows_in == 1
    write_jsonl(source / "plain.jsonl", [{"text": "文"}])
    with pytest.raises(OpenshelfError, match=r"corpus/chat\.jsonl.*corpus/plain\.jsonl") as caught:
        run(source)
    assert caught.value.code == "mixed_schemas"


def test_records_of_unknown_shape_are_rejected_beside_known_ones_and_refused_alone(run: Run, tmp_path: Path) -> None:
    known = write_jsonl(tmp_path / "known.jsonl", [{"text": "文"}])
    unknown = write_jsonl(tmp_path / "unknown.jsonl", [{"foo": 1}, {"foo": 2}])
    assert run(known, unknown).account.rejected == {"unknown_shape": 2}
    with pytest.raises(OpenshelfError) as caught:
        run(unknown)
    assert caught.value.code == "unknown_shape"
    outcome = run(unknown, known, map=[{"files": "unknown*", "schema": "text", "text": "bar"}])
    assert outcome.account.rejected == {"wrong_shape": 2}


def test_a_source_without_any_row_is_refused(run: Run, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": " "}])
    with pytest.raises(OpenshelfError) as caught:
        run(path)
    assert caught.value.code == "no_rows"


@pytest.mark.parametrize("kind", ["gz", "zst", "jsonl", "json"])
def test_a_cut_source_ends_incomplete_with_the_rows_before_the_cut(
    run: Run, tmp_path: Path, kind: str, client: Client
) -> None:
    records = [{"text": f"第{number}行" * 50} for number in range(3000)]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    packed = {
        "gz": gzip.compress(lines),
        "zst": b"".join(zstandard.compress(lines[at : at + 10_000]) for at in range(0, len(lines), 10_000)),
        "jsonl": lines,
        "json": json.dumps(records, ensure_ascii=False).encode(),
    }[kind]
    path = tmp_path / (f"x.jsonl.{kind}" if kind in ("gz", "zst") else f"x.{kind}")
    path.write_bytes(packed[: len(packed) * 2 // 3])
    outcome = run(path, ref=f"datasets/test/cut-{kind}@1.0")
    assert outcome.release is None
    assert outcome.truncated == (path.name,)
    assert outcome.to_json()["status"] == "incomplete"
    kept = [row["text"] for row in rows_of(outcome)]
    assert len(kept) > 1000
    assert kept == [record["text"] for record in records[: len(kept)]]
    with pytest.raises(NotFound):
        client.release(outcome.ref)
    path.write_bytes(packed)
    whole = run(path, ref=f"datasets/test/cut-{kind}@1.0")
    assert whole.release is not None
    assert whole.account.rows_out == 3000


def test_a_policy_may_drop_documents_and_they_are_accounted_for(run: Run, tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "x.jsonl", [{"text": "电话13800138000"}, {"text": "没有"}, {"text": "a@example.com 邮箱"}]
    )
    policy = Policy.from_document({"entities": {"mobile": "drop_document", "email": "mask"}})
    outcome = run(path, policy=policy)
    assert outcome.account.rejected == {"policy": 1}
    assert [row["text"] for row in rows_of(outcome)] == ["没有", "a***@example.com 邮箱"]
    assert [(row["entity"], row["action"]) for row in findings_of(outcome)] == [("email", "mask")]
    report = json.loads((outcome.folder / "report" / "report.json").read_text("utf-8"))
    assert [(cell["entity"], cell["count"]) for cell in report["findings"]["cells"]] == [("email", 1)]
    assert [(cell["entity"], cell["action"], cell["count"]) for cell in report["removed_findings"]["cells"]] == [
        ("mobile", "drop_document", 1)
    ]
    page = (outcome.folder / "report" / "report.md").read_text("utf-8")
    assert "### 已随文档移除 Removed with their documents\n" in page


def test_the_report_names_each_sources_licence_and_parts_its_remarks(run: Run, tmp_path: Path) -> None:
    mit = shared("licensee") / "LICENSE.md"
    for name in ("one", "two"):
        write_jsonl(tmp_path / name / "x.jsonl", [{"text": name}])
        (tmp_path / name / "notes.xyz").touch()
    (tmp_path / "one" / "LICENSE").write_bytes(mit.read_bytes())
    outcome = run(tmp_path / "one", tmp_path / "two", licence="CC-BY-4.0")
    report = json.loads((outcome.folder / "report" / "report.json").read_text("utf-8"))
    assert [(source["name"], source["licence"]) for source in report["sources"]] == [
        ("one/x.jsonl", "MIT"),
        ("two/x.jsonl", "CC-BY-4.0"),
    ]
    lines = (outcome.folder / "report" / "report.md").read_text("utf-8").splitlines()
    remarks = [index for index, line in enumerate(lines) if line.startswith("> ")]
    assert len(remarks) >= 2
    assert all(not lines[index + 1] for index in remarks)


def test_the_report_and_the_side_cars_are_attached_and_not_in_the_release(
    run: Run, tmp_path: Path, client: Client
) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [{"text": "电话13800138000"}, {"bad": 1}])
    outcome = run(path)
    names = {item.name for item in client.attachments(outcome.ref)}
    assert names == {
        "report.json",
        "report.md",
        "findings.parquet",
        "rejects.parquet",
        "statistics.json",
        "recipe.yaml",
    }
    report = json.loads(client.attachment(outcome.ref, "report.json"))
    assert report["rejects"] == {"wrong_shape": 1}
    assert Counter(row["entity"] for row in findings_of(outcome)) == {"mobile": 1}
    statistics = json.loads(client.attachment(outcome.ref, "statistics.json"))
    assert statistics["total"]["rows"] == 1
    assert statistics["total"]["characters"] == len("电话<手机号_1>")


def test_the_run_folder_is_private(run: Run, tmp_path: Path) -> None:
    outcome = run(write_jsonl(tmp_path / "x.jsonl", [{"text": "甲"}]))
    assert outcome.folder.stat().st_mode & 0o777 == 0o700
