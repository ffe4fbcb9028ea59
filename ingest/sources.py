"""Finding the files of a run's sources, and telling their formats by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingest.readers.streams import SUFFIXES, Compression
from openshelf.errors import UsageError

Format = Literal["jsonl", "json", "csv", "parquet", "text"]

FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".md": "text",
}
_DOCUMENTATION = ("readme", "license", "licence", "notice", "changelog", "contributing")


@dataclass(frozen=True, slots=True)
class Found:
    """One file of a source. ``label`` is what rejects and reports call it: its path from the source's own name on."""

    path: Path
    label: str
    format: Format
    suffix: str
    compression: Compression


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of a run in order, and the labels of those in its folders that no reader takes."""

    files: list[Found]
    skipped: list[str]


def is_documentation(label: str) -> bool:
    """Whether a file describes a corpus and is not part of it, going by its name."""
    return label.rsplit("/", 1)[-1].lower().startswith(_DOCUMENTATION)


def classify(path: Path, label: str) -> Found | None:
    """``path`` as a source file, None when its name has no known suffix."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    compression: Compression = SUFFIXES.get(suffixes[-1], "none") if suffixes else "none"
    inner = suffixes[:-1] if compression != "none" else suffixes
    form = FORMATS.get(inner[-1]) if inner else None
    if form is None or (form == "parquet" and compression != "none"):
        return None
    return Found(path, label, form, inner[-1], compression)


def find(sources: Sequence[Path]) -> Sources:
    """The files of ``sources`` (files and folders) in the order given, folders in path order.

    Hidden files and folders are left out. Raises :class:`openshelf.errors.UsageError` for a source that does not
    exist, a file of unknown format, and when nothing readable is found.
    """
    files: list[Found] = []
    skipped: list[str] = []
    for source in sources:
        if source.is_dir():
            for path, label in _walk(source):
                found = classify(path, label)
                if found is None:
                    skipped.append(label)
                else:
                    files.append(found)
        elif source.is_file():
            found = classify(source, source.name)
            if found is None:
                raise UsageError(
                    "unknown_format",
                    f"{source} has no suffix that ingest reads",
                    f"Known are {', '.join(FORMATS)}, each but Parquet also with .gz or .zst.",
                )
            files.append(found)
        else:
            raise UsageError("no_source", f"There is no file or folder {source}", "Check the path.")
    if not files:
        raise UsageError(
            "no_source",
            f"No file to ingest in {', '.join(map(str, sources))}",
            f"Known suffixes are {', '.join(FORMATS)}, each but Parquet also with .gz or .zst.",
        )
    return Sources(files, skipped)


def _walk(folder: Path) -> list[tuple[Path, str]]:
    name = folder.resolve().name
    found: list[tuple[bytes, Path, str]] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".")]
        for file in files:
            path = Path(parent) / file
            if not file.startswith(".") and path.is_file():
                inner = os.fsencode(path.relative_to(folder).as_posix())
                # A name that is not UTF-8 is still read; it is only shown with its bad bytes replaced.
                found.append((inner, path, f"{name}/{inner.decode('utf-8', 'replace')}"))
    return [(path, label) for _, path, label in sorted(found)]
