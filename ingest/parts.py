"""The whole way from bytes to a finished part: read, map, normalise, de-identify, sign.

:func:`process_split` is a pure function of its task, so any process or machine may carry it out, twice if need be. A
part is a folder under its content's name with ``rows.arrow``, ``index.arrow`` (what deduplication and sharding need),
``findings.arrow``, ``rejects.arrow`` and ``part.json`` with the counts and each file's SHA-256.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from compliance.detect import Detector
from compliance.finding_counts import FindingCounts
from compliance.policy import Policy
from ingest import rejects, rows
from ingest.deidentify import FINDINGS_SCHEMA
from ingest.durable import disk_full_explained, publish_folder
from ingest.plan import SourceFile, Split, read_split
from ingest.rejects import Reject
from ingest.shapes import Schema
from openshelf.errors import OpenshelfError

RECORD = "part.json"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class PartTask:
    """Everything a worker needs to make one part. ``policy`` is the policy's document, since policies do not pickle."""

    key: str
    folder: Path
    members: tuple[tuple[SourceFile, Split], ...]
    schema: Schema
    policy: dict[str, Any]

    def title(self) -> str:
        """The files that it reads."""
        labels = list(dict.fromkeys(file.label for file, _ in self.members))
        return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


@dataclass(frozen=True, slots=True)
class Member:
    """What one split gave to its part: its rows follow those of the member before. ``rejected`` counts by reason."""

    rows_in: int
    rows: int
    rejected: dict[str, int]
    truncated: bool


@dataclass(frozen=True, slots=True)
class Part:
    """A finished part: the splits in it, and (size, SHA-256) of each of its files."""

    key: str
    members: tuple[Member, ...]
    files: dict[str, tuple[int, str]]
    removed: dict[str, Any] = field(default_factory=lambda: FindingCounts().to_document())
    """Counts of the findings in documents that the policy left out (:meth:`FindingCounts.to_document`)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Work time by stage; not part of what is compared."""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Part:
        """Read what ``part.json`` holds."""
        files = {name: (int(size), str(sha256)) for name, (size, sha256) in value["files"].items()}
        members = tuple(Member(**member) for member in value["members"])
        return cls(value["key"], members, files, value["removed"], value["seconds"])

    @property
    def rows(self) -> int:
        """Rows of all members."""
        return sum(member.rows for member in self.members)


def load_part(folder: Path, key: str) -> Part | None:
    """The finished part called ``key``, None when it is not there or not whole (it is then removed)."""
    home = folder / key
    if not home.is_dir():
        return None
    try:
        part = Part.from_json(json.loads((home / RECORD).read_text("utf-8")))
        whole = part.key == key and all(
            (home / name).stat().st_size == size and _sha256(home / name) == sha256
            for name, (size, sha256) in part.files.items()
        )
    except (OSError, ValueError, TypeError, KeyError):
        whole = False
    if not whole:
        shutil.rmtree(home)
        return None
    return part


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@lru_cache(maxsize=1)
def _detector() -> Detector:
    """One compiled detector for each process."""
    return Detector()


def process_split(task: PartTask) -> Part:
    """Make the part of ``task`` and return its record; a part that is there already is only read."""
    done = load_part(task.folder, task.key)
    if done is not None:
        return done
    temporary = task.folder / f".{task.key}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    with disk_full_explained(task.folder.parent), _no_collection():
        temporary.mkdir(parents=True)
        part = _make(task, temporary)
        (temporary / RECORD).write_text(json.dumps(asdict(part), sort_keys=True), "utf-8")
        publish_folder(temporary, task.folder / task.key)
    return part


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the cycle collector: records hold no cycles, and walking millions of them costs a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Sinks:
    """The three growing files of a part."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        self._rows = pa.ipc.new_file(str(folder / "rows.arrow"), rows.SCHEMAS[schema], options=_COMPRESSED)
        self._index = pa.ipc.new_file(str(folder / "index.arrow"), rows.INDEX_SCHEMA)
        self._findings = pa.ipc.new_file(str(folder / "findings.arrow"), FINDINGS_SCHEMA, options=_COMPRESSED)

    def __enter__(self) -> Self:
        return self

    def write(self, batch: rows.RowBatch) -> None:
        self._rows.write_batch(batch.rows)
        self._index.write_batch(batch.index)
        self._findings.write_table(batch.findings)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as closing:  # closes all three, also when the disk is full and the first fails
            for sink in (self._rows, self._index, self._findings):
                closing.callback(sink.close)


def _make(task: PartTask, folder: Path) -> Part:
    policy = Policy.from_document(task.policy)
    seconds: dict[str, float] = defaultdict(float)
    members: list[Member] = []
    removed = FindingCounts()
    with (
        _Sinks(folder, task.schema) as sinks,
        pa.ipc.new_file(str(folder / "rejects.arrow"), rejects.PART_SCHEMA, options=_COMPRESSED) as refusals,
    ):
        for number, (file, split) in enumerate(task.members):
            maker = rows.RowMaker(file.sha256, task.schema, file.converter(), _detector(), policy)
            first_row = sum(member.rows for member in members)
            member, refused = _read_member(file, split, maker, sinks, first_row, removed, seconds)
            members.append(member)
            if refused:
                refusals.write_table(rejects.to_table(refused, number))
    names = ("rows.arrow", "index.arrow", "findings.arrow", "rejects.arrow")
    files = {name: ((folder / name).stat().st_size, _sha256(folder / name)) for name in names}
    times = {stage: round(value, 4) for stage, value in seconds.items()}
    return Part(task.key, tuple(members), files, removed.to_document(), times)


def _read_member(
    file: SourceFile,
    split: Split,
    maker: rows.RowMaker,
    sinks: _Sinks,
    first_row: int,
    removed: FindingCounts,
    seconds: dict[str, float],
) -> tuple[Member, list[Reject]]:
    """One split into ``sinks``, whose next row is number ``first_row`` of the part; findings in documents that are left
    out are added to ``removed``.
    """
    refused: list[Reject] = []
    rows_in = count = 0
    truncated = False
    source = read_split(file.path, file.layout, split)
    while True:
        begun = time.process_time()
        batch = next(source, None)
        seconds["read"] += time.process_time() - begun
        if batch is None:
            break
        rows_in += len(batch.records) + len(batch.rejects)
        truncated = truncated or batch.truncated
        refused += batch.rejects
        if not batch.records:
            continue
        made = maker.make(batch, first_row=first_row + count, seconds=seconds)
        refused += made.rejects
        removed.add(made.removed)
        count += made.rows.num_rows
        begun = time.process_time()
        if made.rows.num_rows:
            sinks.write(made)
        seconds["write"] += time.process_time() - begun
    if rows_in != count + len(refused):
        raise OpenshelfError(
            "rows_lost",
            f"{file.label}: {rows_in} rows in, but {count} out and {len(refused)} rejected",
            "This is a fault of openshelf: report it with the file's first lines.",
        )
    by_reason = Counter(reject.reason.value for reject in refused)
    return Member(rows_in, count, dict(sorted(by_reason.items())), truncated), refused
