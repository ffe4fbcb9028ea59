"""SQL of releases and tags."""

from __future__ import annotations

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from catalog.database.access import Caller, contents_readable, release_visible, review_readable
from catalog.database.models import Attachment, Collection, Release, ReleaseObject, Tag
from catalog.names import ReleaseRef


def visible(session: Session, caller: Caller, ref: ReleaseRef) -> Release | None:
    """The release of exactly this version, if the caller may know of it."""
    query = (
        select(Release)
        .join(Collection, Collection.id == Release.collection_id)
        .where(Collection.path == str(ref.collection), Release.version == ref.version, release_visible(caller))
    )
    return session.scalars(query).one_or_none()


def visible_by_tag(session: Session, caller: Caller, ref: ReleaseRef) -> Release | None:
    """The release that the tag ``ref.version`` names, if the caller may know of it."""
    query = (
        select(Release)
        .join(Collection, Collection.id == Release.collection_id)
        .join(Tag, Tag.release_id == Release.id)
        .where(Collection.path == str(ref.collection), Tag.name == ref.version, release_visible(caller))
    )
    return session.scalars(query).one_or_none()


def may_read_contents(session: Session, caller: Caller, release: Release) -> bool:
    """Whether the caller may have the release's files."""
    return _permitted(session, release, contents_readable(caller))


def may_read_review(session: Session, caller: Caller, release: Release) -> bool:
    """Whether the caller may have the release's review objects."""
    return _permitted(session, release, review_readable(caller))


def _permitted(session: Session, release: Release, predicate: object) -> bool:
    query = (
        select(Release.id)
        .join(Collection, Collection.id == Release.collection_id)
        .where(Release.id == release.id, predicate)  # type: ignore[arg-type]
    )
    return session.scalar(query) is not None


def of_version(session: Session, collection: Collection, version: str) -> Release | None:
    """The release of this version without regard to case, whoever asks: for deciding whether a name is free."""
    query = select(Release).where(Release.collection_id == collection.id, Release.version_key == version.casefold())
    return session.scalars(query).one_or_none()


def with_manifest(session: Session, caller: Caller, digest: bytes) -> Release | None:
    """A release that has this manifest and whose files the caller may have."""
    query = (
        select(Release)
        .join(Collection, Collection.id == Release.collection_id)
        .where(Release.manifest_digest == digest, contents_readable(caller))
        .limit(1)
    )
    return session.scalars(query).first()


def withdrawn_with_manifest(session: Session, caller: Caller, digest: bytes) -> Release | None:
    """A withdrawn release that had this manifest and of which the caller may know."""
    query = (
        select(Release)
        .join(Collection, Collection.id == Release.collection_id)
        .where(Release.manifest_digest == digest, Release.state == "withdrawn", release_visible(caller))
        .limit(1)
    )
    return session.scalars(query).first()


def tag_named(session: Session, collection: Collection, name: str) -> Tag | None:
    """The tag of this name, without regard to case."""
    return session.get(Tag, (collection.id, name.casefold()))


def tags_of(session: Session, release: Release) -> list[Tag]:
    """The tags that name the release, by name."""
    return list(session.scalars(select(Tag).where(Tag.release_id == release.id).order_by(Tag.name)))


def forget_contents(session: Session, release: Release) -> None:
    """The release contains nothing any more."""
    session.execute(delete(ReleaseObject).where(ReleaseObject.release_id == release.id))


def forget_attachments(session: Session, release: Release) -> None:
    """The release has no review objects any more."""
    session.execute(delete(Attachment).where(Attachment.release_id == release.id))


def newest_published(session: Session, collection: Collection) -> Release | None:
    """The release that was published last, of those that still are."""
    query = (
        select(Release)
        .where(Release.collection_id == collection.id, Release.state == "published")
        .order_by(Release.published_at.desc(), Release.id.desc())
        .limit(1)
    )
    return session.scalars(query).first()


def count_published(session: Session, collection: Collection) -> int:
    """How many releases of the collection are published."""
    query = (
        select(func.count())
        .select_from(Release)
        .where(Release.collection_id == collection.id, Release.state == "published")
    )
    return session.scalar(query) or 0
