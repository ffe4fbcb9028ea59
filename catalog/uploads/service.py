"""Receive objects for a draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy.orm import Session

from catalog.database.access import Caller
from catalog.database.models import Release
from catalog.names import ReleaseRef
from catalog.releases import repository as releases
from catalog.releases.service import find
from catalog.runtime import Runtime
from catalog.uploads import repository
from catalog.uploads.schemas import Uploaded
from catalog.web.problems import Conflict, Forbidden


def for_upload(session: Session, caller: Caller, ref: ReleaseRef) -> Release:
    """The release that the caller fills: his own, or a published one that he repeats."""
    release = find(session, caller, ref)
    if release.state in ("rejected", "withdrawn"):
        raise Conflict("wrong_state", f"{ref} is {release.state}", "Begin a draft first.")
    repeats = release.state == "published" and releases.may_read_contents(session, caller, release)
    if release.uploader_id != caller.principal_id and not repeats:
        raise Forbidden("not_your_draft", f"{ref} was begun by somebody else", "Choose another version.")
    return release


def missing(runtime: Runtime, caller: Caller, ref: ReleaseRef, digests: Sequence[str]) -> list[str]:
    """Those of ``digests`` that the caller must send."""
    with runtime.database.read() as session:
        for_upload(session, caller, ref)
        there = repository.usable(session, caller, dict.fromkeys(bytes.fromhex(digest) for digest in digests))
    return [digest for digest in dict.fromkeys(digests) if bytes.fromhex(digest) not in there]


def receive(
    runtime: Runtime, caller: Caller, ref: ReleaseRef, sha256: str, size_bytes: int, portions: Iterator[bytes]
) -> Uploaded:
    """Store the object and note who sent it. Nothing is noted before the store has all of it, durably."""
    with runtime.database.read() as session:
        for_upload(session, caller, ref)
    stored = runtime.store.put(portions, size_bytes, sha256)
    with runtime.change() as session:
        repository.add_object(session, stored)
        repository.add_upload(session, caller, bytes.fromhex(stored.sha256))
    runtime.metrics.received.inc(stored.size)
    return Uploaded(sha256=stored.sha256, size=stored.size)
