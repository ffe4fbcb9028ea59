"""Placeholders, masks and dropped documents."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compliance.detect import Detector
from compliance.policy import Policy
from compliance.redact import PLACEHOLDERS, masked, normalised, redact
from tests.compliance.planted import FULL_WIDTH, MAKERS, corpus

DETECTOR = Detector()
STANDARD = Policy.load("standard")


def redacted(texts: list[str | None], policy: Policy = STANDARD, groups: list[int] | None = None) -> list[str | None]:
    column = pa.array(texts, pa.large_string())
    numbers = None if groups is None else pa.array(groups, pa.uint64())
    new, _ = redact(column, DETECTOR.scan(column), policy, numbers)
    result: list[str | None] = new.to_pylist()
    return result


def test_every_entity_has_its_placeholder() -> None:
    text = (
        "身份证11010519491231002X，电话13812345678，邮箱a@example.com，卡号6222021234567890128，"
        "税号91350100M000100Y43，IP 203.0.113.7，车牌京A·12345。"
    )
    assert redacted([text]) == [
        "身份证<身份证号_1>，电话<手机号_1>，邮箱<邮箱_1>，卡号<银行卡号_1>，"
        "税号<统一社会信用代码_1>，IP <IP地址_1>，车牌<车牌号_1>。"
    ]


def test_equal_values_in_any_spelling_share_a_number_within_a_document() -> None:
    text = "13812345678 或 +86 138-1234-5678 或 １３８１２３４５６７８，另 13912345678"
    assert redacted([text]) == ["<手机号_1> 或 <手机号_1> 或 <手机号_1>，另 <手机号_2>"]


def test_numbers_run_through_a_dialogue_and_start_again_in_the_next() -> None:
    texts: list[str | None] = ["13812345678", "13912345678", "还是13812345678", "13912345678"]
    assert redacted(texts, groups=[7, 7, 7, 9]) == ["<手机号_1>", "<手机号_2>", "还是<手机号_1>", "<手机号_1>"]
    assert redacted(texts) == ["<手机号_1>", "<手机号_1>", "还是<手机号_1>", "<手机号_1>"]


@pytest.mark.parametrize(
    ("entity", "values"),
    [
        ("mobile", ["13812345678", "+86 138 1234 5678", "0086-138.1234.5678", "８６１３８１２３４５６７８"]),
        ("resident_id", ["11010519491231002X", "110105 19491231 002x", "11010519491231002×"]),
        ("email", ["A@Example.com", "a@example.com", "a[at]example.com", "a＠example.com", "a(at)example(dot)com"]),
        ("plate", ["京A12345", "京a·12345", "京A•12345", "京A-12345", "京Ａ12345"]),
        ("bank_card", ["6222021234567890128", "6222 0212 3456 7890 128"]),
    ],
)
def test_spellings_of_one_value_normalise_to_one(entity: str, values: list[str]) -> None:
    assert len({normalised(entity, value) for value in values}) == 1


def test_masks_hide_the_middle() -> None:
    assert masked("mobile", "13812345678") == "138****5678"
    assert masked("mobile", "+86 138-1234-5678") == "+86 138-****-5678"
    assert masked("resident_id", "11010519491231002X") == "1****************X"
    assert masked("email", "zhang.san@example.com") == "z***@example.com"
    assert masked("bank_card", "6222 0212 3456 7890 128") == "**** **** **** ***0 128"
    assert masked("ipv4", "203.0.113.7") == "203.0.*.*"
    assert masked("plate", "京A·12345") == "京A·****5"
    assert masked("uscc", "91350100M000100Y43") == "91**************43"


def test_masked_and_replaced_text_holds_no_more_findings() -> None:
    texts, _ = corpus(8, 1_000)
    for policy in (STANDARD, Policy.from_document({"default": "mask"})):
        after = redacted(list(texts), policy)
        left = [row for row in DETECTOR.scan(pa.array(after)).to_pylist() if row["score"] >= 0.5]
        assert left == []


def test_a_dropped_or_rejected_document_becomes_null() -> None:
    policy = Policy.from_document({"entities": {"email": "drop_document", "mobile": "replace", "uscc": "reject"}})
    texts: list[str | None] = ["a@example.com 13812345678", "13812345678", "91350100M000100Y43"]
    column = pa.array(texts)
    new, acted = redact(column, DETECTOR.scan(column), policy)
    assert new.to_pylist() == [None, "<手机号_1>", None]
    assert acted["action"].to_pylist() == ["drop_document", "replace", "replace", "reject"]


def test_low_scores_and_report_only_are_kept_and_reported() -> None:
    column = pa.array(["127.0.0.1", "13812345678"])
    new, acted = redact(column, DETECTOR.scan(column), STANDARD)
    assert new.to_pylist() == ["127.0.0.1", "<手机号_1>"]
    assert acted["action"].to_pylist() == ["keep", "replace"]
    same, acted = redact(column, DETECTOR.scan(column), Policy.load("report-only"))
    assert same is column
    assert set(acted["action"].to_pylist()) == {"keep"}


def test_type_chunks_and_untouched_rows_stay() -> None:
    for kind in (pa.string(), pa.large_string()):
        column = pa.chunked_array([["a", None, "13812345678"], [], ["b"], ["13812345678😀"]], kind)
        new, _ = redact(column, DETECTOR.scan(column), STANDARD)
        assert new.type == kind
        assert [chunk.to_pylist() for chunk in new.chunks] == [["a", None, "<手机号_1>"], [], ["b"], ["<手机号_1>😀"]]
        assert new.chunk(2) is not None and new.chunk(2).buffers()[2].address == column.chunk(2).buffers()[2].address


han = st.text(alphabet="的一是在不了有和人，。😀𠀀é\n", max_size=20)
part = st.tuples(han, st.sampled_from(sorted(MAKERS)), st.integers(0, 2**32), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(part, max_size=4), min_size=1, max_size=5), han)
def test_no_planted_value_survives_and_nothing_else_changes(
    rows: list[list[tuple[str, str, int, bool]]], end: str
) -> None:
    texts: list[str | None] = []
    fillers: list[list[str]] = []
    values: list[str] = []
    for parts in rows:
        text, between = "", []
        for before, entity, seed, wide in parts:
            value = MAKERS[entity](random.Random(seed))
            value = value.translate(FULL_WIDTH) if wide else value
            text += f"{before}，" + value
            between.append(f"{before}，")
            values.append(value)
        texts.append(text + end)
        fillers.append([*between, end])
    for new, between, parts in zip(redacted(texts), fillers, rows, strict=True):
        assert new is not None
        assert not any(value in new for value in values)
        rest = new
        for name in PLACEHOLDERS.values():
            for number in range(1, 5):
                rest = rest.replace(f"<{name}_{number}>", "\x00")
        assert rest.split("\x00") == between
        assert rest.count("\x00") == len(parts)


def test_numbers_go_on_behind_placeholders_that_a_dialogue_holds_already() -> None:
    column = pa.array(["<手机号_3>", "13800138000", "+86 138 0013 8000 与 13900139000", "<邮箱_7>13800138000"])
    redacted, _ = redact(column, Detector().scan(column), Policy.load("standard"), pa.array([0, 0, 0, 1], pa.uint64()))
    assert redacted.to_pylist() == ["<手机号_3>", "<手机号_4>", "<手机号_4> 与 <手机号_5>", "<邮箱_7><手机号_1>"]


def test_without_groups_a_document_is_its_own() -> None:
    column = pa.array(["<手机号_3>13800138000", "13800138000"])
    redacted, _ = redact(column, Detector().scan(column), Policy.load("standard"))
    assert redacted.to_pylist() == ["<手机号_3><手机号_4>", "<手机号_1>"]


def test_spellings_with_invisible_characters_are_the_same_value() -> None:
    column = pa.array(["13800138000 138\u200b0013\u20608000 a@b.com a\u200d@b.\u00adcom 京A12345 京A\u200b12345"])
    redacted, _ = redact(column, Detector().scan(column), Policy.load("standard"))
    assert redacted.to_pylist() == ["<手机号_1> <手机号_1> <邮箱_1> <邮箱_1> <车牌号_1> <车牌号_1>"]
