from __future__ import annotations

import json
from typing import Any

import pytest

from ingest.mapping import MapRule
from ingest.shapes import BY_NAME, Row, recognise
from tests.support.shared_data import shared


def convert(record: dict[str, Any]) -> tuple[str, Row]:
    shape = recognise([record])
    assert shape is not None
    row = shape.convert(record)
    assert row is not None
    return shape.schema, row


DIALOGUE = ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize(
    ("record", "texts"),
    [
        ({"instruction": "译", "input": "猫", "output": "cat"}, ["译", "猫", "cat"]),
        ({"instruction": "写诗", "output": "春眠"}, ["写诗", "", "春眠"]),
        ({"instruction": "写诗", "input": None, "output": "春眠"}, ["写诗", "", "春眠"]),
        ({"input": "问", "target": "答"}, ["问", "", "答"]),
    ],
)
def test_alpaca_and_belle_become_instruction(record: dict[str, Any], texts: list[str]) -> None:
    schema, row = convert(record)
    assert (schema, row.texts, row.meta) == ("instruction", texts, {})


SAID = ["甲", "乙", "丙", "丁"]


def spoken(who: str, what: str, first: str, second: str) -> list[dict[str, str]]:
    return [{who: second if number % 2 else first, what: text} for number, text in enumerate(SAID)]


PARTS = [
    {**turn, "content": [{"type": "text", "text": turn["content"]}]}
    for turn in spoken("role", "content", "user", "assistant")
]
MOSS = {
    f"turn_{number + 1}": {
        "Human": f"<|Human|>: {SAID[2 * number]}<eoh>\n",
        "MOSS": f"<|MOSS|>: {SAID[2 * number + 1]}<eom>\n",
    }
    for number in range(2)
}


@pytest.mark.parametrize(
    "record",
    [
        {"conversations": spoken("from", "value", "human", "gpt")},
        {"conversations": spoken("from", "value", "human", "assistant")},
        {"messages": spoken("role", "content", "user", "assistant")},
        {"messages": PARTS},
        {"messages": [{"message": text} for text in SAID]},
        {"messages": spoken("role", "content", "usr", "sys")},
        {"instruction": "Human:甲\nAssistant:乙\nHuman: 丙\nAssistant:", "input": "", "output": "丁"},
        {"input": "Human: 甲\n\nAssistant: 乙\n\nHuman: 丙\n \nAssistant:", "target": "丁"},
        {"plain_text": "[Human]: 甲<eoh> [MOSS]: 乙<eoa> [Human]: 丙<eoh> [MOSS]: 丁<eoa>"},
        {"chat": MOSS},
    ],
)
def test_every_way_to_write_a_dialogue_becomes_messages(record: dict[str, Any]) -> None:
    schema, row = convert(record)
    assert (schema, row.roles, row.texts) == ("messages", DIALOGUE, ["甲", "乙", "丙", "丁"])


def test_what_turns_say_beside_their_text_goes_to_meta() -> None:
    _, row = convert({"messages": [{"message": "甲"}, {"message": "乙", "attrs": [{"name": "n"}]}], "name": "题"})
    assert row.meta == {"name": "题", "messages": [{}, {"attrs": [{"name": "n"}]}]}


def test_redpajama_meta_is_unfolded_and_may_differ_per_row() -> None:
    _, row = convert({"text": "x", "meta": {"url": "u"}, "red_pajama_subset": "c4"})
    assert row.meta == {"url": "u", "red_pajama_subset": "c4"}
    _, row = convert({"text": "x", "meta": {"lang": "a"}, "lang": "b"})
    assert row.meta == {"meta": {"lang": "a"}, "lang": "b"}


def test_ids_are_strings_and_exact() -> None:
    assert (
        convert({"id": 123456789012345678901234567890, "text": "x"})[1].identifier == "123456789012345678901234567890"
    )
    assert convert({"id": "", "text": "x"})[1].identifier is None
    assert convert({"id": True, "text": "x"})[1].meta == {"id": True}


def test_a_poem_is_its_lines_and_its_title_is_meta() -> None:
    _, row = convert({"title": "静夜思", "author": "李白", "paragraphs": ["床前明月光，", "疑是地上霜。"]})
    assert row.texts == ["床前明月光，\n疑是地上霜。"]
    assert row.meta == {"title": "静夜思", "author": "李白"}


def test_a_file_is_of_the_shape_that_most_records_have() -> None:
    shape = recognise([{"oops": 1}, {"text": "a"}, {"text": "b"}, ["x"]])
    assert shape is BY_NAME["text"]


def test_unknown_records_have_no_shape() -> None:
    assert recognise([{"foo": "bar"}, 3, None]) is None


@pytest.mark.parametrize(
    "record",
    [
        {"messages": []},
        {"messages": [{"role": "narrator", "content": "x"}]},
        {"messages": [{"role": "user"}]},
        {"text": 3},
    ],
)
def test_records_that_lack_something_are_refused(record: dict[str, Any]) -> None:
    assert recognise([record]) is None


def test_real_dialogues_of_crosswoz_form_are_told_by_their_roles() -> None:
    records = json.loads(shared("kdconv", "data", "music", "dev.json").read_bytes())
    shape = recognise(records[:50])
    assert shape is BY_NAME["kdconv"]
    rows = [shape.convert(record) for record in records]
    assert all(row is not None and row.roles is not None and row.roles[:2] == ["user", "assistant"] for row in rows)
    assert sum(len(row.texts) for row in rows if row) == sum(len(record["messages"]) for record in records)


def test_poems_of_all_real_collections_are_read() -> None:
    counted = 0
    for path in sorted(shared("chinese-poetry").rglob("*.json")):
        document = json.loads(path.read_bytes())
        records = document if isinstance(document, list) else [document]
        shape = recognise(records[:50])
        if shape is not None:
            counted += sum(shape.convert(record) is not None for record in records)
        else:
            assert path.name in ("authors.json", "intro.json", "author.song.json")
    assert counted == 14845


def test_a_map_takes_paths_and_leaves_the_rest_to_meta() -> None:
    rule = MapRule.model_validate({"schema": "text", "text": "body.html", "id": "key"})
    row = rule.convert({"key": 7, "body": {"html": "正文", "lang": "zh"}, "x": 1})
    assert row == Row("7", ["正文"], {"body": {"lang": "zh"}, "x": 1})
    assert rule.convert({"body": {}}) is None


def test_a_map_of_messages_renames_roles() -> None:
    rule = MapRule.model_validate(
        {"schema": "messages", "messages": "dialog", "role": "who", "content": "said", "roles": {"客服": "assistant"}}
    )
    row = rule.convert({"dialog": [{"who": "user", "said": "在吗"}, {"who": "客服", "said": "在"}]})
    assert row is not None
    assert row.roles == ["user", "assistant"]
    assert rule.convert({"dialog": [{"who": "旁白", "said": "x"}]}) is None
