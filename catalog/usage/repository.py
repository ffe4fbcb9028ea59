"""SQL of nodes, usage and confirmations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Select, String, and_, cast, exists, false, func, or_, select, true, tuple_
from sqlalchemy.orm import Session

from catalog.database.access import Caller, owned
from catalog.database.models import (
    Collection,
    CollectionMember,
    MountNode,
    Principal,
    Release,
    UsageRecord,
    WithdrawalConfirmation,
)
from catalog.names import ReleaseRef, parse_release
from catalog.usage.schemas import By

Statement = TypeVar("Statement", bound=Select[*tuple[Any, ...]])


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records are asked for; None: any. Times compare with the span from the first to the last open."""

    release: ReleaseRef | None = None
    collection: str | None = None
    job: str | None = None
    node: str | None = None
    uid: int | None = None
    since: str | None = None
    until: str | None = None


def usage_readable(caller: Caller) -> ColumnElement[bool]:
    """Collections whose usage the caller may know (a predicate on :class:`Collection`)."""
    match caller.role:
        case "administrator" | "auditor":
            return true()
        case "curator":
            return owned(caller)
        case "reader" | "node":
            return false()
    return false()


def ensure_node(session: Session, caller: Caller, name: str, now: str) -> MountNode:
    """The node of this name that the caller's principal has, made when it is new."""
    query = select(MountNode).where(MountNode.principal_id == caller.principal_id, MountNode.name == name)
    found = session.scalars(query).one_or_none()
    if found is None:
        found = MountNode(
            principal_id=caller.principal_id,
            name=name,
            created_at=now,
            last_seen_at=now,
            feed_serial=0,
            unrecorded=0,
            away=False,
        )
        session.add(found)
        session.flush()
    return found


def releases_named(session: Session, names: Iterable[str]) -> dict[str, int]:
    """``collection@version`` → number, of those that are or were published, whoever asks."""
    refs = [parse_release(name) for name in set(names)]
    if not refs:
        return {}
    query = (
        select(Collection.path, Release.version, Release.id)
        .join(Collection, Collection.id == Release.collection_id)
        .where(
            tuple_(Collection.path, Release.version).in_([(str(ref.collection), ref.version) for ref in refs]),
            Release.state.in_(("published", "withdrawn")),
        )
    )
    return {f"{row.path}@{row.version}": row.id for row in session.execute(query)}


def records_of(session: Session, node: MountNode, records: Sequence[bytes]) -> dict[bytes, UsageRecord]:
    """Those of the node's ``records`` that are known."""
    query = select(UsageRecord).where(UsageRecord.node_id == node.id, UsageRecord.record.in_(records))
    return {row.record: row for row in session.scalars(query)}


def _matching(query: Statement, caller: Caller, wanted: Filter) -> Statement:
    query = (
        query.join(Release, Release.id == UsageRecord.release_id)
        .join(Collection, Collection.id == Release.collection_id)
        .join(MountNode, MountNode.id == UsageRecord.node_id)
        .where(usage_readable(caller))
    )
    if wanted.release is not None:
        query = query.where(
            Collection.path == str(wanted.release.collection), Release.version == wanted.release.version
        )
    if wanted.collection is not None:
        query = query.where(Collection.path == wanted.collection)
    if wanted.job is not None:
        query = query.where(UsageRecord.job_name == wanted.job)
    if wanted.node is not None:
        query = query.where(MountNode.name == wanted.node)
    if wanted.uid is not None:
        query = query.where(UsageRecord.uid == wanted.uid)
    if wanted.since is not None:
        query = query.where(UsageRecord.last_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(UsageRecord.first_at <= wanted.until)
    return query


def page(session: Session, caller: Caller, wanted: Filter, before: int, limit: int) -> Sequence[Row[*tuple[Any, ...]]]:
    """Records with a number below ``before`` (0: from the newest), newest first."""
    query = _matching(
        select(UsageRecord, Collection.path, Release.version, MountNode.name, Principal.name.label("principal")),
        caller,
        wanted,
    ).join(Principal, Principal.id == MountNode.principal_id)
    if before:
        query = query.where(UsageRecord.id < before)
    return session.execute(query.order_by(UsageRecord.id.desc()).limit(limit)).all()


def groups(session: Session, caller: Caller, wanted: Filter, by: By, limit: int) -> Sequence[Row[*tuple[Any, ...]]]:
    """Records taken together, the last used first."""
    key: ColumnElement[str]
    match by:
        case "job":
            key = UsageRecord.job_kind + ":" + UsageRecord.job_name
        case "user":
            key = cast(UsageRecord.uid, String)
        case "release":
            key = Collection.path + "@" + Release.version
        case "node":
            key = MountNode.name + ""
    last = func.max(UsageRecord.last_at)
    chosen = select(
        key.label("key"),
        func.count(UsageRecord.node_id.distinct()).label("nodes"),
        func.count(UsageRecord.release_id.distinct()).label("releases"),
        func.count(UsageRecord.uid.distinct()).label("uids"),
        func.min(UsageRecord.first_at).label("first"),
        last.label("last"),
        func.sum(UsageRecord.opens).label("opens"),
        func.sum(UsageRecord.files).label("files"),
        func.sum(UsageRecord.bytes_declared).label("bytes_declared"),
        func.count().filter(UsageRecord.exact.is_(False)).label("inexact"),
    ).select_from(UsageRecord)
    query = _matching(chosen, caller, wanted).group_by(key).order_by(last.desc(), key).limit(limit)
    return session.execute(query).all()


def unrecorded(session: Session) -> int:
    """Opens that nodes know to be missing from their records."""
    return int(session.scalar(select(func.coalesce(func.sum(MountNode.unrecorded), 0))) or 0)


def may_read(session: Session, caller: Caller, release: Release) -> bool:
    """Whether the caller may know the usage of the release."""
    query = select(Collection.id).where(Collection.id == release.collection_id, usage_readable(caller))
    return session.scalar(query) is not None


def confirmations(session: Session, release: Release) -> Sequence[Row[*tuple[Any, ...]]]:
    """The confirmations of a withdrawal, by node."""
    query = (
        select(WithdrawalConfirmation, MountNode.name, Principal.name.label("principal"))
        .join(MountNode, MountNode.id == WithdrawalConfirmation.node_id)
        .join(Principal, Principal.id == MountNode.principal_id)
        .where(WithdrawalConfirmation.release_id == release.id)
        .order_by(MountNode.name, Principal.name)
    )
    return session.execute(query).all()


def outstanding(session: Session, release: Release, alive_since: str) -> Sequence[Row[*tuple[Any, ...]]]:
    """Nodes that may still show a withdrawn release: known before it was withdrawn, allowed to read it, not confirmed,
    and either not known to have carried out the withdrawal's event or on record as having used the release."""
    confirmed = exists().where(
        WithdrawalConfirmation.node_id == MountNode.id, WithdrawalConfirmation.release_id == release.id
    )
    used = exists().where(UsageRecord.node_id == MountNode.id, UsageRecord.release_id == release.id)
    member = exists().where(
        CollectionMember.collection_id == release.collection_id,
        CollectionMember.principal_id == MountNode.principal_id,
    )
    readable = true() if release.collection.access == "public" else or_(member, used)
    lives = and_(MountNode.last_seen_at >= alive_since, MountNode.away.is_(False))
    query = (
        select(
            MountNode.name,
            Principal.name.label("principal"),
            MountNode.last_seen_at,
            lives.label("lives"),
            used.label("used"),
        )
        .join(Principal, Principal.id == MountNode.principal_id)
        .where(
            MountNode.created_at <= (release.withdrawn_at or ""),
            MountNode.feed_serial < (release.withdrawn_serial or 0),
            ~confirmed,
            readable,
            or_(lives, used),
        )
        .order_by(MountNode.name, Principal.name)
    )
    return session.execute(query).all()
