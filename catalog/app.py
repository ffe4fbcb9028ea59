"""The catalog's HTTP application."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any

import anyio
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

import openshelf
from catalog.audit import endpoints as audit
from catalog.audit import verify
from catalog.collections import endpoints as collections
from catalog.downloads import endpoints as downloads
from catalog.feed import endpoints as feed
from catalog.releases import endpoints as releases
from catalog.reviews import endpoints as reviews
from catalog.runtime import Runtime
from catalog.search import endpoints as search
from catalog.tokens import endpoints as tokens
from catalog.uploads import endpoints as uploads
from catalog.usage import endpoints as usage
from catalog.web import problems
from catalog.web.dependencies import RuntimeDep, admit
from catalog.web.middleware import RequestFrame
from catalog.web.problems import Problem, ProblemDetails, documented

BODY_THREADS = 24
"""Objects, seals and attachments received at once; more wait for their turn."""
CHECKPOINT_EVERY_S = 60.0

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    """The process answers."""

    status: str


class NotReady(Problem):
    """The catalog cannot do its work now."""

    status = 503


@router.get("/healthz", operation_id="getHealth", summary="Whether the process lives")
async def health() -> Health:
    """Needs no token and touches nothing."""
    return Health(status="ok")


@router.get(
    "/readyz",
    operation_id="getReadiness",
    responses={503: documented(503)[503]},
    summary="Whether the catalog can do its work",
)
def readiness(runtime: RuntimeDep) -> Health:
    """Asks the database, and every few seconds the object store."""
    try:
        with runtime.database.read() as session:
            session.execute(text("SELECT serial FROM feed_state"))
    except SQLAlchemyError as error:
        raise NotReady("database_unavailable", "The database does not answer", "See the log.") from error
    if not runtime.store_health.answers(runtime.store):
        raise NotReady("store_unavailable", "The object store does not answer", "See the log.")
    return Health(status="ok")


@router.get(
    "/metrics",
    operation_id="getMetrics",
    response_class=Response,
    responses={200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}},
    summary="Counters for Prometheus",
)
def metrics(runtime: RuntimeDep) -> Response:
    """Needs no token: no label names a person, a collection or a token."""
    return Response(runtime.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _checkpoints(runtime: Runtime) -> None:
    while True:
        await asyncio.sleep(CHECKPOINT_EVERY_S)
        await run_in_threadpool(verify.write_checkpoint, runtime)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    runtime: Runtime = app.state.runtime
    runtime.signal.attach()
    app.state.body_limiter = anyio.CapacityLimiter(BODY_THREADS)
    task = asyncio.create_task(_checkpoints(runtime))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await run_in_threadpool(verify.write_checkpoint, runtime)


def create_app(runtime: Runtime) -> FastAPI:
    """The application that serves ``runtime``."""
    app = FastAPI(
        title="Openshelf catalog",
        version=openshelf.__version__,
        summary="Collections, releases, their review, their bytes and the feed that nodes follow.",
        openapi_url="/v1/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        lifespan=_lifespan,
        redirect_slashes=False,
    )
    app.state.runtime = runtime
    problems.install(app)
    for part in (router, tokens, collections, releases, uploads, reviews, downloads, feed, search, usage, audit):
        app.include_router(part if isinstance(part, APIRouter) else part.router)
    app.add_middleware(RequestFrame, metrics=runtime.metrics, admit=functools.partial(admit, runtime))
    _document_problems(app)
    return app


def _document_problems(app: FastAPI) -> None:
    """Put the shape of errors among OpenAPI's components, and in the place of FastAPI's own for validation errors."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schema = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        components = document.setdefault("components", {}).setdefault("schemas", {})
        components.update(schema.pop("$defs", {}))
        components["ProblemDetails"] = schema
        for unused in ("HTTPValidationError", "ValidationError"):
            components.pop(unused, None)
        for operations in document["paths"].values():
            for operation in operations.values():
                if "422" in operation["responses"]:
                    operation["responses"]["422"] = documented(422)[422]
        return document

    app.openapi = openapi  # type: ignore[method-assign]
