"""Take what nodes report, and show it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from sqlalchemy import Row
from sqlalchemy.orm import Session

from catalog.database.access import Caller
from catalog.database.models import MountNode, UsageRecord, WithdrawalConfirmation
from catalog.names import ReleaseRef, parse_release
from catalog.releases.service import find, name_of
from catalog.runtime import Runtime, rfc3339
from catalog.usage import repository
from catalog.usage.repository import Filter
from catalog.usage.schemas import (
    By,
    Confirmation,
    ConfirmationInfo,
    ConfirmationList,
    Holder,
    Job,
    JobKind,
    Received,
    ReportedUse,
    SilentNode,
    UsageReport,
    Use,
    UseGroup,
    UseGroups,
)
from catalog.web.problems import Conflict, Forbidden

LIVES_FOR = timedelta(minutes=15)
"""A node that was not heard of for this long may be switched off; it reports every five minutes at least."""


def receive(runtime: Runtime, caller: Caller, report: UsageReport) -> Received:
    """Store a report. The same one twice, or an older one late, changes nothing.

    A record of a release that is none is left out without a word, so that nobody learns here what there is.
    """
    now = runtime.now()
    newest = {use.record: use for use in sorted(report.records, key=lambda use: use.opens)}
    with runtime.change() as session:
        node = _seen(session, caller, report.node, now)
        node.feed_serial, node.away = report.feed_serial, report.ends
        node.unrecorded = max(node.unrecorded, report.unrecorded)
        releases = repository.releases_named(session, (use.release for use in newest.values()))
        known = repository.records_of(session, node, [bytes.fromhex(record) for record in newest])
        for record, use in newest.items():
            release_id = releases.get(use.release)
            if release_id is None:
                continue
            row = known.get(bytes.fromhex(record))
            if row is None:
                session.add(_row(node, release_id, use, now))
            elif row.release_id == release_id:
                _grow(row, use, now)
    return Received(received=len(report.records))


def _seen(session: Session, caller: Caller, name: str, now: str) -> MountNode:
    node = repository.ensure_node(session, caller, name, now)
    node.last_seen_at, node.away = now, False
    return node


def _row(node: MountNode, release_id: int, use: ReportedUse, now: str) -> UsageRecord:
    return UsageRecord(
        node_id=node.id,
        record=bytes.fromhex(use.record),
        release_id=release_id,
        job_kind=use.job.kind,
        job_name=use.job.name,
        container=use.job.container,
        claimed=use.job.claimed,
        uid=use.uid,
        first_at=use.first,
        last_at=use.last,
        opens=use.opens,
        files=use.files,
        bytes_declared=use.bytes_declared,
        exact=use.exact,
        received_at=now,
    )


def _grow(row: UsageRecord, use: ReportedUse, now: str) -> None:
    """Counts of a record only grow: an older report that comes late is known by its fewer opens."""
    if use.opens <= row.opens:
        return
    row.first_at, row.last_at = min(row.first_at, use.first), max(row.last_at, use.last)
    row.opens = use.opens
    row.files = max(row.files, use.files)
    row.bytes_declared = max(row.bytes_declared, use.bytes_declared)
    row.exact = row.exact and use.exact
    row.received_at = now


def page(session: Session, caller: Caller, wanted: Filter, before: int, limit: int) -> tuple[list[Use], int | None]:
    """A page of records, and the number before which the next one begins."""
    found = repository.page(session, caller, wanted, before, limit + 1)
    uses = [_use(row) for row in found[:limit]]
    return uses, uses[-1].id if len(found) > limit else None


def _use(row: Row[*tuple[Any, ...]]) -> Use:
    record: UsageRecord = row.UsageRecord
    return Use(
        id=record.id,
        release=f"{row.path}@{row.version}",
        node=row.name,
        principal=row.principal,
        job=Job(
            kind=cast(JobKind, record.job_kind),
            name=record.job_name,
            container=record.container,
            claimed=record.claimed,
        ),
        uid=record.uid,
        first=record.first_at,
        last=record.last_at,
        opens=record.opens,
        files=record.files,
        bytes_declared=record.bytes_declared,
        exact=record.exact,
    )


def groups(session: Session, caller: Caller, wanted: Filter, by: By, limit: int) -> UseGroups:
    """Records taken together by job, user, release or node."""
    found = repository.groups(session, caller, wanted, by, limit + 1)
    return UseGroups(
        groups=[
            UseGroup(
                key=row.key.rstrip(":"),
                nodes=row.nodes,
                releases=row.releases,
                uids=row.uids,
                first=row.first,
                last=row.last,
                opens=int(row.opens),
                files=int(row.files),
                bytes_declared=int(row.bytes_declared),
                exact=row.inexact == 0,
            )
            for row in found[:limit]
        ],
        more=len(found) > limit,
        unrecorded=repository.unrecorded(session),
    )


def confirm(runtime: Runtime, caller: Caller, told: Confirmation) -> Received:
    """Store what a node did about a withdrawal; a later word of the same node takes the place of an earlier one."""
    now = runtime.now()
    with runtime.change() as session:
        release = find(session, caller, parse_release(told.release))
        if release.state != "withdrawn":
            raise Conflict("not_withdrawn", f"{told.release} is {release.state}", "There is nothing to confirm.")
        node = _seen(session, caller, told.node, now)
        row = session.get(WithdrawalConfirmation, (release.id, node.id))
        if row is None:
            row = WithdrawalConfirmation(
                release_id=release.id,
                node_id=node.id,
                policy=told.policy,
                done_at=told.done,
                objects_removed=0,
                bytes_removed=0,
            )
            session.add(row)
        row.objects_removed = max(row.objects_removed, told.objects_removed)
        row.bytes_removed = max(row.bytes_removed, told.bytes_removed)
        row.holders = [holder.model_dump() for holder in told.holders]
        row.open_files = told.open_files
        row.released_at = (row.released_at or now) if told.open_files == 0 else None
        row.received_at = now
    return Received(received=1)


def confirmations(runtime: Runtime, session: Session, caller: Caller, ref: ReleaseRef) -> ConfirmationList:
    """Which nodes have confirmed a withdrawal and who still holds files; for who may know the release's usage."""
    release = find(session, caller, ref)
    if not repository.may_read(session, caller, release):
        raise Forbidden(
            "usage_closed", f"The usage of {ref} is not yours to know", "Its owners and auditors can see it."
        )
    if release.withdrawn_at is None:
        raise Conflict("not_withdrawn", f"{name_of(release)} is {release.state}", "There is nothing to confirm.")
    alive_since = rfc3339(runtime.clock() - LIVES_FOR)
    return ConfirmationList(
        release=name_of(release),
        withdrawn=release.withdrawn_at,
        confirmations=[_confirmation(row) for row in repository.confirmations(session, release)],
        outstanding=[
            SilentNode(
                node=row.name,
                principal=row.principal,
                last_seen=row.last_seen_at,
                lives=bool(row.lives),
                used=bool(row.used),
            )
            for row in repository.outstanding(session, release, alive_since)
        ],
    )


def _confirmation(row: Row[*tuple[Any, ...]]) -> ConfirmationInfo:
    found: WithdrawalConfirmation = row.WithdrawalConfirmation
    return ConfirmationInfo(
        node=row.name,
        principal=row.principal,
        policy=found.policy,
        done=found.done_at,
        objects_removed=found.objects_removed,
        bytes_removed=found.bytes_removed,
        open_files=found.open_files,
        holders=[Holder(**holder) for holder in found.holders],
        released=found.released_at,
        received=found.received_at,
    )
