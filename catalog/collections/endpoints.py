"""``/v1/collections``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from catalog.collections import repository, service
from catalog.collections.schemas import AccessRule, CollectionDetails, CollectionList
from catalog.web.cursors import encode_cursor, link_next, text_cursor
from catalog.web.dependencies import CURATORS, CallerDep, CollectionDep, Cursor, Limit, RuntimeDep, require
from catalog.web.problems import documented

router = APIRouter(tags=["collections"])
PATH = "/v1/collections/{folder}/{namespace}/{name}"


@router.get(
    "/v1/collections", operation_id="listCollections", responses=documented(400, 422), summary="List collections"
)
def list_collections(
    request: Request,
    response: Response,
    caller: CallerDep,
    runtime: RuntimeDep,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> CollectionList:
    """Collections that the caller may read, by name."""
    with runtime.database.read() as session:
        found = repository.page(session, caller, text_cursor(cursor), limit + 1)
    following = encode_cursor(found[limit - 1].path) if len(found) > limit else None
    link_next(request, response, following)
    return CollectionList(collections=[service.info(row) for row in found[:limit]], next=following)


@router.get(PATH, operation_id="getCollection", responses=documented(400, 404), summary="A collection")
def get_collection(collection: CollectionDep, caller: CallerDep, runtime: RuntimeDep) -> CollectionDetails:
    """Its card, owners, releases and tags."""
    with runtime.database.read() as session:
        return service.details(session, caller, service.find(session, caller, collection))


@router.put(
    PATH + "/access",
    operation_id="setCollectionAccess",
    responses=documented(400, 403, 404, 422),
    summary="Set who may read a collection",
)
def set_access(
    collection: CollectionDep, rule: AccessRule, caller: CallerDep, runtime: RuntimeDep
) -> CollectionDetails:
    """For its owners and administrators; nodes follow through the feed."""
    require(caller, CURATORS, "set who may read a collection")
    return service.set_access(runtime, caller, collection, rule)
