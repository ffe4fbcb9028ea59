"""The report of a release: what went in, what was done to it, what came out. Counts only, never a detected value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compliance.finding_counts import FindingCounts
from compliance.licences.classes import Licence
from compliance.licences.evidence import Evidence
from compliance.policy import Policy
from compliance.report_page import to_markdown
from openshelf.errors import OpenshelfError

__all__ = ["ReportError", "ReportFacts", "SourceFacts", "SplitFacts", "StageFacts", "build", "to_markdown"]

REPORT_FORMAT = 1


class ReportError(OpenshelfError):
    """The facts of a run contradict each other."""

    def __init__(self, message: str) -> None:
        super().__init__("report_does_not_add_up", message, "This is a defect of the run; do not submit its release.")


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One source file: how it is called, its SHA-256 and size, its form, and the rows that were read from it."""

    name: str
    sha256: str
    size_bytes: int
    form: str
    rows: int
    licence: str = ""


@dataclass(frozen=True, slots=True)
class StageFacts:
    """One stage's rows; ``rows_in = rows_out + rejected + duplicates``."""

    name: str
    rows_in: int
    rows_out: int
    rejected: int = 0
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class SplitFacts:
    """One split of the release."""

    name: str
    rows: int
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """All that a report says. ``created`` is the recipe's date, never a clock's.

    ``rejects`` counts rows by reason, ``statistics`` holds numbers by name (a value may be a mapping of numbers),
    ``dedup`` says method and scope with counts. ``findings`` are those in the rows of the release, ``removed`` those in
    documents that the policy left out. ``complete`` is False when a source was cut short.
    """

    release: str
    created: str
    sources: Sequence[SourceFacts]
    stages: Sequence[StageFacts]
    rejects: Mapping[str, int]
    findings: FindingCounts
    licence: Licence | None
    evidence: Sequence[Evidence]
    source_urls: Sequence[str]
    dedup: Mapping[str, str | int]
    splits: Sequence[SplitFacts]
    statistics: Mapping[str, Any]
    policy: Policy
    recipe_digest: str
    code_version: str
    complete: bool = True
    remarks: Sequence[str] = field(default_factory=tuple)
    removed: FindingCounts = field(default_factory=FindingCounts)


def build(facts: ReportFacts) -> dict[str, Any]:
    """The report as a JSON document; the same facts give the same document.

    Raises :class:`ReportError` when a stage's rows do not add up. Free texts of the facts (names of files, remarks,
    notes of evidence) pass through redaction themselves, since a file may be called by a telephone number.
    """
    for stage in facts.stages:
        if stage.rows_in != stage.rows_out + stage.rejected + stage.duplicates:
            raise ReportError(
                f"Stage {stage.name}: {stage.rows_in} rows in, but {stage.rows_out} out, {stage.rejected} rejected "
                f"and {stage.duplicates} duplicates"
            )
    clean = _redactor(_free_texts(facts))
    licence = facts.licence
    return {
        "format": REPORT_FORMAT,
        "release": facts.release,
        "created": facts.created,
        "complete": facts.complete,
        "remarks": [clean(remark) for remark in facts.remarks],
        "sources": [
            {
                "name": clean(source.name),
                "sha256": source.sha256,
                "size_bytes": source.size_bytes,
                "form": source.form,
                "rows": source.rows,
                "licence": source.licence,
            }
            for source in facts.sources
        ],
        "source_urls": [clean(url) for url in facts.source_urls],
        "stages": [
            {
                "name": stage.name,
                "rows_in": stage.rows_in,
                "rows_out": stage.rows_out,
                "rejected": stage.rejected,
                "duplicates": stage.duplicates,
            }
            for stage in facts.stages
        ],
        "rejects": dict(sorted(facts.rejects.items())),
        "findings": facts.findings.to_document(),
        "removed_findings": facts.removed.to_document(),
        "policy": facts.policy.to_document() | {"digest": facts.policy.digest},
        "licence": None
        if licence is None
        else {
            "expression": licence.expression,
            "use": licence.use,
            "attribution": licence.attribution,
            "share_alike": licence.share_alike,
            "no_derivatives": licence.no_derivatives,
        },
        "evidence": [{key: clean(value) for key, value in item.to_document().items()} for item in facts.evidence],
        "dedup": dict(facts.dedup),
        "splits": [
            {"name": split.name, "rows": split.rows, "files": split.files, "size_bytes": split.size_bytes}
            for split in facts.splits
        ],
        "statistics": dict(facts.statistics),
        "recipe_digest": facts.recipe_digest,
        "code_version": facts.code_version,
    }


def _free_texts(facts: ReportFacts) -> list[str]:
    texts = [*facts.remarks, *facts.source_urls, *(source.name for source in facts.sources)]
    return texts + [value for item in facts.evidence for value in item.to_document().values()]


def _redactor(texts: Sequence[str]) -> Callable[[str], str]:
    # Imported here: a catalog shows reports and has no Hyperscan; only a run builds them.
    import pyarrow as pa

    from compliance.detect import Detector
    from compliance.redact import redact

    unique = sorted(set(texts))
    column = pa.array(unique, pa.large_string())
    redacted, _ = redact(column, Detector().scan(column), Policy.load("standard"))
    table = dict(zip(unique, redacted.to_pylist(), strict=True))
    return lambda text: str(table[text])
