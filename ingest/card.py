"""``README.md``: the card of a release, whose YAML head lets ``datasets.load_dataset`` open the folder by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ingest.recipe import Recipe
from ingest.shapes import Schema
from ingest.statistics import Statistics, languages

_HUB_LICENCES = frozenset({
    "apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0",
    "cc-by-nd-4.0", "cc-by-3.0", "cc-by-sa-3.0", "cc0-1.0", "bsd-2-clause", "bsd-3-clause", "gpl-2.0", "gpl-3.0",
    "lgpl-3.0", "agpl-3.0", "odbl", "unlicense", "wtfpl", "mpl-2.0", "isc", "artistic-2.0", "odc-by", "pddl",
})  # fmt: skip
_SIZES = (
    (10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"),
    (10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B"), (10**12, "100B<n<1T"),
)  # fmt: skip
_FIELDS: dict[Schema, tuple[tuple[str, str, str], ...]] = {
    "text": (("text", "the document", "文本"),),
    "instruction": (
        ("instruction", "what is asked", "指令"),
        ("input", "what it is asked about, may be empty", "输入，可为空"),
        ("output", "the answer", "输出"),
    ),
    "messages": (("messages", "turns of `role` and `content`", "多轮对话，含 `role` 与 `content`"),),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the card and the Croissant record say about a release. Nothing in it depends on a clock or a machine."""

    collection: str
    version: str
    schema: Schema
    recipe: Recipe
    licence: str | None
    policy: str
    statistics: Statistics
    split_rows: Mapping[str, int]
    rows_in: int
    rejected: Mapping[str, int]
    duplicates: int
    findings: Mapping[str, int]
    data_digest: str
    """Hexadecimal SHA-256 that stands for the bytes of all shards."""

    @property
    def title(self) -> str:
        """The recipe's title, or the collection's name."""
        return self.recipe.title or self.collection.split("/", 1)[1]

    @property
    def languages(self) -> list[str]:
        """The recipe's languages, or those that the scripts suggest."""
        return self.recipe.language or languages(self.statistics)


def size_category(rows: int) -> str:
    """The Hub's name for a dataset of that many rows."""
    return next((name for limit, name in _SIZES if rows < limit), "n>1T")


def _head(facts: Facts) -> dict[str, Any]:
    head: dict[str, Any] = {"pretty_name": facts.title}
    if facts.licence is not None:
        known = facts.licence.lower()
        head |= {"license": known} if known in _HUB_LICENCES else {"license": "other", "license_name": facts.licence}
    if facts.languages:
        head["language"] = facts.languages
    head["size_categories"] = [size_category(sum(facts.split_rows.values()))]
    files = [{"split": split, "path": f"data/{split}-*.parquet"} for split in facts.split_rows]
    # ``datasets`` names its cache of a local folder by the folder's last name and this head alone: without a text that
    # differs between any two releases, it would answer ``load_dataset(".../b/1.0")`` with the rows of ``.../a/1.0``.
    mark = f"{facts.collection}@{facts.version} {facts.data_digest[:16]}"
    head["configs"] = [{"config_name": "default", "description": mark, "data_files": files}]
    return head


def render(facts: Facts) -> bytes:
    """The card, in Chinese and English."""
    head = yaml.safe_dump(_head(facts), allow_unicode=True, sort_keys=False)
    splits = [f"| {split} | {rows:,} |" for split, rows in facts.split_rows.items()]
    removed = sum(facts.rejected.values())
    found = ", ".join(f"{entity} {count:,}" for entity, count in sorted(facts.findings.items())) or "0"
    licence = facts.licence or "not stated / 未注明"
    columns = [("id", "the source's identifier, or one derived from its position", "来源编号，或由位置派生")]
    columns += _FIELDS[facts.schema]
    columns += [("meta", "the source's other fields as JSON", "来源的其他字段（JSON）")]
    summary = [facts.recipe.summary, ""] if facts.recipe.summary else []
    lines = [
        f"# {facts.title}",
        "",
        *summary,
        f"`{facts.collection}@{facts.version}`",
        "",
        "## 使用 / Use",
        "",
        "```python",
        "from datasets import load_dataset",
        "",
        f'dataset = load_dataset("/public/{facts.collection}/{facts.version}")',
        "```",
        "",
        "| 划分 split | 行数 rows |",
        "| --- | --- |",
        *splits,
        "",
        "## 字段 / Columns",
        "",
        *(f"- `{name}`: {chinese}; {english}" for name, english, chinese in columns),
        "",
        "## 处理 / Processing",
        "",
        f"读入 {facts.rows_in:,} 行，剔除 {removed:,} 行，重复 {facts.duplicates:,} 行；个人信息已按策略"
        f"“{facts.policy}”去标识化（去标识化不等于匿名化）。",
        "",
        f"{facts.rows_in:,} rows were read, {removed:,} rejected, {facts.duplicates:,} dropped as exact duplicates."
        f" Personal data was de-identified under the policy `{facts.policy}`;"
        " de-identified does not mean anonymous.",
        "",
        f"发现 / Findings: {found}",
        "",
        "## 许可 / Licence",
        "",
        licence,
        "",
    ]
    if facts.recipe.source_urls:
        lines += ["## 来源 / Sources", "", *(f"- {url}" for url in facts.recipe.source_urls), ""]
    return f"---\n{head}---\n\n{chr(10).join(lines)}".encode()
