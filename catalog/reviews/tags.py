"""Movable names of published releases."""

from __future__ import annotations

from sqlalchemy.orm import Session

from catalog import names
from catalog.audit import ledger
from catalog.collections import service as collections
from catalog.database.access import Caller
from catalog.database.models import Collection, Release, Tag
from catalog.feed import repository as feed
from catalog.feed.repository import Happened
from catalog.names import ReleaseRef, is_name
from catalog.releases import repository
from catalog.releases.schemas import ReleaseInfo
from catalog.releases.service import find, name_of, show
from catalog.runtime import Runtime
from catalog.web.dependencies import STAFF, require
from catalog.web.problems import Conflict, NotFound, Unprocessable


def set_tag(runtime: Runtime, caller: Caller, name: names.Collection, tag: str, version: str) -> ReleaseInfo:
    """Let ``tag`` name a published release, from whichever it named before."""
    require(caller, STAFF, "set a tag")
    if not is_name(tag) or not is_name(version):
        raise Unprocessable(
            "bad_name",
            f"{(version if is_name(tag) else tag)[:80]!r} is not a name",
            "Use letters, digits, '.', '_', '-'.",
        )
    now = runtime.now()
    with runtime.change() as session:
        release = find(session, caller, ReleaseRef(name, version))
        collections.require_owner(session, caller, release.collection, "set its tags")
        _place(runtime, session, caller, release, tag, now)
        return show(session, release)


def _place(runtime: Runtime, session: Session, caller: Caller, release: Release, tag: str, now: str) -> None:
    if release.state != "published":
        raise Conflict(
            "wrong_state", f"{name_of(release)} is {release.state}", "Only a published release can have a tag."
        )
    taken = repository.of_version(session, release.collection, tag)
    if taken is not None:
        raise Conflict("tag_is_version", f"{tag!r} is a version of {release.collection.path}", "Choose another tag.")
    existing = repository.tag_named(session, release.collection, tag)
    if existing is None:
        session.add(Tag(collection_id=release.collection_id, name_key=tag.casefold(), name=tag, release_id=release.id))
    elif existing.name != tag:
        raise Conflict("tag_exists", f"There is a tag {existing.name!r}, which differs only in case", "Use that.")
    elif existing.release_id == release.id:
        return
    else:
        existing.release_id = release.id
    session.flush()
    digest = release.manifest_digest.hex() if release.manifest_digest else None
    happened = Happened("tagged", version=release.version, tag=tag, manifest_digest=digest)
    serial = feed.append(session, runtime.key, now, release.collection, happened)
    ledger.append(session, now, caller, "release.tagged", name_of(release), {"tag": tag, "serial": serial})


def remove_tag(runtime: Runtime, caller: Caller, name: names.Collection, tag: str) -> None:
    """Remove the tag; :class:`NotFound` when there is none."""
    require(caller, STAFF, "remove a tag")
    now = runtime.now()
    with runtime.change() as session:
        collection: Collection = collections.find(session, caller, name)
        collections.require_owner(session, caller, collection, "remove its tags")
        existing = repository.tag_named(session, collection, tag)
        if existing is None or existing.name != tag:
            raise NotFound("no_tag", f"{name} has no tag {tag[:80]!r}", f"See the tags with `openshelf show {name}`.")
        session.delete(existing)
        session.flush()
        serial = feed.append(session, runtime.key, now, collection, Happened("untagged", tag=tag))
        ledger.append(session, now, caller, "release.untagged", collection.path, {"tag": tag, "serial": serial})
