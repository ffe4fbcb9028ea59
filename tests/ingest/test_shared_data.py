"""Whole runs over real public corpora, with rows counted by other means."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from tests.ingest.conftest import Run, rows_of
from tests.support.shared_data import shared


def records_of(path: Path) -> list[object]:
    document = json.loads(path.read_bytes())
    return document if isinstance(document, list) else [document]


def test_crosswoz_gives_its_500_dialogues_with_their_turns(run: Run, tmp_path: Path) -> None:
    with zipfile.ZipFile(shared("crosswoz", "data", "crosswoz", "val.json.zip")) as archive:
        archive.extract("val.json", tmp_path)
    document = json.loads((tmp_path / "val.json").read_bytes())
    rows = rows_of(run(tmp_path / "val.json"))
    assert [row["id"] for row in rows] == list(document)
    assert len(rows) == 500
    assert sum(len(row["messages"]) for row in rows) == sum(len(item["messages"]) for item in document.values()) == 8458
    assert {turn["role"] for row in rows for turn in row["messages"]} == {"user", "assistant"}
    assert json.loads(rows[0]["meta"])["goal"] == document[rows[0]["id"]]["goal"]


def test_kdconv_gives_every_dialogue_and_alternates(run: Run) -> None:
    folder = shared("kdconv")
    outcome = run(folder, licence=None)
    expected = sum(len(records_of(path)) for path in folder.rglob("*.json"))
    assert (outcome.account.rows_in, outcome.account.rejected_rows) == (expected, 0)
    assert outcome.release is not None
    assert outcome.release.licence is not None
    assert outcome.release.licence["expression"] == "Apache-2.0"
    for row in rows_of(outcome):
        roles = [turn["role"] for turn in row["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)


def test_tang_poems_are_all_accounted_for_and_repeats_are_found(run: Run) -> None:
    folder = shared("chinese-poetry", "全唐诗")
    poems = [poem for path in sorted(folder.glob("*.json")) for poem in records_of(path)]
    texts = {"\n".join(line.rstrip() for line in poem["paragraphs"]).strip("\n") for poem in poems}  # type: ignore[index]
    account = run(folder).account
    assert account.rows_in == len(poems) + 1  # and README.md, a document
    empty = account.rejected.get("empty_text", 0)
    assert account.rows_out == len(texts - {""}) + 1
    assert account.duplicates == account.rows_in - account.rows_out - empty


def test_statutes_are_one_document_each(run: Run) -> None:
    folder = shared("laws")
    documents = sorted(folder.rglob("*.md"))
    account = run(folder).account
    versions = len((folder / "VERSIONS.tsv").read_text("utf-8").splitlines()) - 1
    assert account.rejected == {"unknown_shape": versions}
    assert account.rows_in == len(documents) + versions
    assert account.rows_out == len({path.read_text("utf-8").strip() for path in documents})
