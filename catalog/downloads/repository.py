"""SQL of reading: which stored bytes are open to whom."""

from __future__ import annotations

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from catalog.database.access import Caller, contents_readable
from catalog.database.models import Collection, Release, ReleaseObject, StoredContent


def readable_size(session: Session, caller: Caller, sha256: bytes) -> int | None:
    """Size in bytes of an object that stands in a release whose files the caller may have; None for every other."""
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
    return session.scalar(select(StoredContent.size_bytes).where(StoredContent.sha256 == sha256, opened))
