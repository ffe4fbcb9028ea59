"""Make and show collections, and set who may read them."""

from __future__ import annotations

from typing import cast

from sqlalchemy.orm import Session

from catalog import names
from catalog.audit import ledger
from catalog.collections import repository
from catalog.collections.schemas import Access, AccessRule, CollectionDetails, CollectionInfo, VersionInfo
from catalog.database.access import Caller
from catalog.database.models import Collection
from catalog.feed import repository as feed
from catalog.names import parse_collection
from catalog.runtime import Runtime
from catalog.tokens import repository as tokens
from catalog.web.problems import Conflict, Forbidden, NotFound, Unprocessable


def find(session: Session, caller: Caller, collection: names.Collection) -> Collection:
    """The collection; :class:`NotFound` also when the caller may not know of it."""
    found = repository.visible(session, caller, collection)
    if found is None:
        raise NotFound("no_collection", f"There is no collection {collection}", "Look for it with `openshelf search`.")
    return found


def ensure(session: Session, caller: Caller, collection: names.Collection, now: str) -> Collection:
    """The collection to write into, made when there is none; names differ in more than case."""
    found = repository.named(session, collection)
    if found is None:
        namespace = repository.namespace_named(session, collection)
        if namespace is not None and namespace.name != collection.namespace:
            raise _only_case(f"namespace {namespace.name!r}")
        found = repository.add(session, caller, collection, now)
        ledger.append(session, now, caller, "collection.created", found.path)
    elif not repository.readable(session, caller, found):
        raise Forbidden(
            "collection_closed", f"{collection} is restricted", "Ask one of its owners to name you as a reader."
        )
    elif found.path != str(collection):
        raise _only_case(f"collection {found.path!r}")
    return found


def require_owner(session: Session, caller: Caller, collection: Collection, what: str) -> None:
    """:class:`Forbidden` for a curator who does not own the collection; what auditors may do they may do everywhere."""
    if caller.role == "curator" and not repository.is_owner(session, caller, collection):
        raise Forbidden("not_owner", f"{collection.path} is not yours", f"Its owners and auditors can {what}.")


def _only_case(existing: str) -> Conflict:
    return Conflict("name_exists", f"There is a {existing}, which differs only in case", "Use that spelling.")


def info(collection: Collection) -> CollectionInfo:
    """The collection as lists show it."""
    return CollectionInfo(
        collection=collection.path,
        kind=parse_collection(collection.path).kind,
        access=cast(Access, collection.access),
        title=collection.title,
        summary=collection.summary,
        language=collection.language,
        licence=collection.licence,
        releases=collection.releases,
        updated=collection.updated_at,
    )


def details(session: Session, caller: Caller, collection: Collection) -> CollectionDetails:
    """The collection with its releases and tags."""
    return CollectionDetails(
        **info(collection).model_dump(),
        owners=repository.owners(session, collection),
        versions=[
            VersionInfo(
                version=release.version,
                state=release.state,
                manifest_digest=release.manifest_digest.hex() if release.manifest_digest else None,
                files=release.files,
                size_bytes=release.size_bytes,
                rows=release.rows,
                created=release.created,
            )
            for release in repository.versions(session, caller, collection)
        ],
        tags=repository.tags(session, collection),
    )


def set_access(runtime: Runtime, caller: Caller, name: names.Collection, rule: AccessRule) -> CollectionDetails:
    """Replace the access rule: a duty of the collection's owners and administrators.

    Whoever could read the collection before sees the event that closes it to him, so that his node drops it.
    """
    now = runtime.now()
    with runtime.change() as session:
        collection = find(session, caller, name)
        if caller.role != "administrator" and not repository.is_owner(session, caller, collection):
            raise Forbidden("not_owner", f"{name} is not yours", "Its owners and administrators set who may read it.")
        before = repository.readers(session, collection)
        was_public = collection.access == "public"
        wanted: list[int] = []
        for reader in rule.readers:
            principal = tokens.principal_named(session, reader)
            if principal is None:
                raise Unprocessable("no_principal", f"There is no principal {reader!r}", "Make a token for it first.")
            wanted.append(principal.id)
        collection.access = rule.access
        collection.updated_at = now
        repository.set_readers(session, collection, wanted)
        session.flush()
        feed.append(
            session,
            runtime.key,
            now,
            collection,
            feed.Happened("access"),
            audience="everybody" if was_public else "readers",
            also_for=before,
        )
        ledger.append(
            session,
            now,
            caller,
            "collection.access_changed",
            collection.path,
            {"access": rule.access, "readers": len(wanted)},
        )
        return details(session, caller, collection)
