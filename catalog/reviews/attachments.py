"""Review objects: the report, findings, rejects and statistics of a release, for its curators and its reviewers.

They lie in a store of their own, which no object address reaches, and are never part of the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from catalog.database.access import Caller
from catalog.database.models import Attachment, Release
from catalog.names import ReleaseRef
from catalog.releases import repository
from catalog.releases.service import find, find_or_tagged
from catalog.reviews.schemas import AttachmentInfo
from catalog.runtime import Runtime
from catalog.web.problems import Conflict, Forbidden, NotFound


def of(session: Session, release: Release) -> list[Attachment]:
    """The release's review objects by name."""
    query = select(Attachment).where(Attachment.release_id == release.id).order_by(Attachment.name)
    return list(session.scalars(query))


def find_reviewed(session: Session, caller: Caller, ref: ReleaseRef) -> Release:
    """The release, for who may read its review objects; :class:`Forbidden` for others who may know of it."""
    release = find_or_tagged(session, caller, ref)
    if not repository.may_read_review(session, caller, release):
        raise Forbidden(
            "review_closed",
            f"The review objects of {ref} are not yours to read",
            "They are open to its uploader, the collection's owners and auditors.",
        )
    return release


def find_attachment(session: Session, caller: Caller, ref: ReleaseRef, name: str) -> Attachment:
    """One review object of a release."""
    return _named(session, find_reviewed(session, caller, ref), ref, name)


def find_report(session: Session, caller: Caller, ref: ReleaseRef, name: str) -> Attachment:
    """The report, which has counts only: open also to whoever may read the published release."""
    release = find_or_tagged(session, caller, ref)
    if release.state == "published" and repository.may_read_contents(session, caller, release):
        return _named(session, release, ref, name)
    return find_attachment(session, caller, ref, name)


def _named(session: Session, release: Release, ref: ReleaseRef, name: str) -> Attachment:
    found = session.get(Attachment, (release.id, name))
    if found is None:
        raise NotFound("no_attachment", f"{ref} has no review object {name!r}", "List them with GET …/attachments.")
    return found


def info(attachment: Attachment) -> AttachmentInfo:
    """The review object as it is listed."""
    return AttachmentInfo(
        name=attachment.name,
        size_bytes=attachment.size_bytes,
        media_type=attachment.media_type,
        sha256=attachment.sha256.hex(),
    )


def attach(
    runtime: Runtime,
    caller: Caller,
    ref: ReleaseRef,
    name: str,
    media_type: str,
    size_bytes: int,
    portions: Iterator[bytes],
) -> AttachmentInfo:
    """Put a review object beside the caller's own draft or sealed release, in the place of one of the same name.

    Later it stays as the reviewers saw it; sending the same bytes again then succeeds.
    """
    with runtime.database.read() as session:
        _for_attaching(session, caller, ref)
    stored = runtime.review_store.put(portions, size_bytes, None)
    sha256 = bytes.fromhex(stored.sha256)
    with runtime.change() as session:
        release = _for_attaching(session, caller, ref)
        found = session.get(Attachment, (release.id, name))
        if release.state not in ("draft", "sealed"):
            if found is None or found.sha256 != sha256:
                raise Conflict(
                    "wrong_state", f"{ref} is {release.state}: its review objects stay", "Return it to a draft first."
                )
            return info(found)
        if found is None:
            found = Attachment(release_id=release.id, name=name)
            session.add(found)
        found.sha256 = sha256
        found.size_bytes = stored.size
        found.media_type = media_type
        session.flush()
        return info(found)


def _for_attaching(session: Session, caller: Caller, ref: ReleaseRef) -> Release:
    release = find(session, caller, ref)
    if release.uploader_id != caller.principal_id:
        raise Forbidden("not_your_draft", f"{ref} was begun by somebody else", "Its uploader attaches review objects.")
    return release
