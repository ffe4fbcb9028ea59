"""The files of a release as others open them: datasets, Croissant, Parquet readers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from ingest import shards
from tests.ingest.conftest import Run, write_jsonl

RECORDS: dict[str, list[dict[str, Any]]] = {
    "text": [{"text": "一"}, {"text": "二", "lang": "zh"}],
    "instruction": [
        {"instruction": "写", "input": "", "output": "好"},
        {"instruction": "译", "input": "猫", "output": "cat"},
    ],
    "messages": [{"messages": [{"role": "user", "content": "在吗"}, {"role": "assistant", "content": "在"}]}] * 1
    + [{"messages": [{"role": "system", "content": "你是助手"}]}],
}


@pytest.mark.parametrize("schema", list(RECORDS))
def test_load_dataset_opens_the_folder_with_no_arguments(run: Run, tmp_path: Path, schema: str) -> None:
    write_jsonl(tmp_path / "corpus" / "train.jsonl", RECORDS[schema])
    write_jsonl(tmp_path / "corpus" / "dev.jsonl", RECORDS[schema][:1] and [invert(RECORDS[schema][0])])
    outcome = run(tmp_path / "corpus", splits={"validation": "dev*"})
    script = (
        "import json, sys; from datasets import load_dataset; d = load_dataset(sys.argv[1]);"
        "print(json.dumps({name: list(rows) for name, rows in d.items()}))"
    )
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", script, str(outcome.folder / "release")],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert {name: len(rows) for name, rows in loaded.items()} == {"train": 2, "validation": 1}
    row = loaded["train"][0]
    assert {key: row[key] for key in row if key not in ("id", "meta")} == RECORDS[schema][0]


def invert(record: dict[str, Any]) -> dict[str, Any]:
    """Another record of the same shape."""
    text = json.dumps(record, ensure_ascii=False)
    return dict(json.loads(text.replace("一", "三").replace("写", "读").replace("在吗", "你好")))


def test_the_croissant_record_is_valid_and_its_digests_are_the_files(run: Run, tmp_path: Path) -> None:
    croissant = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    for schema, records in RECORDS.items():
        outcome = run(write_jsonl(tmp_path / f"{schema}.jsonl", records), source_urls=["https://example.com/data"])
        path = outcome.folder / "release" / "croissant.json"
        document = json.loads(path.read_bytes())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # rdflib's own, inside mlcroissant
            metadata = croissant.Dataset(jsonld=document).metadata
        assert not metadata.ctx.issues.errors
        files = [item for item in document["distribution"] if item["@type"] == "cr:FileObject"]
        assert files
        for item in files:
            data = (path.parent / item["contentUrl"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == item["sha256"]
        assert document["datePublished"] == "2000-01-01"


def test_the_card_names_licence_language_size_and_files(run: Run, tmp_path: Path) -> None:
    outcome = run(write_jsonl(tmp_path / "x.jsonl", RECORDS["text"]), title="测试集", licence="apache-2.0")
    text = (outcome.folder / "release" / "README.md").read_text("utf-8")
    head = yaml.safe_load(text.split("---\n")[1])
    mark = head["configs"][0].pop("description")
    assert str(outcome.ref) in mark
    assert head == {
        "pretty_name": "测试集",
        "license": "apache-2.0",
        "language": ["zh"],
        "size_categories": ["n<1K"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*.parquet"}]}],
    }


def test_a_licence_file_beside_the_source_is_recognised_and_copied(run: Run, tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "LICENSE").read_bytes()
    source = tmp_path / "corpus"
    write_jsonl(source / "x.jsonl", RECORDS["text"])
    (source / "LICENSE").write_bytes(text)
    outcome = run(source, licence=None)
    assert outcome.release is not None
    assert outcome.release.licence is not None
    assert outcome.release.licence["expression"] == "Apache-2.0"
    assert (outcome.folder / "release" / "LICENSE").read_bytes() == text


def test_no_licence_anywhere_is_left_open(run: Run, tmp_path: Path) -> None:
    outcome = run(write_jsonl(tmp_path / "deep" / "er" / "x.jsonl", RECORDS["text"]), licence=None)
    assert outcome.release is not None
    assert outcome.release.licence is None
    assert not (outcome.folder / "release" / "LICENSE").exists()


def test_row_groups_and_shards_stay_under_their_limits(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "ROW_GROUP_BYTES", 100_000)
    records = [{"text": f"{number:05d}" + "字" * 300} for number in range(4000)]
    outcome = run(write_jsonl(tmp_path / "x.jsonl", records), shard_size="1MiB")
    paths = sorted((outcome.folder / "release" / "data").iterdir())
    assert [path.name for path in paths] == [f"train-{number:05d}-of-00004.parquet" for number in range(4)]
    texts: list[str] = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            sizes = [file.read_row_group(index)["text"].nbytes for index in range(file.num_row_groups)]
            assert max(sizes) < 120_000
            assert len(sizes) > 5
            texts += file.read()["text"].to_pylist()
    assert texts == [record["text"] for record in records]
