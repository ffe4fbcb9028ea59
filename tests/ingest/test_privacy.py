"""A value planted in a finding or a reject is nowhere: not in the run folder, not in the catalog, not in a log."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.run import Outcome
from tests.ingest.conftest import Run, findings_of, rows_of, write_jsonl
from tests.support.catalog_server import RunningCatalog

MOBILE, SECOND = "13912345678", "15887654321"
EMAIL = "li.lei.planted@example.com"


def luhn(body: str) -> str:
    digits = [int(digit) for digit in body]
    total = sum(sum(divmod(digit * 2, 10)) if place % 2 == 0 else digit for place, digit in enumerate(digits[::-1]))
    return body + str(-total % 10)


def resident(body: str) -> str:
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    return body + "10X98765432"[sum(int(digit) * weight for digit, weight in zip(body, weights, strict=True)) % 11]


CARD = luhn("622202000000012345")
RESIDENT = resident("11010119900307000")
NAMES = ("instruction", "input", "output")
VALUES = (MOBILE, SECOND, EMAIL, CARD, RESIDENT)


def strings(path: Path) -> Iterator[bytes]:
    """The raw bytes of a file, and of every table inside it."""
    data = path.read_bytes()
    yield data
    yield path.name.encode()
    if data[:4] == b"PAR1":
        yield json.dumps(pq.read_table(path).to_pylist(), ensure_ascii=False, default=str).encode()
        yield str(pq.read_metadata(path).to_dict()).encode()
    elif data[:6] == b"ARROW1":
        with pa.memory_map(str(path)) as source:
            yield json.dumps(pa.ipc.open_file(source).read_all().to_pylist(), ensure_ascii=False, default=str).encode()


def assert_nowhere(folder: Path, values: tuple[str, ...]) -> None:
    seen = 0
    for path in folder.rglob("*"):
        if path.is_file():
            seen += 1
            for text in strings(path):
                for value in values:
                    assert value.encode() not in text, f"a planted value is in {path.relative_to(folder)}"
    assert seen


def corpus(folder: Path) -> Path:
    source = folder / "planted"
    write_jsonl(
        source / "a.jsonl",
        [
            {
                "id": MOBILE,
                "text": f"请打{MOBILE}，或者写信到{EMAIL}。",
                "meta": {"owner": {"tel": MOBILE, "n": int(SECOND)}},
            },
            {
                "id": "2",
                "text": "电话：１３９１２３４５６７８，身份证" + RESIDENT,
                "meta": {EMAIL: {"card": [f"卡号{CARD}"]}},
            },
            {"id": "3", "text": "没有", "meta": {"long": 10**20, "tel": "5551234", "ratio": 0.5}},
            {"id": "4", "wrong": f"卡号{CARD}"},
        ],
    )
    with (source / "a.jsonl").open("ab") as sink:
        sink.write(f'{{"text": "{MOBILE}", "x": }}\n{{"text": "{EMAIL} \\udcb2"}}\n{{"text": "{SECOND}\0"}}\n'.encode())
        sink.write(f'{{"text": "{RESIDENT} '.encode() + b'\xff"}\n')
    return source


@pytest.fixture
def outcome(run: Run, tmp_path: Path) -> Outcome:
    return run(corpus(tmp_path))


def test_a_planted_value_is_nowhere_in_the_run_folder(outcome: Outcome) -> None:
    assert outcome.account.rows_in == 8
    assert outcome.account.rows_out == 3
    assert_nowhere(outcome.folder, VALUES)


def test_a_planted_value_is_nowhere_in_the_catalog(outcome: Outcome, catalog: RunningCatalog) -> None:
    assert_nowhere(catalog.data, VALUES)
    with sqlite3.connect(catalog.data / "catalog.db") as database:
        dump = "\n".join(database.iterdump())
    database.close()
    assert not [value for value in VALUES if value in dump]


def test_rows_are_redacted_in_texts_ids_meta_and_its_keys(outcome: Outcome) -> None:
    first, second, third = rows_of(outcome)
    assert first["text"] == "请打<手机号_1>，或者写信到<邮箱_1>。"
    assert json.loads(first["meta"]) == {"owner": {"tel": "<手机号_1>", "n": "<手机号_2>"}}
    assert first["id"] != MOBILE
    assert len(first["id"]) == 32
    assert second["text"] == "电话：<手机号_1>，身份证<身份证号_1>"
    assert json.loads(second["meta"]) == {"<邮箱_1>": {"card": ["卡号<银行卡号_1>"]}}
    assert third["meta"] == '{"long":100000000000000000000,"ratio":0.5,"tel":"5551234"}'


def test_findings_point_at_the_values_and_do_not_hold_them(outcome: Outcome) -> None:
    found = [(row["field"], row["entity"]) for row in findings_of(outcome) if row["document_id"] == "2"]
    assert found == [
        ("text", "mobile"),
        ("text", "resident_id"),
        ("meta.*.card[0]", "bank_card"),
        ("meta.{key}", "email"),
    ]
    text = "电话：１３９１２３４５６７８，身份证" + RESIDENT
    mobile, identity = [row for row in findings_of(outcome) if row["document_id"] == "2" and row["field"] == "text"]
    assert text[mobile["start"] : mobile["end"]] == "１３９１２３４５６７８"
    assert text.encode()[identity["start_byte"] : identity["end_byte"]].decode() == RESIDENT
    assert {row["field"] for row in findings_of(outcome)} >= {"id", "meta.owner.tel", "meta.owner.n"}


@pytest.mark.parametrize("schema", ["instruction", "messages"])
def test_a_value_has_one_placeholder_throughout_a_record(run: Run, tmp_path: Path, schema: str) -> None:
    records: list[dict[str, Any]] = [
        {
            "instruction": f"打{SECOND}或{MOBILE}",
            "input": f"{MOBILE}是谁的？",
            "output": f"{SECOND}是他的，{MOBILE}是她的",
        },
        {"instruction": f"打{MOBILE}", "input": "", "output": "好"},
    ]
    if schema == "messages":
        roles = itertools.cycle(["user", "user", "assistant"])
        records = [
            {"messages": [{"role": next(roles), "content": record[name]} for name in NAMES]} for record in records
        ]
    outcome = run(write_jsonl(tmp_path / "x.jsonl", records))
    rows = [
        [turn["content"] for turn in row["messages"]] if schema == "messages" else list(row.values())[1:4]
        for row in rows_of(outcome)
    ]
    assert rows == [
        ["打<手机号_1>或<手机号_2>", "<手机号_2>是谁的？", "<手机号_1>是他的，<手机号_2>是她的"],
        ["打<手机号_1>", "", "好"],
    ]
    fields = {row["field"] for row in findings_of(outcome)}
    turns = {f"messages[{turn}].content" for turn in range(3)}
    assert fields == (turns if schema == "messages" else set(NAMES))
