"""SQL of uploads: what a caller has, and what a release contains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import ColumnElement, exists, insert, or_, select
from sqlalchemy.orm import Session

from catalog.database.access import Caller, contents_readable
from catalog.database.models import Collection, Release, ReleaseObject, StoredContent, Upload
from catalog.objects import StoredObject

BATCH = 500
"""Values in one IN (…): under SQLite's limit of 999."""
_CHUNK_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Content:
    """Stored bytes: size, and the BLAKE3 of each chunk."""

    size: int
    chunks: tuple[bytes, ...]


def _usable(caller: Caller) -> ColumnElement[bool]:
    """Objects that the caller sent himself, or that stand in a release whose files he may have."""
    sent = (
        exists()
        .where(Upload.sha256 == StoredContent.sha256, Upload.principal_id == caller.principal_id)
        .correlate(StoredContent)
    )
    opened = (
        exists()
        .where(
            ReleaseObject.sha256 == StoredContent.sha256,
            Release.id == ReleaseObject.release_id,
            Collection.id == Release.collection_id,
            contents_readable(caller),
        )
        .correlate(StoredContent)
    )
    return or_(sent, opened)


def _batches(values: Iterable[bytes]) -> Iterable[list[bytes]]:
    remaining = iter(values)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def usable_contents(session: Session, caller: Caller, digests: Iterable[bytes]) -> dict[bytes, Content]:
    """Those of ``digests`` that the caller may put into a release, with what is known of them."""
    found: dict[bytes, Content] = {}
    for batch in _batches(digests):
        query = select(StoredContent.sha256, StoredContent.size_bytes, StoredContent.chunks).where(
            StoredContent.sha256.in_(batch), _usable(caller)
        )
        for row in session.execute(query):
            chunks = row.chunks
            found[row.sha256] = Content(
                row.size_bytes,
                tuple(chunks[at : at + _CHUNK_DIGEST_BYTES] for at in range(0, len(chunks), _CHUNK_DIGEST_BYTES)),
            )
    return found


def usable(session: Session, caller: Caller, digests: Iterable[bytes]) -> set[bytes]:
    """Those of ``digests`` that need not be sent."""
    found: set[bytes] = set()
    for batch in _batches(digests):
        query = select(StoredContent.sha256).where(StoredContent.sha256.in_(batch), _usable(caller))
        found.update(session.scalars(query))
    return found


def add_object(session: Session, stored: StoredObject) -> None:
    """Note that the store has this object."""
    sha256 = bytes.fromhex(stored.sha256)
    if session.get(StoredContent, sha256) is None:
        session.add(StoredContent(sha256=sha256, size_bytes=stored.size, chunks=b"".join(stored.chunks)))
        session.flush()


def add_upload(session: Session, caller: Caller, sha256: bytes) -> None:
    """Note that the caller sent this object himself."""
    if session.get(Upload, (caller.principal_id, sha256)) is None:
        session.add(Upload(principal_id=caller.principal_id, sha256=sha256))


def set_contents(session: Session, release: Release, digests: Sequence[bytes]) -> None:
    """The release contains exactly these objects (it contained none)."""
    if digests:
        rows = [{"release_id": release.id, "sha256": digest} for digest in digests]
        session.connection().execute(insert(ReleaseObject), rows)  # past the ORM: a third faster, while others wait
