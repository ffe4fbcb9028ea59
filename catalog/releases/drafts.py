"""Begin a draft, or begin it again."""

from __future__ import annotations

from sqlalchemy.orm import Session

from catalog.audit import ledger
from catalog.collections import service as collections
from catalog.database.access import Caller
from catalog.database.models import Collection, Release
from catalog.names import ReleaseRef
from catalog.releases import repository
from catalog.releases.schemas import DraftAbout, ReleaseInfo
from catalog.releases.service import name_of, show
from catalog.runtime import Runtime
from catalog.web.problems import Conflict, Unprocessable
from compliance.licences import LicenceError
from compliance.licences import parse as parse_licence


def begin(runtime: Runtime, caller: Caller, ref: ReleaseRef, about: DraftAbout) -> ReleaseInfo:
    """Make the draft ``ref``, or take up the one that is there.

    A draft and a sealed release are their uploader's to begin again, a rejected one anybody's who may write. What is
    under review or published stays as it is and is answered as it is when ``about`` says the same, so that an
    identical ingest can be repeated; its seal then compares the manifests.
    """
    wanted = _columns(about)
    now = runtime.now()
    event: str | None = "release.begun"
    with runtime.change() as session:
        collection = collections.ensure(session, caller, ref.collection, now)
        release = repository.of_version(session, collection, ref.version)
        if release is None:
            release = _new(session, caller, collection, ref, wanted, now)
        else:
            event = _again(session, caller, ref, release, wanted)
        if event:
            session.flush()
            ledger.append(session, now, caller, event, name_of(release), {"licence": release.licence_expression})
        session.refresh(release)
        return show(session, release)


def _columns(about: DraftAbout) -> dict[str, object]:
    """``about`` as columns of a release, the licence in its normal form and with its class."""
    columns = about.model_dump()
    expression = columns.pop("licence_expression")
    licence = None
    if expression is not None:
        try:
            licence = parse_licence(expression)
        except LicenceError as error:
            raise Unprocessable("bad_licence", error.message, error.hint) from error
    return {
        **columns,
        "licence_expression": licence.expression if licence else None,
        "licence_use": licence.use if licence else None,
        "licence_attribution": licence.attribution if licence else None,
        "licence_share_alike": licence.share_alike if licence else None,
    }


def _new(
    session: Session, caller: Caller, collection: Collection, ref: ReleaseRef, wanted: dict[str, object], now: str
) -> Release:
    tag = repository.tag_named(session, collection, ref.version)
    if tag is not None:
        raise Conflict(
            "version_is_tag",
            f"{ref.version!r} is a tag of {ref.collection}",
            "Choose another version, or remove the tag first.",
        )
    release = Release(
        collection_id=collection.id,
        version=ref.version,
        version_key=ref.version.casefold(),
        state="draft",
        uploader_id=caller.principal_id,
        files=0,
        size_bytes=0,
        created_at=now,
        **wanted,
    )
    session.add(release)
    session.flush()
    session.refresh(release)
    return release


_SAME_RECORD = (
    "created",
    "licence_expression",
    "recipe_digest",
    "policy_digest",
    "residency",
)  # fmt: skip


def _again(
    session: Session, caller: Caller, ref: ReleaseRef, release: Release, wanted: dict[str, object]
) -> str | None:
    """Take up an existing release; the ledger's event, or None when nothing changed."""
    if release.version != ref.version:
        raise Conflict(
            "version_exists",
            f"{ref.collection} has a version {release.version!r}, which differs only in case",
            "Choose another version.",
        )
    own = release.uploader_id == caller.principal_id
    match release.state:
        case "draft" if own:
            same = all(getattr(release, name) == value for name, value in wanted.items())
            _assign(release, wanted)
            return None if same else "release.described"
        case "sealed" if own:
            _reopen(session, release)
            _assign(release, wanted)
            return "release.reopened"
        case "rejected":
            _reopen(session, release)
            repository.forget_attachments(session, release)
            release.uploader_id = caller.principal_id
            release.submitter_id = None
            release.reason = None
            release.submitted_at = None
            _assign(release, wanted)
            return "release.begun"
        case "withdrawn":
            raise Conflict(
                "version_withdrawn",
                f"{ref} was withdrawn, and a withdrawn version is never used again",
                "Choose another version.",
            )
        case "submitted" | "approved" | "published" if own or release.state == "published":
            if all(getattr(release, name) == wanted[name] for name in _SAME_RECORD):
                return None
    raise Conflict(
        "version_exists",
        f"{ref} exists already ({release.state}{'' if own else ', begun by somebody else'})",
        "Choose another version.",
    )


def _assign(release: Release, wanted: dict[str, object]) -> None:
    for name, value in wanted.items():
        setattr(release, name, value)


def _reopen(session: Session, release: Release) -> None:
    release.state = "draft"
    release.manifest_digest = None
    release.sealed_at = None
    release.files = 0
    release.size_bytes = 0
    repository.forget_contents(session, release)
