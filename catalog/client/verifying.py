"""``verify``: a folder, or what the catalog delivers, against a release's signed manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from catalog.client.client import Client
from catalog.client.fetching import CorruptContents, FileUnreadable, Span, fetch_span, pieces_of, plan_spans
from catalog.client.parallel import each
from catalog.client.pulling import PARTIAL, RECORD, SIGNATURE, THREADS
from catalog.client.trusted import TrustedRelease, check_record
from catalog.manifest import FileEntry, Manifest
from catalog.names import RESERVED_PATHS
from catalog.signing import SignatureError, Signed, canonical_json
from openshelf.console import SILENT, Progress
from openshelf.errors import OpenshelfError


@dataclass(slots=True)
class Verified:
    """What was looked at, and what is wrong: path → problem."""

    release: str
    manifest_digest: str
    files: int = 0
    size_bytes: int = 0
    bad: dict[str, str] = field(default_factory=dict)


def read_record(folder: Path, key: bytes) -> TrustedRelease:
    """The release that ``folder/release.json`` says it is, when ``key`` signed that."""
    try:
        raw = (folder / RECORD).read_bytes()
        signature = json.loads((folder / SIGNATURE).read_bytes())
        record = Signed.from_json({"document": json.loads(raw), **signature})
    except FileNotFoundError as error:
        raise OpenshelfError(
            "no_record",
            f"{folder} holds no {RECORD} with its signature",
            "Name the folder of a mounted release, or one that `openshelf pull` made.",
        ) from error
    except (ValueError, TypeError) as error:
        raise SignatureError(f"{folder / RECORD} or its signature is damaged") from error
    if canonical_json(record.document) != raw:
        raise SignatureError(f"{folder / RECORD} is not as it was signed")
    return check_record(record, key)


def verify_folder(client: Client, folder: Path, release: TrustedRelease, progress: Progress = SILENT) -> Verified:
    """Read every file of ``folder`` and compare it with the manifest of ``release``: kind, size and SHA-256.

    Files that the manifest does not have are wrong too. ``progress`` is told bytes.
    """
    result = Verified(str(release.ref), release.manifest_digest)
    with _manifest(client, release) as manifest:

        def check(entry: FileEntry) -> tuple[FileEntry, str | None]:
            return entry, _problem(folder, entry)

        for entry, problem in each(THREADS, check, manifest.rows()):
            _count(result, entry, progress)
            if problem:
                result.bad[entry.path] = problem
        for path in _files_below(folder):
            if path not in RESERVED_PATHS and manifest.find(path) is None:
                result.bad[path] = "is not in the release"
    return result


def verify_store(client: Client, release: TrustedRelease, progress: Progress = SILENT) -> Verified:
    """Fetch every chunk of ``release`` from the catalog and compare it with the manifest; nothing is kept."""
    result = Verified(str(release.ref), release.manifest_digest)

    def check(span: Span) -> tuple[Span, OpenshelfError | None]:
        try:
            fetch_span(client, span)
        except (CorruptContents, FileUnreadable) as error:
            return span, error
        return span, None

    with _manifest(client, release) as manifest:
        pieces = (piece for row, entry in enumerate(manifest.rows()) for piece in pieces_of(row, entry))
        for span, error in each(THREADS, check, plan_spans(pieces)):
            progress.advance(span.length)
            if error is not None:
                for piece in span.pieces:
                    result.bad[piece.entry.path] = "cannot be read whole, or is damaged, in the store"
        result.files, result.size_bytes = len(manifest), manifest.total_bytes()
    return result


@contextlib.contextmanager
def _manifest(client: Client, release: TrustedRelease) -> Iterator[Manifest]:
    """The manifest of a release, fetched for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="openshelf-") as folder:
        path = Path(folder) / "files.arrow"
        client.download_manifest(release.manifest_digest, path)
        yield Manifest.open(path, expected=bytes.fromhex(release.manifest_digest))


def _count(result: Verified, entry: FileEntry, progress: Progress) -> None:
    result.files += 1
    result.size_bytes += entry.size
    progress.advance(entry.size)


def _problem(folder: Path, entry: FileEntry) -> str | None:
    try:
        descriptor = os.open(folder / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as source:
            there = os.fstat(source.fileno())
            if not stat.S_ISREG(there.st_mode):
                return "is not a regular file"
            if there.st_size != entry.size:
                return f"has {there.st_size} bytes instead of {entry.size}"
            if hashlib.file_digest(source, "sha256").digest() != entry.sha256:
                return "has other bytes"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {(error.strerror or 'unknown error').lower()}"
    return None


def _files_below(folder: Path) -> Iterator[str]:
    for base, folders, names in os.walk(folder):
        where = Path(base)
        if where == folder and PARTIAL in folders:
            folders.remove(PARTIAL)
        for name in names + [name for name in folders if (where / name).is_symlink()]:
            yield (where / name).relative_to(folder).as_posix()
