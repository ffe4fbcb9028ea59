"""One Hyperscan scan over a whole text column, then the rules on the places that it names."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import hyperscan
import numpy as np
import pyarrow as pa

from compliance.detect.context import AFTER_BYTES, BEFORE_BYTES, Window
from compliance.detect.patterns import ENTITIES, FOLDING_GATE, patterns_of
from compliance.detect.rule import Found, Pattern
from compliance.detect.shadow import Positions, Shadow, folded, joined
from compliance.findings import FINDINGS_SCHEMA
from openshelf.errors import OpenshelfError

SLICE_BYTES = 64 << 20
"""How much text is scanned at once. Hyperscan's offsets are 32 bits wide; smaller slices also keep memory low."""

_LARGEST_DOCUMENT_BYTES = 1 << 30
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


@dataclass(slots=True)
class _Placed:
    """A finding with its places in a shadow's buffer."""

    document: int
    start: int
    end: int
    entity: str
    score: float
    detector: str
    proof: int


class Detector:
    """Finds personal data in text columns. Compile once per process and reuse; not shared between threads.

    ``entities`` are names of :data:`compliance.detect.ENTITIES` (default all); ``slice_bytes`` bounds the text that is
    scanned, and copied, at once. Raises :class:`openshelf.errors.UsageError` for an unknown entity.
    """

    def __init__(self, entities: Sequence[str] | None = None, *, slice_bytes: int = SLICE_BYTES) -> None:
        self.entities = tuple(ENTITIES if entities is None else dict.fromkeys(entities))
        self._slice_bytes = slice_bytes
        self._patterns: tuple[Pattern, ...] = patterns_of(self.entities)
        expressions = [pattern.expression for pattern in self._patterns] + list(FOLDING_GATE)
        flags = [hyperscan.HS_FLAG_SOM_LEFTMOST] * len(self._patterns) + [0] * len(FOLDING_GATE)
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(expressions=expressions, ids=list(range(len(expressions))), flags=flags)

    def __reduce__(self) -> tuple[Any, ...]:
        return _recreate, (self.entities, self._slice_bytes)

    def scan(self, column: Column) -> pa.Table:
        """The findings of ``column`` (string or large_string, nulls allowed) as :data:`FINDINGS_SCHEMA`.

        Raises :class:`OpenshelfError` for another type and for a single document of more than 1 GiB.
        """
        tables = [self._scan_slice(part, first_row) for part, first_row in self._slices(column)]
        return pa.concat_tables(tables) if tables else FINDINGS_SCHEMA.empty_table()

    def _slices(self, column: Column) -> Iterator[tuple[pa.LargeStringArray, int]]:
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise OpenshelfError("not_text", f"Personal data is looked for in text, not in {column.type}")
        first_row = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if not len(chunk):
                continue
            large = chunk.cast(pa.large_string())
            offsets = np.frombuffer(large.buffers()[1], np.int64, len(large) + 1, 8 * large.offset)
            low = 0
            while low < len(large):
                high = int(np.searchsorted(offsets, offsets[low] + self._slice_bytes, "right")) - 1
                high = min(max(high, low + 1), len(large))
                if offsets[high] - offsets[low] > max(self._slice_bytes, _LARGEST_DOCUMENT_BYTES):
                    raise OpenshelfError(
                        "document_too_long",
                        f"The document in row {first_row + low} has more than 1 GiB of text",
                        "Split it before it is scanned.",
                    )
                yield large.slice(low, high - low), first_row + low
                low = high
            first_row += len(large)

    def _scan_slice(self, texts: pa.LargeStringArray, first_row: int) -> pa.Table:
        plain = joined(texts, np.arange(first_row, first_row + len(texts), dtype=np.int64))
        hits = self._hits(plain)
        wide = np.unique(hits.documents[hits.patterns >= len(self._patterns)])
        tables = [self._judge(plain, hits.without(wide))]
        if len(wide):
            wide_texts = texts.take(pa.array(wide))
            shadow = folded(joined(wide_texts, plain.rows[wide]))
            tables.append(self._judge(shadow, self._hits(shadow)))
        table = pa.concat_tables(tables)
        return table.sort_by([("row", "ascending"), ("start_byte", "ascending")]) if len(wide) else table

    def _hits(self, shadow: Shadow) -> _Hits:
        flat = array("q")
        first_gate = len(self._patterns)
        ends = shadow.ends
        wide_from, wide_to = -1, -1

        def note(pattern: int, start: int, end: int, _flags: int, _context: object) -> None:
            nonlocal wide_from, wide_to
            if pattern >= first_gate:
                # One hit is enough to have a document folded; a page of full-width digits would give thousands.
                if wide_from < end <= wide_to:
                    return
                document = int(np.searchsorted(ends, end - 1))
                wide_from, wide_to = int(shadow.starts[document]), int(ends[document])
            flat.extend((pattern, start, end))

        buffer: Any = shadow.buffer  # any buffer will do, whatever the stub says
        self._database.scan(buffer, match_event_handler=note)
        table = np.frombuffer(flat, np.int64).reshape(-1, 3)
        # A border byte belongs to no document: the byte before the end is inside the value's document or its fence.
        documents = np.searchsorted(shadow.starts, table[:, 2] - 1, "right") - 1
        return _Hits(table[:, 0], table[:, 1], table[:, 2], np.maximum(documents, 0))

    def _judge(self, shadow: Shadow, hits: _Hits) -> pa.Table:
        placed: list[_Placed] = []
        low_borders, high_borders = shadow.starts[hits.documents].tolist(), shadow.ends[hits.documents].tolist()
        for number, start, end, document, first, last in zip(
            hits.patterns.tolist(), hits.starts.tolist(), hits.ends.tolist(), hits.documents.tolist(),
            low_borders, high_borders, strict=True,
        ):  # fmt: skip
            pattern = self._patterns[number]
            if pattern.bordered:
                start, end = start + 1, end - 1
            low = max(first, start - BEFORE_BYTES)
            window = bytes(shadow.buffer[low : min(last, end + AFTER_BYTES)])
            found = pattern.rule(Window(window, start - low, end - low))
            if found is not None:
                placed.append(_place(found, pattern.entity, document, low))
        return _table(shadow, _without_overlaps(placed))


@dataclass(frozen=True, slots=True)
class _Hits:
    """Hyperscan's matches: pattern numbers, half-open places in the buffer, and the documents they lie in."""

    patterns: Positions
    starts: Positions
    ends: Positions
    documents: Positions

    def without(self, documents: Positions) -> _Hits:
        keep = ~np.isin(self.documents, documents)
        return _Hits(self.patterns[keep], self.starts[keep], self.ends[keep], self.documents[keep])


def _recreate(entities: tuple[str, ...], slice_bytes: int) -> Detector:
    return Detector(entities, slice_bytes=slice_bytes)


def _place(found: Found, entity: str, document: int, low: int) -> _Placed:
    return _Placed(document, low + found.start, low + found.end, entity, found.score, found.detector, found.proof)


def _without_overlaps(placed: list[_Placed]) -> list[_Placed]:
    """The findings that remain when overlapping ones compete: proof, then length, then score, then entity order."""
    placed.sort(key=lambda item: (item.start, item.end))
    kept: list[_Placed] = []
    cluster: list[_Placed] = []
    cluster_end = -1
    for item in placed:
        if item.start >= cluster_end:
            kept += _winners(cluster)
            cluster = []
        cluster.append(item)
        cluster_end = max(cluster_end, item.end)
    return kept + _winners(cluster)


def _winners(cluster: list[_Placed]) -> list[_Placed]:
    if len(cluster) < 2:
        return cluster
    ranked = sorted(
        cluster,
        key=lambda item: (-item.proof, item.start - item.end, -item.score, ENTITIES.index(item.entity), item.start),
    )
    winners: list[_Placed] = []
    for item in ranked:
        if all(item.end <= other.start or other.end <= item.start for other in winners):
            winners.append(item)
    return sorted(winners, key=lambda item: item.start)


def _table(shadow: Shadow, placed: list[_Placed]) -> pa.Table:
    documents = np.array([item.document for item in placed], np.int64)
    starts = np.array([item.start for item in placed], np.int64)
    ends = np.array([item.end for item in placed], np.int64)
    start_bytes, end_bytes = shadow.original_starts(starts, documents), shadow.original_ends(ends, documents)
    start_points, end_points = _code_points(shadow.source or shadow, documents, start_bytes, end_bytes)
    columns = [
        shadow.rows[documents].astype(np.uint64),
        [item.entity for item in placed],
        start_bytes.astype(np.uint64),
        end_bytes.astype(np.uint64),
        start_points,
        end_points,
        np.array([item.score for item in placed], np.float32),
        [item.detector for item in placed],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, FINDINGS_SCHEMA, strict=True)]
    return pa.table(arrays, schema=FINDINGS_SCHEMA)


def _code_points(
    plain: Shadow, documents: Positions, start_bytes: Positions, end_bytes: Positions
) -> tuple[list[int], list[int]]:
    """Code-point offsets of findings sorted by place, each document's bytes counted once."""
    starts: list[int] = []
    ends: list[int] = []
    current, at, points = -1, 0, 0
    homes = plain.starts[documents]
    for document, start, end in zip(
        documents.tolist(), (homes + start_bytes).tolist(), (homes + end_bytes).tolist(), strict=True
    ):
        if document != current:
            current, at, points = document, int(plain.starts[document]), 0
        for border, result in ((start, starts), (end, ends)):
            points += len(bytes(plain.buffer[at:border]).translate(None, _CONTINUATION_BYTES))
            at = border
            result.append(points)
    return starts, ends
