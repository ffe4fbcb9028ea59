"""Append to the ledger, and read it back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from catalog.database.access import Caller
from catalog.database.models import LedgerEntry, LedgerHead
from catalog.signing import canonical_json
from compliance.ledger import entry_hash

VERIFY_PAGE = 10_000


def append(
    session: Session, at: str, caller: Caller | None, event: str, subject: str, details: Mapping[str, Any] | None = None
) -> int:
    """Write one entry in the caller's transaction and return its number.

    ``event`` is like ``release.approved``, ``subject`` names what it happened to, ``caller`` is None for the catalog
    itself. ``details`` holds digests, counts and reasons, never data from a corpus.
    """
    head = session.execute(
        update(LedgerHead).values(sequence=LedgerHead.sequence + 1).returning(LedgerHead.sequence, LedgerHead.hash)
    ).one()
    entry = {
        "sequence": head.sequence,
        "at": at,
        "actor": caller.name if caller else None,
        "role": caller.role if caller else None,
        "token": caller.token_id if caller else None,
        "event": event,
        "subject": subject,
        "details": dict(details or {}),
    }
    digest = entry_hash(head.hash, entry)
    session.add(
        LedgerEntry(sequence=head.sequence, entry=canonical_json(entry).decode(), previous=head.hash, hash=digest)
    )
    session.execute(update(LedgerHead).values(hash=digest))
    return int(head.sequence)


def page(session: Session, after: int, limit: int) -> list[LedgerEntry]:
    """Entries after the number ``after``, oldest first."""
    query = select(LedgerEntry).where(LedgerEntry.sequence > after).order_by(LedgerEntry.sequence).limit(limit)
    return list(session.scalars(query))


def every(session: Session) -> Iterator[LedgerEntry]:
    """All entries, oldest first, a page at a time."""
    after = 0
    while entries := page(session, after, VERIFY_PAGE):
        yield from entries
        after = entries[-1].sequence
        session.expunge_all()


def head(session: Session) -> tuple[int, bytes]:
    """Number and hash of the last entry, as the head has them."""
    row = session.execute(select(LedgerHead.sequence, LedgerHead.hash)).one()
    return row.sequence, row.hash


def parsed(entry: LedgerEntry) -> dict[str, Any]:
    """The entry's document."""
    document: dict[str, Any] = json.loads(entry.entry)
    return document
