from __future__ import annotations

import pyarrow as pa

from ingest.statistics import add, describe, languages

TEXTS = ["汉字𠮷 abc 123", "", "ひらカナ", "한글", "Привет", "，。！"]


def table(texts: list[str]) -> pa.Table:
    return pa.table({"text": pa.array(texts, pa.large_string())})


def test_lengths_and_scripts_are_counted_in_code_points() -> None:
    found = describe("text", table(TEXTS))
    assert found["rows"] == 6
    assert found["characters"] == sum(map(len, TEXTS))
    field = found["fields"]["text"]
    assert (field["empty"], field["longest"]) == (1, 11)
    assert field["bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert field["lengths"][:5] == [1, 0, 2, 2, 1]
    assert found["scripts"] == {
        "other": 3, "han": 3, "latin": 3, "kana": 4, "hangul": 2, "cyrillic": 6, "digit": 3, "space": 2,
    }  # fmt: skip


def test_statistics_of_parts_add_up() -> None:
    together = add([describe("text", table(TEXTS[:2])), describe("text", table(TEXTS[2:]))])
    assert together == describe("text", table(TEXTS))


def test_a_sliced_column_is_counted_where_it_lies() -> None:
    assert describe("text", table(TEXTS).slice(2, 2)) == describe("text", table(TEXTS[2:4]))


def test_languages_come_from_scripts() -> None:
    assert languages(describe("text", table(["中文为主 a"]))) == ["zh", "en"]
    assert languages(describe("text", table(["これは日本語の文です"]))) == ["ja"]
    assert languages(describe("text", table(["123"]))) == []


def test_turns_are_counted() -> None:
    turn = pa.struct([("role", pa.large_string()), ("content", pa.large_string())])
    messages = pa.array(
        [[{"role": "user", "content": "一"}, {"role": "assistant", "content": "二三"}], []], pa.list_(turn)
    )
    found = describe("messages", pa.table({"messages": messages}))
    assert (found["rows"], found["turns"], found["characters"]) == (2, 2, 3)
