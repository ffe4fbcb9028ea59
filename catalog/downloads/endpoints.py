"""``/v1/objects`` and ``/v1/manifests``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from catalog.database.access import Caller
from catalog.downloads import repository
from catalog.downloads.manifests import local_manifest
from catalog.downloads.streams import answer, not_modified
from catalog.objects.local import PORTION_BYTES
from catalog.releases import repository as releases
from catalog.releases.service import gone
from catalog.runtime import Runtime
from catalog.web.dependencies import CallerDep, DigestPath, RuntimeDep
from catalog.web.problems import Forbidden, NotFound, documented

router = APIRouter(tags=["objects"])

PRESIGNED_S = 60
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"description": "All bytes", "content": {"application/octet-stream": {}}},
    206: {"description": "The range asked for", "content": {"application/octet-stream": {}}},
    304: {"description": "The caller has them already"},
}


def _object_size(runtime: Runtime, caller: Caller, sha256: str) -> int:
    with runtime.database.read() as session:
        size = repository.readable_size(session, caller, bytes.fromhex(sha256))
    if size is None:
        raise NotFound(
            "no_object", f"There is no object {sha256} in a release that you may read", "It may have been withdrawn."
        )
    return size


@router.get(
    "/v1/objects/{sha256}",
    operation_id="getObject",
    response_class=Response,
    responses={
        **_BYTES,
        307: {"description": f"Where the bytes may be read for {PRESIGNED_S} s"},
        **documented(404, 416, 422, 503),
    },
    summary="The bytes of an object",
)
async def get_object(sha256: DigestPath, request: Request, caller: CallerDep, runtime: RuntimeDep) -> Response:
    """For who may read a release that contains it. One range at a time; the ETag is the digest."""
    return await _object(sha256, request, caller, runtime)


@router.head(
    "/v1/objects/{sha256}",
    operation_id="headObject",
    response_class=Response,
    responses={200: {"description": "Size and ETag"}, 304: {"description": "Unchanged"}, **documented(404, 422)},
    summary="The size of an object",
)
async def head_object(sha256: DigestPath, request: Request, caller: CallerDep, runtime: RuntimeDep) -> Response:
    """The headers that GET would give for all bytes."""
    return await _object(sha256, request, caller, runtime)


async def _object(sha256: str, request: Request, caller: Caller, runtime: Runtime) -> Response:
    size = await run_in_threadpool(_object_size, runtime, caller, sha256)
    cached = not_modified(request, sha256)
    if cached is not None:
        return cached
    if request.method == "GET":
        address = await run_in_threadpool(runtime.store.presign, sha256, PRESIGNED_S)
        if address is not None:
            return RedirectResponse(address, 307, {"Cache-Control": "no-store"})
    return await answer(
        request, runtime.metrics, sha256, size, lambda start, length: runtime.store.open(sha256, start, length)
    )


@router.get(
    "/v1/access/objects/{sha256}",
    operation_id="mayReadObject",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "The caller may read it"}, **documented(401, 403, 422)},
    summary="Whether the caller may read an object",
)
def may_read(sha256: DigestPath, caller: CallerDep, runtime: RuntimeDep) -> Response:
    """What a site cache asks before it hands out an object that it keeps. 403 for one that does not exist, too."""
    with runtime.database.read() as session:
        if repository.readable_size(session, caller, bytes.fromhex(sha256)) is None:
            raise Forbidden("no_object", f"There is no object {sha256} in a release that you may read", "")
    return Response(status_code=204, headers={"Cache-Control": "private, max-age=60"})


def _manifest(runtime: Runtime, caller: Caller, digest: bytes) -> Path:
    with runtime.database.read() as session:
        if releases.with_manifest(session, caller, digest) is None:
            withdrawn = releases.withdrawn_with_manifest(session, caller, digest)
            if withdrawn is not None:
                raise gone(withdrawn)
            raise NotFound("no_manifest", f"There is no release with the manifest {digest.hex()} that you may read", "")
    return local_manifest(runtime, digest)


def _file_bytes(path: Path, start: int, length: int) -> Iterator[bytes]:
    with path.open("rb") as source:
        source.seek(start)
        while length > 0 and (portion := source.read(min(length, PORTION_BYTES))):
            length -= len(portion)
            yield portion


@router.get(
    "/v1/manifests/{digest}",
    operation_id="getManifest",
    response_class=Response,
    responses={**_BYTES, **documented(404, 410, 416, 422)},
    summary="The manifest of a release",
)
async def get_manifest(digest: DigestPath, request: Request, caller: CallerDep, runtime: RuntimeDep) -> Response:
    """``files.arrow``, by its SHA-256."""
    return await _manifest_answer(digest, request, caller, runtime)


@router.head(
    "/v1/manifests/{digest}",
    operation_id="headManifest",
    response_class=Response,
    responses={200: {"description": "Size and ETag"}, 304: {"description": "Unchanged"}, **documented(404, 410, 422)},
    summary="The size of a manifest",
)
async def head_manifest(digest: DigestPath, request: Request, caller: CallerDep, runtime: RuntimeDep) -> Response:
    """The headers that GET would give for all bytes."""
    return await _manifest_answer(digest, request, caller, runtime)


async def _manifest_answer(digest: str, request: Request, caller: Caller, runtime: Runtime) -> Response:
    path = await run_in_threadpool(_manifest, runtime, caller, bytes.fromhex(digest))
    return await answer(
        request, runtime.metrics, digest, path.stat().st_size, lambda start, length: _file_bytes(path, start, length)
    )
