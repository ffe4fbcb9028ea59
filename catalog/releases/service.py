"""Find releases for a caller, and show them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from sqlalchemy.orm import Session

from catalog.database.access import Caller
from catalog.database.models import Release
from catalog.manifest import Manifest
from catalog.names import ReleaseRef
from catalog.releases import repository
from catalog.releases.schemas import FileInfo, FileList, LicenceInfo, ReleaseInfo, State
from catalog.web.cursors import encode_cursor
from catalog.web.problems import Conflict, Forbidden, Gone, NotFound


def find(session: Session, caller: Caller, ref: ReleaseRef) -> Release:
    """The release ``ref``; :class:`NotFound` also when the caller may not know of it."""
    release = repository.visible(session, caller, ref)
    if release is None:
        raise NotFound(
            "no_release",
            f"There is no release {ref}",
            "Look for it with `openshelf search`; a draft is seen by curators only.",
        )
    return release


def find_or_tagged(session: Session, caller: Caller, ref: ReleaseRef) -> Release:
    """The release ``ref``, or the one that a tag of that name points to."""
    return repository.visible_by_tag(session, caller, ref) or find(session, caller, ref)


def find_contents(session: Session, caller: Caller, ref: ReleaseRef) -> Release:
    """Like :func:`find_or_tagged`, for who wants the files: withdrawn is :class:`Gone`, not his :class:`Forbidden`."""
    release = find_or_tagged(session, caller, ref)
    if repository.may_read_contents(session, caller, release):
        return release
    if release.state == "withdrawn":
        raise gone(release)
    raise Forbidden(
        "contents_closed",
        f"The files of {ref} are not yours to read while it is {release.state}",
        "They are open to its uploader, the collection's owners and, once it is submitted, to auditors.",
    )


def gone(release: Release) -> Gone:
    """What is left to say of a withdrawn release."""
    return Gone(
        "withdrawn",
        f"{name_of(release)} was withdrawn ({release.reason_code})",
        "Remove what you have of it, and use another release.",
    )


def sealed_digest(release: Release) -> bytes:
    """The digest of the release's manifest; :class:`Conflict` while it has none."""
    if release.manifest_digest is None:
        raise Conflict("not_sealed", f"{name_of(release)} is a draft and has no files yet", "Seal it first.")
    return release.manifest_digest


def name_of(release: Release) -> str:
    """``collection@version``."""
    return f"{release.collection.path}@{release.version}"


def licence_of(release: Release) -> LicenceInfo | None:
    """The licence and its class, if one is known."""
    if release.licence_expression is None:
        return None
    return LicenceInfo(
        expression=release.licence_expression,
        use=release.licence_use or "unspecified",
        attribution=bool(release.licence_attribution),
        share_alike=bool(release.licence_share_alike),
    )


def show(session: Session, release: Release) -> ReleaseInfo:
    """The release as it is shown."""
    return ReleaseInfo(
        ref=name_of(release),
        collection=release.collection.path,
        version=release.version,
        state=cast(State, release.state),
        manifest_digest=release.manifest_digest.hex() if release.manifest_digest else None,
        files=release.files,
        size_bytes=release.size_bytes,
        rows=release.rows,
        licence=licence_of(release),
        uploader=release.uploader.name,
        submitter=release.submitter.name if release.submitter else None,
        approver=release.approver.name if release.approver else None,
        created=release.created,
        tags=[tag.name for tag in repository.tags_of(session, release)],
        reason=release.reason_code or release.reason,
        title=release.title,
        summary=release.summary,
        facets=release.facets,
        source_urls=release.source_urls,
        residency=release.residency,
        recipe_digest=release.recipe_digest,
        policy_digest=release.policy_digest,
        published_at=release.published_at,
        withdrawn_at=release.withdrawn_at,
    )


def list_files(manifest: Path, digest: bytes, start: int, limit: int) -> FileList:
    """``limit`` files from row ``start`` of the stored manifest."""
    opened = Manifest.open_verified(manifest, digest)
    stop = min(start + limit, len(opened))
    rows = [opened.row(row) for row in range(start, stop)]
    return FileList(
        files=[FileInfo(path=row.path, size=row.size, sha256=row.sha256.hex(), mode=row.mode) for row in rows],
        next=encode_cursor(stop) if stop < len(opened) else None,
    )
