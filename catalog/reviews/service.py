"""Take a release from state to state: permission, transition, ledger and feed in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from catalog.audit import ledger
from catalog.collections import service as collections
from catalog.database.access import Caller
from catalog.database.models import Collection, Release
from catalog.feed import repository as feed
from catalog.feed.repository import Happened
from catalog.names import ReleaseRef
from catalog.releases import repository
from catalog.releases.schemas import ReleaseInfo
from catalog.releases.service import find, licence_of, name_of, sealed_digest, show
from catalog.reviews import attachments, transitions
from catalog.reviews.schemas import Withdrawal
from catalog.runtime import Runtime
from catalog.search import repository as search
from catalog.web.dependencies import AUDITORS, CURATORS, STAFF, require
from catalog.web.problems import Forbidden


@contextmanager
def _four_eyes(release: Release) -> Iterator[None]:
    """Say what the database's own constraint means, should the check before it ever be missing."""
    try:
        yield
    except IntegrityError as error:
        if "four_eyes" in str(error.orig):
            raise transitions.self_approval(release) from error
        raise


def _step(
    runtime: Runtime,
    caller: Caller,
    ref: ReleaseRef,
    change: Callable[[Session, Release, str], tuple[str, dict[str, Any]]],
) -> ReleaseInfo:
    """Run ``change`` on the release in a transaction; it answers the ledger's event and details."""
    now = runtime.now()
    with runtime.change() as session:
        release = find(session, caller, ref)
        event, details = change(session, release, now)
        with _four_eyes(release):
            session.flush()
        ledger.append(session, now, caller, event, name_of(release), details)
        session.expire(release)
        return show(session, release)


def submit(runtime: Runtime, caller: Caller, ref: ReleaseRef) -> ReleaseInfo:
    """Ask for review."""
    require(caller, CURATORS, "submit a release")

    def change(session: Session, release: Release, now: str) -> tuple[str, dict[str, Any]]:
        transitions.submit(release, caller, now)
        reviewed = {row.name: row.sha256.hex() for row in attachments.of(session, release)}
        return "release.submitted", {"manifest_digest": sealed_digest(release).hex(), "review_objects": reviewed}

    return _step(runtime, caller, ref, change)


def approve(runtime: Runtime, caller: Caller, ref: ReleaseRef, note: str, seen: bytes | None) -> ReleaseInfo:
    """Approve the manifest as it stands."""
    require(caller, AUDITORS, "approve a release")

    def change(_session: Session, release: Release, now: str) -> tuple[str, dict[str, Any]]:
        transitions.approve(release, caller, seen, now)
        return "release.approved", {"manifest_digest": sealed_digest(release).hex(), "note": note}

    return _step(runtime, caller, ref, change)


def reject(runtime: Runtime, caller: Caller, ref: ReleaseRef, reason: str) -> ReleaseInfo:
    """Reject a submitted release."""
    require(caller, AUDITORS, "reject a release")

    def change(_session: Session, release: Release, _now: str) -> tuple[str, dict[str, Any]]:
        transitions.reject(release, reason)
        return "release.rejected", {"manifest_digest": sealed_digest(release).hex(), "reason": reason}

    return _step(runtime, caller, ref, change)


def return_to_draft(runtime: Runtime, caller: Caller, ref: ReleaseRef, reason: str) -> ReleaseInfo:
    """Send a release back to its uploader; he may also take it back himself."""
    require(caller, STAFF, "return a release")

    def change(session: Session, release: Release, _now: str) -> tuple[str, dict[str, Any]]:
        if caller.role == "curator" and release.uploader_id != caller.principal_id:
            raise Forbidden("not_your_draft", f"{ref} was begun by somebody else", "An auditor can return it.")
        before = release.manifest_digest
        transitions.return_to_draft(release, reason)
        repository.forget_contents(session, release)
        return "release.returned", {"manifest_digest": before.hex() if before else None, "reason": reason}

    return _step(runtime, caller, ref, change)


def publish(runtime: Runtime, caller: Caller, ref: ReleaseRef) -> ReleaseInfo:
    """Sign the release's record and announce it."""
    require(caller, STAFF, "publish a release")

    def change(session: Session, release: Release, now: str) -> tuple[str, dict[str, Any]]:
        transitions.check_publishable(release)
        digest = sealed_digest(release).hex()
        transitions.publish(release, runtime.key.sign("release", _record_of(release)).to_json(), now)
        session.flush()
        _refresh_card(session, release.collection, now)
        happened = Happened("published", version=release.version, manifest_digest=digest)
        serial = feed.append(session, runtime.key, now, release.collection, happened)
        return "release.published", {"manifest_digest": digest, "serial": serial}

    return _step(runtime, caller, ref, change)


def _record_of(release: Release) -> dict[str, Any]:
    """``release.json``: what is signed for good."""
    licence = licence_of(release)
    return {
        "collection": release.collection.path,
        "version": release.version,
        "created": release.created,
        "manifest_digest": sealed_digest(release).hex(),
        "licence": licence.model_dump() if licence else None,
        "recipe_digest": release.recipe_digest,
        "policy_digest": release.policy_digest,
        "residency": list(release.residency),
        "totals": {"files": release.files, "size_bytes": release.size_bytes, "rows": release.rows},
    }


def withdraw(runtime: Runtime, caller: Caller, ref: ReleaseRef, why: Withdrawal) -> ReleaseInfo:
    """Take a published release down; the tags that name it go in the same transaction."""
    require(caller, STAFF, "withdraw a release")

    def change(session: Session, release: Release, now: str) -> tuple[str, dict[str, Any]]:
        collections.require_owner(session, caller, release.collection, "withdraw from it")
        transitions.withdraw(release, why.reason_code, why.note, why.legal_basis, now)
        digest = sealed_digest(release).hex()
        for tag in repository.tags_of(session, release):
            untagged = Happened("untagged", version=release.version, tag=tag.name)
            feed.append(session, runtime.key, now, release.collection, untagged)
            session.delete(tag)
        session.flush()
        _refresh_card(session, release.collection, now)
        happened = Happened(
            "withdrawn",
            version=release.version,
            manifest_digest=digest,
            reason_code=why.reason_code,
            policy=why.policy,
        )
        serial = feed.append(session, runtime.key, now, release.collection, happened)
        release.withdrawn_serial = serial
        return "release.withdrawn", {"manifest_digest": digest, "serial": serial, **why.model_dump()}

    return _step(runtime, caller, ref, change)


def _refresh_card(session: Session, collection: Collection, now: str) -> None:
    """The collection's card is that of its newest published release."""
    newest = repository.newest_published(session, collection)
    languages = newest.facets.get("language", []) if newest else []
    collection.title = newest.title if newest else ""
    collection.summary = newest.summary if newest else ""
    collection.language = languages[0] if languages else None
    collection.licence = newest.licence_expression if newest else None
    collection.releases = repository.count_published(session, collection)
    collection.updated_at = now
    session.flush()
    search.index(session, collection)
