"""Finding the files of a run's sources, and telling their formats by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingest.readers.streams import SUFFIXES, Compression
from openshelf.errors import OpenshelfError, UsageError

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

    Hidden files and folders are left out. Pipes, devices, broken links and links to folders are never opened; they are
    named among the skipped. Raises :class:`openshelf.errors.UsageError` for a source that does not
    exist, a file of unknown format, and when nothing readable is found.
    """
    files: list[Found] = []
    skipped: list[str] = []
    for source in sources:
        if source.is_dir():
            for path, label in _walk(source):
                found = classify(path, label) if path.is_file() else None
                if found is None:
                    skipped.append(label)
                else:
                    files.append(found)
        elif source.is_file():
            found = classify(source, shown_name(source.name))
            if found is None:
                raise UsageError(
                    "unknown_format",
                    f"{source} has no suffix that ingest reads",
                    f"Known are {', '.join(FORMATS)}, each but Parquet also with .gz or .zst.",
                )
            files.append(found)
        elif source.exists():
            raise UsageError(
                "not_a_file",
                f"{source} is neither a file nor a folder",
                "A pipe or a device is no source: save it first.",
            )
        else:
            raise UsageError("no_source", f"There is no file or folder {source}", "Check the path.")
    if not files:
        raise UsageError(
            "no_source",
            f"No file to ingest in {', '.join(map(str, sources))}",
            f"Known suffixes are {', '.join(FORMATS)}, each but Parquet also with .gz or .zst.",
        )
    return Sources(files, skipped)


def shown_name(name: str) -> str:
    """A file's name or path as text on one line: bytes that are not UTF-8 and control characters become U+FFFD."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join("\ufffd" if ord(char) < 0x20 or ord(char) == 0x7F else char for char in text)


def _walk(folder: Path) -> list[tuple[Path, str]]:
    """Everything below ``folder`` that is no folder, in path order, and links to folders, which are not followed."""
    name = shown_name(folder.resolve().name)
    found: list[tuple[bytes, Path, str]] = []
    for parent, folders, files in os.walk(folder, onerror=_refuse_unreadable):
        folders[:] = [one for one in folders if not one.startswith(".")]
        links = [one for one in folders if (Path(parent) / one).is_symlink()]
        for file in (*files, *links):
            if not file.startswith("."):
                path = Path(parent) / file
                inner = path.relative_to(folder).as_posix()
                found.append((os.fsencode(inner), path, f"{name}/{shown_name(inner)}"))
    return [(path, label) for _, path, label in sorted(found)]


def _refuse_unreadable(error: OSError) -> None:
    """A folder that cannot be listed may hold half the corpus."""
    raise OpenshelfError(
        "unreadable_folder", f"{error.filename} cannot be read: {error.strerror}", "Check its permissions."
    ) from error
