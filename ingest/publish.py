"""From the files in a run folder to a sealed draft in the catalog."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from catalog.client import Client, Conflict, DraftAbout, DraftFile, FileInfo, NotFound, ReleaseInfo
from catalog.names import ReleaseRef
from openshelf.console import SILENT, Progress
from openshelf.errors import OpenshelfError

_COMPARED_FILES = 1_000_000
_FINISHED = ("sealed", "submitted", "approved", "published")


class VersionExists(OpenshelfError):
    """The version holds something else, or may not be used again."""

    def __init__(self, ref: ReleaseRef, state: str) -> None:
        super().__init__(
            "version_exists",
            f"{ref} exists already ({state}) and is not what this run made",
            "A release never changes: choose another --version.",
        )


@dataclass(frozen=True, slots=True)
class Attachment:
    """A review object: name, file, media type."""

    name: str
    path: Path
    media_type: str


def list_files(release: Path) -> list[FileInfo]:
    """Every file below ``release`` in path order, with size and SHA-256."""
    files: list[FileInfo] = []
    for path in sorted(release.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            files.append(FileInfo(path.relative_to(release).as_posix(), path.stat().st_size, sha256))
    return files


def existing_release(client: Client, ref: ReleaseRef) -> ReleaseInfo | None:
    """What the catalog holds under ``ref``; also the first contact, so that a wrong address or token shows early."""
    try:
        return client.release(ref)
    except NotFound:
        return None


def publish(
    client: Client,
    ref: ReleaseRef,
    about: DraftAbout,
    release: Path,
    files: Sequence[FileInfo],
    attachments: Sequence[Attachment],
    *,
    mtime_ns: int,
    progress: Progress = SILENT,
) -> ReleaseInfo:
    """Upload what is missing of ``files`` (which lie below ``release``), attach the review objects, seal.

    A release that holds these very files already is left as it is and returned. Raises :class:`VersionExists` when the
    version holds something else.
    """
    known = existing_release(client, ref)
    if known is not None and known.state in _FINISHED:
        if _same_files(client, ref, files):
            return known
        if known.state != "sealed":
            raise VersionExists(ref, known.state)
    try:
        client.create_draft(ref, about)
    except Conflict as error:
        raise VersionExists(ref, known.state if known else "another's draft") from error
    missing = client.missing(ref, sorted({file.sha256 for file in files}))
    sent: set[str] = set()
    for file in files:
        if file.sha256 in missing and file.sha256 not in sent:
            client.upload(ref, release / file.path, sha256=file.sha256, progress=progress)
            sent.add(file.sha256)
        else:
            progress.advance(file.size)
    for attachment in attachments:
        client.attach(ref, attachment.name, attachment.path, attachment.media_type)
    return client.seal(ref, [DraftFile(file.path, file.sha256, mtime_ns) for file in files])


def _same_files(client: Client, ref: ReleaseRef, files: Sequence[FileInfo]) -> bool:
    held = client.files(ref, limit=min(len(files) + 1, _COMPARED_FILES))
    return sorted((file.path, file.sha256) for file in held) == sorted((file.path, file.sha256) for file in files)
