"""``R/missing``, ``R/objects/{sha256}`` and ``R/seal``."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request

from catalog.database.access import Caller
from catalog.names import ReleaseRef
from catalog.releases.endpoints import PATH
from catalog.releases.schemas import ReleaseInfo
from catalog.runtime import Runtime
from catalog.uploads import service
from catalog.uploads.bodies import body_portions, content_length, spooled
from catalog.uploads.schemas import Asked, Missing, Uploaded
from catalog.uploads.seal import seal
from catalog.web.dependencies import CURATORS, CallerDep, DigestPath, RefDep, RuntimeDep, require
from catalog.web.problems import documented
from openshelf.units import GIB

router = APIRouter(tags=["uploads"])

OBJECT_BYTES = 1 << 44
"""Limit of one object: 16 TiB."""
LISTING_BYTES = 4 * GIB
"""Limit of a seal's list of files: ten million files need about 1.5 GiB."""


def _body(media_type: str) -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


@router.post(
    PATH + "/missing",
    operation_id="listMissing",
    responses=documented(400, 403, 404, 409, 413, 422),
    summary="Which objects must be sent",
)
def list_missing(ref: RefDep, asked: Asked, caller: CallerDep, runtime: RuntimeDep) -> Missing:
    """What the caller sent himself, or may read in a release, need not be sent."""
    require(caller, CURATORS, "fill a draft")
    return Missing(missing=service.missing(runtime, caller, ref, asked.digests))


@router.put(
    PATH + "/objects/{sha256}",
    operation_id="putObject",
    responses=documented(400, 403, 404, 409, 411, 413, 422, 503, 507),
    openapi_extra=_body("application/octet-stream"),
    summary="Send an object",
)
async def put_object(
    ref: RefDep, sha256: DigestPath, request: Request, caller: CallerDep, runtime: RuntimeDep
) -> Uploaded:
    """The catalog hashes every byte; a body that is not what it is called leaves nothing behind."""
    require(caller, CURATORS, "fill a draft")
    size = content_length(request, OBJECT_BYTES)

    def receive() -> Uploaded:
        return service.receive(runtime, caller, ref, sha256, size, body_portions(request))

    return await anyio.to_thread.run_sync(receive, limiter=_limiter(request))


@router.post(
    PATH + "/seal",
    operation_id="sealDraft",
    responses=documented(400, 403, 404, 409, 411, 413, 422, 503, 507),
    openapi_extra=_body("application/vnd.apache.arrow.stream"),
    summary="Seal a draft",
)
async def seal_draft(ref: RefDep, request: Request, caller: CallerDep, runtime: RuntimeDep) -> ReleaseInfo:
    """An Arrow IPC stream: path, sha256 (32 bytes or hexadecimal), mode (0444 or 0555), mtime_ns."""
    require(caller, CURATORS, "seal a draft")
    content_length(request, LISTING_BYTES)
    return await anyio.to_thread.run_sync(_receive_and_seal, runtime, caller, ref, request, limiter=_limiter(request))


def _receive_and_seal(runtime: Runtime, caller: Caller, ref: ReleaseRef, request: Request) -> ReleaseInfo:
    with spooled(runtime.incoming, body_portions(request)) as listing:
        return seal(runtime, caller, ref, listing)


def _limiter(request: Request) -> anyio.CapacityLimiter:
    """Bodies have threads of their own, so that slow senders do not hold up those who read."""
    limiter = request.app.state.body_limiter
    assert isinstance(limiter, anyio.CapacityLimiter)
    return limiter
