"""The plan of a run: sources → files with their encoding, layout and shape → splits.

A split is a byte range of a line-oriented file, a range of row groups of a Parquet file, or a file that cannot be cut
(compressed, CSV, a JSON array, a document). Splits do not depend on how many processes work on them, so neither does
the output. Files are hashed here, once, and line numbers of the cuts counted in the same pass.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalog.signing import canonical_json
from ingest import shapes
from ingest.decode import SAMPLE_BYTES, Encoding, has_mark, recode_blocks, sniff
from ingest.mapping import MapRule
from ingest.readers.batch import Batch
from ingest.readers.csv_rows import guess_delimiter, read_csv
from ingest.readers.json_array import read_array, read_single, sniff_layout
from ingest.readers.lines import read_lines
from ingest.readers.parquet import read_parquet, row_groups
from ingest.readers.streams import ByteBlocks, Compression, find_compression, read_head
from ingest.readers.text import read_text
from ingest.recipe import Recipe
from ingest.shapes import Schema, Shape
from ingest.sources import Found, Sources, is_documentation
from openshelf.console import SILENT, Progress
from openshelf.errors import OpenshelfError
from openshelf.units import MIB

SPLIT_BYTES = 64 * MIB
SMALL_FILE_BYTES = 4 * MIB
"""Files up to this size share parts: a part for each of a million documents would cost more than its content."""
BUNDLE_FILES = 1000
_SAMPLED_RECORDS = 50
_SAMPLED_BATCHES = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """How the bytes of a file become records: everything that a reader must be told."""

    kind: str
    """``lines``, ``array``, ``keyed``, ``single``, ``csv``, ``parquet`` or ``text``."""
    compression: Compression
    encoding: Encoding
    delimiter: str = ""
    mark_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of the run. ``shape`` names the shape of its records, None when none is known and no rule is given."""

    path: Path
    label: str
    split: str
    layout: Layout
    size_bytes: int
    sha256: str
    shape: str | None
    rule: MapRule | None
    cuts: tuple[tuple[int, int], ...]
    """Where its splits begin: (byte, line) of a line-oriented file, (row group, row) of a Parquet file."""
    end: int
    """Where its last split ends: bytes, or row groups."""
    legible: bool = True
    """Whether any record could be read at its beginning."""

    @property
    def schema(self) -> Schema | None:
        """The canonical schema of its rows."""
        if self.rule is not None:
            return self.rule.canonical
        return shapes.BY_NAME[self.shape].schema if self.shape else None

    def converter(self) -> Shape | MapRule | None:
        """What turns its records into rows."""
        return self.rule or (shapes.BY_NAME[self.shape] if self.shape else None)


@dataclass(frozen=True, slots=True)
class Split:
    """One piece of work. ``start`` and ``stop`` are bytes, or row groups of a Parquet file; ``first`` is the number of
    its first line or row, counted from 1.
    """

    file: int
    start: int
    stop: int
    first: int
    last_of_file: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do: its files in order, their splits in order, and the canonical schema of the release."""

    files: tuple[SourceFile, ...]
    splits: tuple[Split, ...]
    schema: Schema
    skipped: tuple[str, ...]
    """Labels of files in the source folders that are no part of the corpus."""

    @property
    def size_bytes(self) -> int:
        """The bytes of all source files, as they lie on disk."""
        return sum(file.size_bytes for file in self.files)

    def bundles(self) -> list[tuple[Split, ...]]:
        """The splits that share a part, in order: small neighbours of one release split, else one split each."""
        found: list[tuple[Split, ...]] = []
        room = files = 0
        for split in self.splits:
            file = self.files[split.file]
            small = len(file.cuts) == 1 and file.size_bytes <= SMALL_FILE_BYTES
            joins = small and files and file.size_bytes <= room and files < BUNDLE_FILES
            if joins and self.files[found[-1][0].file].split == file.split:
                found[-1] = (*found[-1], split)
                files, room = files + 1, room - file.size_bytes
            else:
                found.append((split,))
                files, room = (1, SPLIT_BYTES - file.size_bytes) if small else (0, 0)
        return found

    def part_key(self, bundle: Sequence[Split], policy_digest: str, code: str) -> str:
        """The name of a part: SHA-256 of all that its content depends on, paths and clocks not among it."""
        keys = [self._split_key(split, policy_digest, code) for split in bundle]
        return hashlib.sha256(canonical_json(keys)).hexdigest()

    def _split_key(self, split: Split, policy_digest: str, code: str) -> str:
        file = self.files[split.file]
        depends: dict[str, Any] = {
            "source": file.sha256,
            "layout": dataclasses.asdict(file.layout),
            "range": [split.start, split.stop, split.first],
            "shape": file.shape,
            "rule": file.rule.model_dump(mode="json", by_alias=True) if file.rule else None,
            "schema": self.schema,
            "policy": policy_digest,
            "code": code,
        }
        return hashlib.sha256(canonical_json(depends)).hexdigest()


def read_split(path: Path, layout: Layout, split: Split) -> Iterator[Batch]:
    """The records of one split."""
    if layout.kind == "parquet":
        yield from read_parquet(path, split.start, split.stop, split.first)
        return
    cut = layout.kind == "lines" and layout.compression == "none"
    blocks = ByteBlocks(path, layout.compression, split.start if cut else 0, split.stop if cut else None)
    offset = split.start if cut else 0
    yield from _read(blocks, layout, first_line=split.first, offset=offset, at_end=split.last_of_file)
    if blocks.truncated:
        yield Batch(truncated=True)


def _read(blocks: Iterable[bytes], layout: Layout, *, first_line: int, offset: int, at_end: bool) -> Iterator[Batch]:
    match layout.kind:
        case "lines":
            return read_lines(blocks, layout.encoding, first_line=first_line, offset=offset, at_end=at_end)
        case "array" | "keyed":
            keyed = layout.kind == "keyed"
            return read_array(blocks, layout.encoding, keyed=keyed, mark_bytes=layout.mark_bytes)
        case "single":
            return read_single(blocks, layout.encoding)
        case "csv":
            return read_csv(blocks, layout.encoding, layout.delimiter)
        case _:
            return read_text(blocks, layout.encoding)


def whole(layout: Layout, size_bytes: int, groups: int) -> Split:
    """A file as a single split."""
    return Split(0, 0, groups if layout.kind == "parquet" else size_bytes, 1, True, size_bytes)


def find_layout(found: Found) -> Layout:
    """How the file ``found`` is to be read, from its name and its first bytes."""
    try:
        if found.format == "parquet":
            return Layout("parquet", "none", Encoding.UTF_8)
        compression = find_compression(found.path, found.compression)
        head, complete = read_head(found.path, compression, SAMPLE_BYTES)
    except OSError as error:
        raise _unreadable(found.path, error) from error
    encoding = sniff(head, complete=complete)
    mark = has_mark(head)
    kind = {"jsonl": "lines", "csv": "csv", "text": "text"}.get(found.format, "")
    delimiter = ""
    if found.format in ("json", "csv"):
        text = b"".join(recode_blocks([head], encoding))
        if found.format == "csv":
            delimiter = guess_delimiter(text, found.suffix)
        else:
            kind = sniff_layout(text, complete=complete)
    return Layout(kind, compression, encoding, delimiter, mark)


def _unreadable(path: Path, error: OSError) -> OpenshelfError:
    return OpenshelfError(
        "unreadable_file", f"{path} cannot be read: {error.strerror or 'input/output error'}", "Check its permissions."
    )


def _survey(path: Path, layout: Layout, progress: Progress) -> tuple[int, str, tuple[tuple[int, int], ...], int]:
    """Size, SHA-256, cuts and end of one file, in one reading."""
    digest = hashlib.sha256()
    cut = layout.kind == "lines" and layout.compression == "none" and "16" not in layout.encoding
    cuts = [(0, 1)]
    position, line, wanted = 0, 1, SPLIT_BYTES
    for block in ByteBlocks(path):
        digest.update(block)
        if cut:
            counted = 0
            while wanted < position + len(block):
                end = block.find(b"\n", max(0, wanted - position))
                if end < 0:
                    break
                line += block.count(b"\n", counted, end + 1)
                counted = end + 1
                cuts.append((position + counted, line))
                wanted = position + counted + SPLIT_BYTES
            line += block.count(b"\n", counted)
        position += len(block)
        progress.advance(len(block))
    if cuts[-1][0] == position and len(cuts) > 1:
        cuts.pop()
    return position, digest.hexdigest(), tuple(cuts), position


def _survey_parquet(path: Path, progress: Progress) -> tuple[int, str, tuple[tuple[int, int], ...], int]:
    size, sha256, _, _ = _survey(path, Layout("parquet", "none", Encoding.UTF_8), progress)
    groups = row_groups(path)
    cuts: list[tuple[int, int]] = []
    row, held = 1, SPLIT_BYTES
    for index, (rows, size_bytes) in enumerate(groups):
        if held >= SPLIT_BYTES:
            cuts.append((index, row))
            held = 0
        held += size_bytes
        row += rows
    return size, sha256, tuple(cuts), len(groups)


def examine(found: Found, recipe: Recipe, progress: Progress = SILENT) -> SourceFile:
    """Everything the plan must know about one file."""
    layout = find_layout(found)
    try:
        survey = (
            _survey_parquet(found.path, progress) if layout.kind == "parquet" else _survey(found.path, layout, progress)
        )
    except OSError as error:
        raise _unreadable(found.path, error) from error
    size, sha256, cuts, end = survey
    rule = recipe.rule_for(found.label)
    sample = [] if rule else _sample(found.path, layout, whole(layout, size, end))
    shape = shapes.recognise(sample) if sample else None
    name = shape.name if shape else None
    return SourceFile(
        found.path, found.label, recipe.split_of(found.label), layout, size, sha256, name, rule, cuts, end, bool(sample)
    )


def _sample(path: Path, layout: Layout, split: Split) -> list[Any]:
    """The first records of a file."""
    sample: list[Any] = []
    for number, batch in enumerate(read_split(path, layout, split)):
        sample += batch.records[: _SAMPLED_RECORDS - len(sample)]
        if len(sample) >= _SAMPLED_RECORDS or number >= _SAMPLED_BATCHES:
            break
    return sample


def make_plan(sources: Sources, recipe: Recipe, jobs: int, progress: Progress = SILENT) -> Plan:
    """Examine every file of ``sources`` and cut them into splits.

    Raises :class:`OpenshelfError` when a file cannot be read, when no record shape is recognised anywhere, and when
    the files' records belong to different canonical schemas.
    """
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        files = list(pool.map(lambda found: examine(found, recipe, progress), sources.files))
    files, left_out = _one_schema(files)
    schema = next((file.schema for file in files if file.schema is not None), None)
    if schema is None and not any(file.legible for file in files):
        schema = "text"  # the rejects say what is wrong with the files; a shape that none has is beside the point
    if schema is None:
        raise OpenshelfError(
            "unknown_shape",
            f"No record shape is recognised in {_some([file.label for file in files])}",
            "Say in a recipe which fields to take: `map: {schema: text, text: FIELD}` (--recipe FILE).",
        )
    return Plan(tuple(files), tuple(_splits(files)), schema, (*sources.skipped, *left_out))


def _splits(files: Sequence[SourceFile]) -> Iterator[Split]:
    for index, file in enumerate(files):
        for number, (start, first) in enumerate(file.cuts):
            last = number + 1 == len(file.cuts)
            stop = file.end if last else file.cuts[number + 1][0]
            size = file.size_bytes // len(file.cuts) if file.layout.kind == "parquet" else stop - start
            yield Split(index, start, stop, first, last, size)


def _one_schema(files: list[SourceFile]) -> tuple[list[SourceFile], list[str]]:
    """The files of the release's one schema, and the labels of documentation that lay beside them."""
    schemas = {file.schema for file in files if file.schema is not None}
    left_out: list[str] = []
    guides = [file for file in files if file.layout.kind == "text" and is_documentation(file.label)]
    data = [file for file in files if file.layout.kind != "text"]
    if len(schemas) > 1 or (data and not any(file.schema for file in files if file not in guides)):
        files = [file for file in files if file not in guides]
        left_out = [file.label for file in guides]
        schemas = {file.schema for file in files if file.schema is not None}
    if len(schemas) > 1:
        named = [
            f"{schema} in {_some([file.label for file in files if file.schema == schema])}"
            for schema in sorted(schemas)
        ]
        raise OpenshelfError(
            "mixed_schemas",
            f"The sources hold records of different schemas: {'; '.join(named)}",
            "Ingest them as separate collections, or bring them together with `map` in a recipe.",
        )
    return files, left_out


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
