"""``/v1/search``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from catalog.collections.schemas import CollectionList
from catalog.collections.service import info
from catalog.search import repository
from catalog.search.words import query_terms
from catalog.web.cursors import encode_cursor, link_next, number_cursor
from catalog.web.dependencies import CallerDep, Cursor, Limit, RuntimeDep
from catalog.web.problems import documented

router = APIRouter(tags=["search"])

MAX_TERMS = 64


class Found(CollectionList):
    """Collections that match, best first, and how many there are by language and licence."""

    facets: dict[str, dict[str, int]] = Field(examples=[{"language": {"zh": 12}}])


@router.get("/v1/search", operation_id="search", responses=documented(400, 422), summary="Search collections")
def search(
    request: Request,
    response: Response,
    caller: CallerDep,
    runtime: RuntimeDep,
    q: Annotated[str, Query(max_length=500, description="Words; all of them must match")] = "",
    language: Annotated[str | None, Query(max_length=64)] = None,
    licence: Annotated[str | None, Query(max_length=1000)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Found:
    """Only what the caller may read is found and counted."""
    terms = query_terms(q)[:MAX_TERMS]
    given = {"language": language, "licence": licence}
    facets = {name: value for name, value in given.items() if value is not None}
    offset = number_cursor(cursor)
    if q.strip() and not terms:
        return Found(collections=[], next=None, facets={})
    with runtime.database.read() as session:
        found = repository.find(session, caller, terms, facets, offset, limit + 1)
        counts = {name: repository.count_by(session, caller, terms, facets, name) for name in repository.FACETS}
    following = encode_cursor(offset + limit) if len(found) > limit else None
    link_next(request, response, following)
    return Found(collections=[info(row) for row in found[:limit]], next=following, facets=counts)
