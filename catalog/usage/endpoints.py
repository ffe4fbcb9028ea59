"""``/v1/usage`` and the confirmations of withdrawals."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from catalog.database.access import Role
from catalog.names import parse_collection, parse_release
from catalog.releases.endpoints import PATH as RELEASE_PATH
from catalog.usage import service
from catalog.usage.repository import Filter
from catalog.usage.schemas import (
    By,
    Confirmation,
    ConfirmationList,
    Received,
    UsageReport,
    UseGroups,
    UseList,
    UtcMoment,
)
from catalog.web.cursors import encode_cursor, link_next, number_cursor
from catalog.web.dependencies import STAFF, CallerDep, Cursor, Limit, RefDep, RuntimeDep, require
from catalog.web.problems import documented

router = APIRouter(tags=["usage"])

NODES: tuple[Role, ...] = ("node",)


async def the_filter(
    release: Annotated[str | None, Query(max_length=240, description="COLLECTION@VERSION")] = None,
    collection: Annotated[str | None, Query(max_length=200, description="KIND/NAMESPACE/NAME")] = None,
    job: Annotated[str | None, Query(max_length=256, description="A job's name")] = None,
    node: Annotated[str | None, Query(max_length=255, description="A node's name")] = None,
    uid: Annotated[int | None, Query(ge=0, lt=2**32, description="A user's number on the nodes")] = None,
    since: Annotated[UtcMoment | None, Query(description="Not over before; 2026-01-31T00:00:00Z")] = None,
    until: Annotated[UtcMoment | None, Query(description="Begun by then; 2026-01-31T00:00:00Z")] = None,
) -> Filter:
    """The records that the query asks for."""
    return Filter(
        release=parse_release(release) if release else None,
        collection=str(parse_collection(collection)) if collection else None,
        job=job,
        node=node,
        uid=uid,
        since=since,
        until=until,
    )


FilterDep = Annotated[Filter, Depends(the_filter)]


@router.post("/v1/usage", operation_id="reportUsage", responses=documented(403, 413, 422, 507), summary="Report usage")
def report_usage(report: UsageReport, caller: CallerDep, runtime: RuntimeDep) -> Received:
    """By nodes. Counts are totals of each record, so that a report may be sent again, and late."""
    require(caller, NODES, "report usage")
    return service.receive(runtime, caller, report)


@router.get("/v1/usage", operation_id="listUsage", responses=documented(400, 403, 422), summary="Who opened what")
def list_usage(
    request: Request,
    response: Response,
    wanted: FilterDep,
    caller: CallerDep,
    runtime: RuntimeDep,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> UseList:
    """The newest record first. Auditors and administrators see all, curators the collections that they own."""
    require(caller, STAFF, "read usage")
    with runtime.database.read() as session:
        found, before = service.page(session, caller, wanted, number_cursor(cursor), limit)
    following = encode_cursor(before) if before is not None else None
    link_next(request, response, following)
    return UseList(records=found, next=following)


@router.get(
    "/v1/usage/groups", operation_id="groupUsage", responses=documented(400, 403, 422), summary="Usage taken together"
)
def group_usage(
    wanted: FilterDep, caller: CallerDep, runtime: RuntimeDep, by: By = "release", limit: Limit = 100
) -> UseGroups:
    """By job, user, release or node; the last used first."""
    require(caller, STAFF, "read usage")
    with runtime.database.read() as session:
        return service.groups(session, caller, wanted, by, limit)


@router.post(
    "/v1/nodes/confirmations",
    operation_id="confirmWithdrawal",
    responses=documented(400, 403, 404, 409, 413, 422, 507),
    summary="Confirm a withdrawal",
)
def confirm_withdrawal(told: Confirmation, caller: CallerDep, runtime: RuntimeDep) -> Received:
    """By nodes: what was removed and who still holds files; once more when the last holder is gone."""
    require(caller, NODES, "confirm a withdrawal")
    return service.confirm(runtime, caller, told)


@router.get(
    RELEASE_PATH + "/confirmations",
    operation_id="listConfirmations",
    responses=documented(400, 403, 404, 409),
    summary="Which nodes have carried out a withdrawal",
)
def list_confirmations(ref: RefDep, caller: CallerDep, runtime: RuntimeDep) -> ConfirmationList:
    """For auditors, administrators and the collection's owners."""
    require(caller, STAFF, "read confirmations")
    with runtime.database.read() as session:
        return service.confirmations(runtime, session, caller, ref)
