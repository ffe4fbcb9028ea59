"""SQL of collections."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select
from sqlalchemy.orm import Session

from catalog import names
from catalog.database.access import Caller, collection_readable, owned, release_visible
from catalog.database.models import Collection, CollectionMember, Namespace, Principal, Release, Tag


def listed(caller: Caller) -> ColumnElement[bool]:
    """Collections that the caller sees in lists: readable ones that have a release he may know of."""
    has_release = exists().where(Release.collection_id == Collection.id, release_visible(caller)).correlate(Collection)
    return and_(collection_readable(caller), has_release)


def visible(session: Session, caller: Caller, collection: names.Collection) -> Collection | None:
    """The collection, if the caller may know of it."""
    query = select(Collection).where(Collection.path == str(collection), or_(listed(caller), owned(caller)))
    return session.scalars(query).one_or_none()


def page(session: Session, caller: Caller, after: str, limit: int) -> list[Collection]:
    """Collections that the caller sees, by name, after the name ``after``."""
    query = select(Collection).where(Collection.path > after, listed(caller)).order_by(Collection.path).limit(limit)
    return list(session.scalars(query))


def named(session: Session, collection: names.Collection) -> Collection | None:
    """The collection of this name without regard to case, whoever asks: for deciding whether a name is free."""
    query = (
        select(Collection)
        .join(Namespace, Namespace.id == Collection.namespace_id)
        .where(
            Namespace.folder == collection.folder,
            Namespace.name_key == collection.namespace.casefold(),
            Collection.name_key == collection.name.casefold(),
        )
    )
    return session.scalars(query).one_or_none()


def namespace_named(session: Session, collection: names.Collection) -> Namespace | None:
    """The namespace of the collection without regard to case."""
    query = select(Namespace).where(
        Namespace.folder == collection.folder, Namespace.name_key == collection.namespace.casefold()
    )
    return session.scalars(query).one_or_none()


def add(session: Session, caller: Caller, collection: names.Collection, now: str) -> Collection:
    """A new public collection that the caller owns, in its namespace, which is made when there is none."""
    namespace = namespace_named(session, collection)
    if namespace is None:
        namespace = Namespace(
            folder=collection.folder, name=collection.namespace, name_key=collection.namespace.casefold()
        )
        session.add(namespace)
        session.flush()
    row = Collection(
        namespace_id=namespace.id,
        name=collection.name,
        name_key=collection.name.casefold(),
        path=str(collection),
        access="public",
        title="",
        summary="",
        releases=0,
        created_at=now,
        updated_at=now,
    )
    session.add(row)
    session.flush()
    session.add(CollectionMember(collection_id=row.id, principal_id=caller.principal_id, role="owner"))
    session.flush()
    return row


def readable(session: Session, caller: Caller, collection: Collection) -> bool:
    """Whether the collection's access rule lets the caller in."""
    query = select(Collection.id).where(Collection.id == collection.id, collection_readable(caller))
    return session.scalar(query) is not None


def is_owner(session: Session, caller: Caller, collection: Collection) -> bool:
    """Whether the caller owns the collection."""
    query = select(Collection.id).where(Collection.id == collection.id, owned(caller))
    return session.scalar(query) is not None


def owners(session: Session, collection: Collection) -> list[str]:
    """The names of the collection's owners."""
    query = (
        select(Principal.name)
        .join(CollectionMember, CollectionMember.principal_id == Principal.id)
        .where(CollectionMember.collection_id == collection.id, CollectionMember.role == "owner")
        .order_by(Principal.name)
    )
    return list(session.scalars(query))


def readers(session: Session, collection: Collection) -> list[int]:
    """The principals, by number, whom the collection's readers are."""
    query = select(CollectionMember.principal_id).where(
        CollectionMember.collection_id == collection.id, CollectionMember.role == "reader"
    )
    return list(session.scalars(query))


def set_readers(session: Session, collection: Collection, principals: Iterable[int]) -> None:
    """Replace the collection's readers; owners stay owners."""
    session.execute(
        delete(CollectionMember).where(
            CollectionMember.collection_id == collection.id, CollectionMember.role == "reader"
        )
    )
    known = set(
        session.scalars(select(CollectionMember.principal_id).where(CollectionMember.collection_id == collection.id))
    )
    session.add_all(
        CollectionMember(collection_id=collection.id, principal_id=principal, role="reader")
        for principal in sorted(set(principals) - known)
    )


def versions(session: Session, caller: Caller, collection: Collection) -> list[Release]:
    """The collection's releases that the caller may know of, newest first."""
    query = (
        select(Release)
        .join(Collection, Collection.id == Release.collection_id)
        .where(Release.collection_id == collection.id, release_visible(caller))
        .order_by(Release.created_at.desc(), Release.id.desc())
    )
    return list(session.scalars(query))


def tags(session: Session, collection: Collection) -> dict[str, str]:
    """Tag to version."""
    query = (
        select(Tag.name, Release.version)
        .join(Release, Release.id == Tag.release_id)
        .where(Tag.collection_id == collection.id)
        .order_by(Tag.name)
    )
    return {row.name: row.version for row in session.execute(query)}
