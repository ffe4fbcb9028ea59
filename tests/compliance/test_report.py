"""The report of a release, as JSON and as Markdown."""

from __future__ import annotations

import dataclasses
import json

import pyarrow as pa
import pytest
from markdown_it import MarkdownIt

from compliance.detect import Detector
from compliance.finding_counts import FindingCounts, band
from compliance.licences import Evidence, parse
from compliance.policy import Policy
from compliance.redact import redact
from compliance.report import ReportError, ReportFacts, SourceFacts, SplitFacts, StageFacts, build, to_markdown
from compliance.report_page import escape

TEXTS = ["电话13812345678", "127.0.0.1", "a@example.com 和 13912345678", "11010519491231002X"]


def counts() -> FindingCounts:
    column = pa.array(TEXTS)
    _, acted = redact(column, Detector().scan(column), Policy.load("standard"))
    result = FindingCounts()
    result.add(acted)
    return result


def facts(**changes: object) -> ReportFacts:
    basic = ReportFacts(
        release="datasets/belle/chat@1.0",
        created="2026-11-30T00:00:00Z",
        sources=[SourceFacts("a.jsonl", "ab" * 32, 2048, "jsonl", 10, "CC-BY-4.0")],
        stages=[StageFacts("read", 10, 9, 1, 0), StageFacts("dedup", 9, 7, 0, 2)],
        rejects={"not_json": 1},
        findings=counts(),
        licence=parse("CC-BY-4.0"),
        evidence=[Evidence(url="https://example.com/licence", recognised="CC-BY-4.0")],
        source_urls=["https://example.com/data"],
        dedup={"method": "exact", "removed": 2},
        splits=[SplitFacts("train", 7, 1, 1_500_000)],
        statistics={"characters": 1234567, "mean_length": 12.5, "languages": {"zh": 7}},
        policy=Policy.load("standard"),
        recipe_digest="cd" * 32,
        code_version="0.1.0",
    )
    return dataclasses.replace(basic, **changes)  # type: ignore[arg-type]


def test_findings_are_counted_by_entity_action_and_band() -> None:
    document = counts().to_document()
    assert document["cells"] == [
        {"entity": "email", "action": "replace", "band": "0.9-1.0", "count": 1},
        {"entity": "ipv4", "action": "keep", "band": "0.0-0.5", "count": 1},
        {"entity": "mobile", "action": "replace", "band": "0.7-0.9", "count": 1},
        {"entity": "mobile", "action": "replace", "band": "0.9-1.0", "count": 1},
        {"entity": "resident_id", "action": "replace", "band": "0.9-1.0", "count": 1},
    ]
    assert counts().by_entity() == {"email": 1, "ipv4": 1, "mobile": 2, "resident_id": 1}
    assert FindingCounts.from_document(json.loads(json.dumps(document))).to_document() == document
    assert FindingCounts.total([counts(), counts()]).by_entity()["mobile"] == 4
    assert [band(score) for score in (1.0, 0.9, 0.8999, 0.7, 0.5, 0.49999, 0.0)] == [
        "0.9-1.0", "0.9-1.0", "0.7-0.9", "0.7-0.9", "0.5-0.7", "0.5-0.7", "0.0-0.5",
    ]  # fmt: skip


def test_the_same_facts_give_the_same_report_and_it_is_json() -> None:
    first, second = build(facts()), build(facts())
    assert json.dumps(first) == json.dumps(second)
    assert to_markdown(first) == to_markdown(json.loads(json.dumps(second)))


def test_no_detected_value_is_in_the_report() -> None:
    named_by_number = facts(
        sources=[SourceFacts("客户13812345678.jsonl", "ab" * 32, 1, "jsonl", 10)],
        evidence=[Evidence(url="https://example.com/", note="asked a@example.com")],
        remarks=["see 11010519491231002X"],
    )
    report = build(named_by_number)
    page = json.dumps(report, ensure_ascii=False) + to_markdown(report)
    for value in ("13812345678", "13912345678", "a@example.com", "11010519491231002X", "127.0.0.1"):
        assert value not in page
        assert escape(value) not in page
    assert report["sources"][0]["name"] == "客户<手机号_1>.jsonl"


def test_rows_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ReportError, match="Stage read: 10 rows in, but 8 out, 1 rejected and 0 duplicates"):
        build(facts(stages=[StageFacts("read", 10, 8, 1, 0)]))


def test_the_page_shows_every_part_in_both_languages() -> None:
    page = to_markdown(build(facts()))
    for heading in (
        "许可 Licence", "来源 Sources", "各阶段行数 Rows per stage", "拒收 Rejects", "个人信息 Personal data",
        "去重 Deduplication", "划分 Splits", "统计 Statistics",
    ):  # fmt: skip
        assert f"\n## {heading}\n" in page
    assert "| read | 10 | 9 | 1 | 0 |" in page
    assert "| 手机号 mobile | 替换 replace | 1 | 1 | 0 | 0 | 2 |" in page
    assert "1,234,567" in page
    assert "Incomplete" not in page
    assert "Incomplete" in to_markdown(build(facts(complete=False)))
    assert "cannot be submitted" in to_markdown(build(facts(licence=None, evidence=[])))


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "[click](javascript:alert(1))",
        "![x](https://evil.example/p.png)",
        "a | b | c",
        "# heading\n\n- item\n```\ncode",
        "https://evil.example www.evil.example",
        "&lt;b&gt; `code` **bold** ~~no~~",
        "\u202egpj.exe\u2066\u200b\x00\x1b[31m\u2028x",
    ],
)
def test_hostile_names_stay_text_on_their_line(hostile: str) -> None:
    report = build(
        facts(
            release=hostile,
            sources=[SourceFacts(hostile, "ab" * 32, 1, hostile, 1, hostile)],
            rejects={hostile: 1},
            statistics={hostile: hostile, "x" + hostile: {hostile: 1}},
            dedup={hostile: 1},
            splits=[SplitFacts(hostile, 1, 1, 1)],
            stages=[StageFacts(hostile, 1, 1)],
            remarks=[hostile],
            code_version=hostile,
        )
    )
    page = to_markdown(report)
    plain = to_markdown(build(facts(release="r", remarks=["r"])))
    assert not any(char in page for char in "\u202e\u2066\u200b\x00\x1b\u2028")
    html = MarkdownIt("gfm-like", {"linkify": False}).render(page)
    for tag in ("<script", "<a ", "<img", "<b>", "<code>code", "<strong>bold", "<s>", "<pre"):
        assert tag not in html
    assert html.count("<h1>") == 1
    assert page.count("\n# ") + page.startswith("# ") == 1
    assert page.count("\n## ") == plain.count("\n## ")
    sources = next(line for line in page.splitlines() if "`abab" in line)
    assert len([char for index, char in enumerate(sources) if char == "|" and sources[index - 1] != "\\"]) == 7
