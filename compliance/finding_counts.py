"""Findings as numbers: what a report and a run's summary say about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

BANDS = ("0.9-1.0", "0.7-0.9", "0.5-0.7", "0.0-0.5")
"""Score bands, upper border excluded except for 1.0."""


def band(score: float) -> str:
    """The band of a score from 0 to 1."""
    rounded = round(score, 4)
    if rounded >= 0.9:
        return BANDS[0]
    if rounded >= 0.7:
        return BANDS[1]
    return BANDS[2] if rounded >= 0.5 else BANDS[3]


class FindingCounts:
    """Counts by entity × action × score band, and by detector. Adding in any order gives the same counts."""

    def __init__(self) -> None:
        self._cells: Counter[tuple[str, str, str]] = Counter()
        self._detectors: Counter[str] = Counter()

    def add(self, acted: pa.Table) -> None:
        """Count the rows of a table with :data:`compliance.findings.ACTED_SCHEMA`."""
        for entity, action, score, detector in zip(
            *(acted[name].to_pylist() for name in ("entity", "action", "score", "detector")), strict=True
        ):
            self._cells[entity, action, band(score)] += 1
            self._detectors[detector] += 1

    def merge(self, other: FindingCounts) -> None:
        """Add the counts of ``other``."""
        self._cells.update(other._cells)
        self._detectors.update(other._detectors)

    def by_entity(self) -> dict[str, int]:
        """Findings per entity, sorted by name."""
        totals: Counter[str] = Counter()
        for (entity, _, _), count in self._cells.items():
            totals[entity] += count
        return dict(sorted(totals.items()))

    def to_document(self) -> dict[str, Any]:
        """``{"cells": [{entity, action, band, count}], "detectors": {name: count}}``, sorted."""
        cells = [
            {"entity": entity, "action": action, "band": score_band, "count": count}
            for (entity, action, score_band), count in sorted(self._cells.items())
        ]
        return {"cells": cells, "detectors": dict(sorted(self._detectors.items()))}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> FindingCounts:
        """The counts that :meth:`to_document` wrote."""
        counts = cls()
        for cell in document["cells"]:
            counts._cells[cell["entity"], cell["action"], cell["band"]] += int(cell["count"])
        counts._detectors.update({str(name): int(count) for name, count in document["detectors"].items()})
        return counts

    @classmethod
    def total(cls, parts: Iterable[FindingCounts]) -> FindingCounts:
        """The sum of several."""
        result = cls()
        for part in parts:
            result.merge(part)
        return result
