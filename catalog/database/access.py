"""Who may see which rows, as predicates that stand inside the queries.

Two questions: may the caller know of a release (its name, state, licence), and may he have its contents (the list of
files, the bytes). Nobody learns of contents through anything but :func:`contents_readable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, and_, exists, false, or_, true

from catalog.database.models import Collection, CollectionMember, Release

Role = Literal["reader", "node", "curator", "auditor", "administrator"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a principal, in the role of the token that he showed."""

    principal_id: int
    name: str
    role: Role
    token_id: int


_REVIEWED = ("submitted", "approved", "published", "rejected", "withdrawn")


def _member(caller: Caller, *, owner: bool) -> ColumnElement[bool]:
    conditions = [CollectionMember.collection_id == Collection.id, CollectionMember.principal_id == caller.principal_id]
    if owner:
        conditions.append(CollectionMember.role == "owner")
    return exists().where(*conditions).correlate(Collection)


def owned(caller: Caller) -> ColumnElement[bool]:
    """Collections that the caller owns (a predicate on :class:`Collection`)."""
    return _member(caller, owner=True)


def collection_readable(caller: Caller) -> ColumnElement[bool]:
    """Collections whose access rule lets the caller in (a predicate on :class:`Collection`)."""
    if caller.role in ("auditor", "administrator"):
        return true()
    return or_(Collection.access == "public", _member(caller, owner=False))


def release_visible(caller: Caller) -> ColumnElement[bool]:
    """Releases that the caller may know of (a predicate on :class:`Release` joined with :class:`Collection`)."""
    match caller.role:
        case "administrator":
            return true()
        case "auditor":
            return Release.state.in_(_REVIEWED)
        case "curator":
            return or_(collection_readable(caller), Release.uploader_id == caller.principal_id)
        case "reader" | "node":
            return and_(Release.state.in_(("published", "withdrawn")), collection_readable(caller))
    return false()


def contents_readable(caller: Caller) -> ColumnElement[bool]:
    """Releases whose files the caller may have (a predicate on :class:`Release` joined with :class:`Collection`)."""
    published = and_(Release.state == "published", collection_readable(caller))
    match caller.role:
        case "administrator":
            return true()
        case "auditor":
            return Release.state.in_(_REVIEWED)
        case "curator":
            own = or_(Release.uploader_id == caller.principal_id, owned(caller))
            return or_(published, and_(own, Release.state != "withdrawn"))
        case "reader" | "node":
            return published
    return false()


def review_readable(caller: Caller) -> ColumnElement[bool]:
    """Releases whose review objects the caller may have (a predicate like :func:`contents_readable`)."""
    match caller.role:
        case "administrator":
            return true()
        case "auditor":
            return Release.state.in_(_REVIEWED)
        case "curator":
            return or_(Release.uploader_id == caller.principal_id, owned(caller))
        case "reader" | "node":
            return false()
    return false()
