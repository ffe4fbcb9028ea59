"""SQL of the feed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import case, select, update
from sqlalchemy.orm import Session

from catalog.database.access import Caller, collection_readable
from catalog.database.models import Collection, FeedEvent, FeedState, Release, Tag
from catalog.signing import SigningKey

EventType = Literal["published", "withdrawn", "tagged", "untagged", "access"]
Audience = Literal["readers", "everybody"]


@dataclass(frozen=True, slots=True)
class Happened:
    """What an event tells, apart from its place in the sequence."""

    type: EventType
    version: str | None = None
    tag: str | None = None
    manifest_digest: str | None = None
    reason_code: str | None = None
    policy: Literal["revoke"] | None = None
    """Of a withdrawal: what nodes do about open files, where their own settings are milder."""


def state(session: Session) -> tuple[int, int]:
    """The feed's epoch and last serial."""
    row = session.execute(select(FeedState.epoch, FeedState.serial)).one()
    return row.epoch, row.serial


def set_epoch(session: Session, epoch: int) -> None:
    """Begin the epoch ``epoch``; serials go on."""
    session.execute(update(FeedState).values(epoch=epoch))


def append(
    session: Session,
    key: SigningKey,
    at: str,
    collection: Collection,
    happened: Happened,
    *,
    audience: Audience = "readers",
    also_for: Sequence[int] = (),
) -> int:
    """Sign and write the next event in the caller's transaction; its serial.

    The update of the one row of ``feed_state`` takes the serial: a transaction that rolls back gives it back, so that
    the sequence has no holes.
    """
    place = session.execute(
        update(FeedState).values(serial=FeedState.serial + 1).returning(FeedState.epoch, FeedState.serial)
    ).one()
    event = {
        "epoch": place.epoch,
        "serial": place.serial,
        "type": happened.type,
        "collection": collection.path,
        "version": happened.version,
        "tag": happened.tag,
        "manifest_digest": happened.manifest_digest,
        "reason_code": happened.reason_code,
        "access": collection.access,
        "at": at,
    }
    if happened.policy is not None:
        event["policy"] = happened.policy
    hidden = {"epoch": place.epoch, "serial": place.serial, "type": "hidden", "at": at}
    session.add(
        FeedEvent(
            serial=place.serial,
            epoch=place.epoch,
            collection_id=collection.id,
            audience=audience,
            also_for=list(also_for),
            event=key.sign("feed-event", event).to_json(),
            hidden=key.sign("feed-event", hidden).to_json(),
        )
    )
    session.info["feed_serial"] = place.serial
    return int(place.serial)


def after(session: Session, caller: Caller, serial: int, limit: int) -> list[dict[str, Any]]:
    """Signed events after ``serial``, each as the caller may see it."""
    visible = case((FeedEvent.audience == "everybody", True), else_=collection_readable(caller))
    query = (
        select(FeedEvent.event, FeedEvent.hidden, FeedEvent.also_for, visible.label("visible"))
        .join(Collection, Collection.id == FeedEvent.collection_id)
        .where(FeedEvent.serial > serial)
        .order_by(FeedEvent.serial)
        .limit(limit)
    )
    return [
        row.event if row.visible or caller.principal_id in row.also_for else row.hidden
        for row in session.execute(query)
    ]


def published(session: Session, caller: Caller) -> list[Release]:
    """Every published release that the caller may read, by collection and version."""
    query = (
        select(Release)
        .join(Collection, Collection.id == Release.collection_id)
        .where(Release.state == "published", collection_readable(caller))
        .order_by(Collection.path, Release.version)
    )
    return list(session.scalars(query))


def tags(session: Session, caller: Caller) -> list[tuple[str, str, str]]:
    """(collection, tag, version) of every tag that the caller may read."""
    query = (
        select(Collection.path, Tag.name, Release.version)
        .join(Collection, Collection.id == Tag.collection_id)
        .join(Release, Release.id == Tag.release_id)
        .where(Release.state == "published", collection_readable(caller))
        .order_by(Collection.path, Tag.name)
    )
    return [(row.path, row.name, row.version) for row in session.execute(query)]
