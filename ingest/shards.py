"""Shards: the kept rows of all parts, in source order, as Parquet files of even size.

Which rows go into which shard and row group follows from row sizes alone, so the files are the same bytes however many
processes write them and however often the run was interrupted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from catalog.signing import canonical_json
from ingest import rows, statistics
from ingest.dedup import kept_mask, read_index
from ingest.durable import disk_full_explained, publish_file, write_json
from ingest.parts import Part
from ingest.shapes import Schema
from openshelf.units import MIB

ROW_GROUP_BYTES = 64 * MIB
"""Text in one row group; readers stumble over strings of more than 2 GiB, and memory over far less."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Kept rows of one part: those numbered ``start`` to ``stop`` (exclusive) that are no duplicates."""

    part: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to write. ``keys`` names the part of each segment; ``key`` is the name of the shard's content."""

    key: str
    path: Path
    record: Path
    schema: Schema
    segments: tuple[Segment, ...]
    keys: tuple[str, ...]
    row_counts: tuple[int, ...]
    parts: Path
    duplicates: Path

    def title(self) -> str:
        """The file that it writes."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class Shard:
    """A written shard: rows, size in bytes and SHA-256 of the file, and the statistics of its rows."""

    key: str
    name: str
    rows: int
    size_bytes: int
    sha256: str
    statistics: dict[str, Any]


def shard_name(split: str, index: int, count: int) -> str:
    """``train-00000-of-00003.parquet``: the naming that the Hub's loaders know."""
    return f"{split}-{index:05d}-of-{count:05d}.parquet"


def plan_shards(
    numbers: Sequence[int], parts: Sequence[Part], folder: Path, duplicates: Path, shard_bytes: int
) -> list[list[Segment]]:
    """The segments of each shard of one split, whose parts are ``numbers`` of ``parts``.

    A shard is closed before the row that would take it past ``shard_bytes``, counted before compression.
    """
    shards: list[list[Segment]] = []
    room = 0
    for number in numbers:
        part = parts[number]
        if not part.rows:
            continue
        _, sizes = read_index(folder, part.key)
        kept = np.flatnonzero(kept_mask(duplicates, number, part.rows))
        for start, stop, size, first in _fill(sizes[kept], room, shard_bytes):
            if first:
                shards.append([])
                room = shard_bytes
            room -= size
            shards[-1].append(Segment(number, int(kept[start]), int(kept[stop - 1]) + 1))
    return shards


def _fill(sizes: npt.NDArray[np.uint64], room: int, limit: int) -> Iterator[tuple[int, int, int, bool]]:
    """Runs (start, stop, bytes, whether a new container begins) that fill containers of ``limit`` bytes.

    ``room`` is what the current container can still take. A row over the limit has a container to itself.
    """
    ends = np.cumsum(sizes).astype(np.int64)
    start, used = 0, 0
    while start < len(sizes):
        stop = int(np.searchsorted(ends, used + room, "right"))
        fresh = stop == start
        if fresh:
            stop = max(start + 1, int(np.searchsorted(ends, used + limit, "right")))
        size = int(ends[stop - 1]) - used
        yield start, stop, size, fresh
        start, used, room = stop, int(ends[stop - 1]), 0


def make_tasks(
    split: str,
    shards: Sequence[Sequence[Segment]],
    parts: Sequence[Part],
    schema: Schema,
    *,
    folder: Path,
    duplicates: Path,
    release: Path,
    records: Path,
) -> list[ShardTask]:
    """The tasks that write ``shards`` of one split into ``release``/data."""
    tasks: list[ShardTask] = []
    for index, segments in enumerate(shards):
        name = shard_name(split, index, len(shards))
        keys = tuple(parts[segment.part].key for segment in segments)
        chosen = [
            hashlib.sha256(
                kept_mask(duplicates, segment.part, parts[segment.part].rows)[segment.start : segment.stop].tobytes()
            ).hexdigest()
            for segment in segments
        ]
        depends = [name, schema, [[key, one.start, one.stop] for key, one in zip(keys, segments, strict=True)], chosen]
        key = hashlib.sha256(canonical_json(depends)).hexdigest()
        counts = tuple(parts[segment.part].rows for segment in segments)
        path, record = release / "data" / name, records / f"{name}.json"
        tasks.append(ShardTask(key, path, record, schema, tuple(segments), keys, counts, folder, duplicates))
    return tasks


def load_shard(task: ShardTask) -> Shard | None:
    """The shard of ``task`` when it was written before and is whole."""
    try:
        shard = Shard(**json.loads(task.record.read_text("utf-8")))
        with task.path.open("rb") as stream:
            same = shard.key == task.key and hashlib.file_digest(stream, "sha256").hexdigest() == shard.sha256
    except (OSError, ValueError, TypeError):
        return None
    return shard if same else None


def write_shard(task: ShardTask) -> Shard:
    """Write the shard of ``task`` and return its record; one that is there already is only read."""
    done = load_shard(task)
    if done is not None:
        return done
    temporary = task.path.with_name(f".{task.path.name}.{os.getpid()}")
    described: list[statistics.Statistics] = []
    count = 0
    with disk_full_explained(task.path.parent.parent.parent):
        with pq.ParquetWriter(
            temporary, rows.SCHEMAS[task.schema], compression="zstd", use_dictionary=False, write_statistics=False
        ) as writer:
            for table in _row_groups(_kept_rows(task)):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                described.append(statistics.describe(task.schema, table))
                count += table.num_rows
        publish_file(temporary, task.path)
        with task.path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        size = task.path.stat().st_size
        shard = Shard(task.key, task.path.name, count, size, sha256, statistics.add(described))
        write_json(task.record, dataclasses.asdict(shard))
    return shard


def _kept_rows(task: ShardTask) -> Iterator[pa.RecordBatch]:
    for segment, key, count in zip(task.segments, task.keys, task.row_counts, strict=True):
        mask = kept_mask(task.duplicates, segment.part, count)
        with pa.memory_map(str(task.parts / key / "rows.arrow")) as source:
            reader = pa.ipc.open_file(source)
            first = 0
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                low, high = max(segment.start - first, 0), min(segment.stop - first, batch.num_rows)
                if low < high:
                    chosen = mask[first + low : first + high]
                    part = batch.slice(low, high - low)
                    yield part if chosen.all() else part.filter(pa.array(chosen))
                first += batch.num_rows
                if first >= segment.stop:
                    break


def _row_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of up to 64 MiB, each to become one row group."""
    held: list[pa.RecordBatch] = []
    room = ROW_GROUP_BYTES
    for batch in batches:
        sizes = _row_sizes(batch)
        for start, stop, size, fresh in _fill(sizes, room, ROW_GROUP_BYTES):
            if fresh:
                if held:
                    yield pa.Table.from_batches(held).combine_chunks()
                held, room = [], ROW_GROUP_BYTES
            held.append(batch.slice(start, stop - start))
            room -= size
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _row_sizes(batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Bytes of each row's strings."""
    total = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        if pa.types.is_list(column.type):
            turns = column.flatten()
            lengths = sum(np.asarray(pc.binary_length(turns.field(index))) for index in range(turns.type.num_fields))
            borders = np.concatenate([[0], np.cumsum(lengths)])
            offsets = np.asarray(column.offsets) - int(column.offsets[0].as_py())
            total += np.diff(borders[offsets]).astype(np.uint64)
        else:
            total += np.asarray(pc.binary_length(column)).astype(np.uint64)
    return total
