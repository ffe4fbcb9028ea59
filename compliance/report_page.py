"""A report as Markdown, headings in Chinese and English. Everything that comes from data is escaped."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from compliance.finding_counts import BANDS
from openshelf.units import format_size

_LONGEST_TEXT = 300
_MARKUP = re.compile(
    r"[\\`*\[\]<>|~!&{}@]"  # what means something wherever it stands
    r"|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])"  # emphasis, but not resident_id
    r"|^[#+=:-]|^\d{1,9}[.)]"  # headings and lists at the beginning
    r"|(?<=[A-Za-z]):(?=\S)|(?<=[wW])\."  # bare addresses: https://…, mailto:…, www.…
)

_ENTITIES = {
    "resident_id": "身份证号 resident_id",
    "mobile": "手机号 mobile",
    "email": "邮箱 email",
    "bank_card": "银行卡号 bank_card",
    "uscc": "统一社会信用代码 uscc",
    "ipv4": "IP 地址 ipv4",
    "plate": "车牌号 plate",
}
_ACTIONS = {
    "replace": "替换 replace",
    "mask": "掩码 mask",
    "keep": "保留 keep",
    "drop_document": "丢弃文档 drop_document",
    "reject": "拒收 reject",
}
_USES = {
    "all": "不限 all",
    "non-commercial": "非商业 non-commercial",
    "academic": "学术 academic",
    "unspecified": "未说明 unspecified",
}


def escape(text: object) -> str:
    """``text`` as literal Markdown on one line: markup escaped, control and invisible characters replaced.

    No link, tag, entity, table border, emphasis, heading, list or bare address can come of it; what is no markup stays
    readable as it is.
    """
    shown = "".join(
        "\ufffd" if unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp") else char for char in str(text)
    )
    if len(shown) > _LONGEST_TEXT:
        shown = shown[:_LONGEST_TEXT] + "…"
    return _MARKUP.sub(lambda match: match.group()[:-1] + "\\" + match.group()[-1], shown)


def _code(text: object) -> str:
    """A digest or identifier in code style; backticks cannot occur in it after cleaning."""
    return (
        "`" + "".join(char for char in str(text) if char.isascii() and (char.isalnum() or char in "-_.@/:+() ")) + "`"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def _number(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else escape(value)


def _yes(value: bool) -> str:
    return "是 yes" if value else "否 no"


def to_markdown(report: Mapping[str, Any]) -> str:
    """The page of a report that :func:`compliance.report.build` made."""
    lines = [f"# 处理报告 Report: {escape(report['release'])}", ""]
    if not report["complete"]:
        lines += ["**未完整：有来源被截断。Incomplete: a source was cut short.**", ""]
    lines += [f"- 日期 Date: {escape(report['created'])}", f"- 代码版本 Code: {escape(report['code_version'])}"]
    lines += [f"- 配方摘要 Recipe digest: {_code(report['recipe_digest'])}"]
    lines += [f"- 策略 Policy: {escape(report['policy']['name'])} {_code(report['policy']['digest'])}", ""]
    for remark in report["remarks"]:
        lines += [f"> {escape(remark)}", ""]
    for part in (_licence, _sources, _stages, _rejects, _findings, _dedup, _splits, _statistics):
        lines += part(report)
    return "\n".join(lines).rstrip() + "\n"


def _licence(report: Mapping[str, Any]) -> list[str]:
    lines = ["## 许可 Licence", ""]
    licence = report["licence"]
    if licence is None:
        return [*lines, "没有许可，不能提交。No licence yet: the release cannot be submitted.", ""]
    lines += [
        f"- SPDX: {_code(licence['expression'])}",
        f"- 用途 Use: {_USES[licence['use']]}",
        f"- 署名 Attribution: {_yes(licence['attribution'])}",
        f"- 相同方式共享 Share-alike: {_yes(licence['share_alike'])}",
        f"- 禁止演绎 No derivatives: {_yes(licence['no_derivatives'])}",
        "",
        "### 依据 Evidence",
        "",
    ]
    for item in report["evidence"]:
        lines.append("- " + "; ".join(f"{escape(key)}: {escape(value)}" for key, value in item.items()))
    return [*lines, *([] if report["evidence"] else ["没有依据。None given."]), ""]


def _sources(report: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            escape(source["name"]), escape(source["form"]), _number(source["rows"]), format_size(source["size_bytes"]),
            escape(source["licence"] or "-"), _code(source["sha256"]),
        )
        for source in report["sources"]
    ]  # fmt: skip
    head = ("文件 File", "格式 Form", "行 Rows", "大小 Size", "许可 Licence", "SHA-256")
    urls = [f"- {escape(url)}" for url in report["source_urls"]]
    return ["## 来源 Sources", "", *_table(head, rows), *urls, *([""] if urls else [])]


def _stages(report: Mapping[str, Any]) -> list[str]:
    keys = ("rows_in", "rows_out", "rejected", "duplicates")
    rows = [(escape(stage["name"]), *(_number(stage[key]) for key in keys)) for stage in report["stages"]]
    head = ("阶段 Stage", "进 In", "出 Out", "拒收 Rejected", "重复 Duplicates")
    return ["## 各阶段行数 Rows per stage", "", *_table(head, rows)]


def _rejects(report: Mapping[str, Any]) -> list[str]:
    rows = [(escape(reason), _number(count)) for reason, count in report["rejects"].items()]
    body = _table(("原因 Reason", "行 Rows"), rows) if rows else ["没有。None.", ""]
    return ["## 拒收 Rejects", "", *body]


def _findings(report: Mapping[str, Any]) -> list[str]:
    lines = ["## 个人信息 Personal data", ""]
    counts, removed = report["findings"], report["removed_findings"]
    if not counts["cells"]:
        lines += ["没有发现。None found.", ""]
    else:
        lines += ["各列为置信度区间。Columns are score bands.", "", *_finding_table(counts)]
        detectors = [(escape(name), _number(count)) for name, count in counts["detectors"].items()]
        lines += _table(("规则 Detector", "次数 Findings"), detectors)
    if removed["cells"]:
        lines += ["### 已随文档移除 Removed with their documents", ""]
        lines += ["这些文档不在发布版本中。These documents are not in the release.", "", *_finding_table(removed)]
    return lines


def _finding_table(counts: Mapping[str, Any]) -> list[str]:
    cells: dict[tuple[str, str], dict[str, int]] = {}
    for cell in counts["cells"]:
        cells.setdefault((cell["entity"], cell["action"]), {})[cell["band"]] = cell["count"]
    rows = [
        (
            _ENTITIES.get(entity, escape(entity)), _ACTIONS.get(action, escape(action)),
            *(_number(bands.get(name, 0)) for name in BANDS), _number(sum(bands.values())),
        )
        for (entity, action), bands in cells.items()
    ]  # fmt: skip
    return _table(("类型 Entity", "处理 Action", *BANDS, "合计 Total"), rows)


def _dedup(report: Mapping[str, Any]) -> list[str]:
    return ["## 去重 Deduplication", "", *_pairs(report["dedup"])]


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [*(f"- {escape(key)}: {_number(value)}" for key, value in values.items()), ""]


def _splits(report: Mapping[str, Any]) -> list[str]:
    rows = [
        (escape(split["name"]), _number(split["rows"]), _number(split["files"]), format_size(split["size_bytes"]))
        for split in report["splits"]
    ]
    return ["## 划分 Splits", "", *_table(("划分 Split", "行 Rows", "文件 Files", "大小 Size"), rows)]


def _statistics(report: Mapping[str, Any]) -> list[str]:
    lines = ["## 统计 Statistics", ""]
    plain = {key: value for key, value in report["statistics"].items() if not isinstance(value, Mapping)}
    lines += _pairs(plain)
    for key, value in report["statistics"].items():
        if isinstance(value, Mapping):
            lines += [f"### {escape(key)}", "", *_pairs(value)]
    return lines
