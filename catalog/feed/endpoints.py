"""``/v1/key`` and ``/v1/feed``: what mounts follow."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from catalog.database.access import Caller
from catalog.feed import repository
from catalog.runtime import Runtime, rfc3339
from catalog.web.dependencies import CallerDep, RuntimeDep
from catalog.web.problems import documented

router = APIRouter(tags=["feed"])

HEAD_LIFETIME = timedelta(hours=1)
"""After this a node that has not seen a newer head calls itself stale."""
MAX_WAIT_S = 30.0


class PublicKey(BaseModel):
    """The catalog's public key."""

    key: str
    fingerprint: str


class SignedDocument(BaseModel):
    """A document with its detached Ed25519 signature (over canonical JSON, RFC 8785) and the key's fingerprint."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"document": {}, "signature": "…", "key": "…"}]})

    document: dict[str, Any]
    signature: str
    key: str


class Events(BaseModel):
    """Signed events in the order of their serials, without holes."""

    events: list[SignedDocument]


@router.get("/v1/key", operation_id="getKey", summary="The catalog's public key")
def get_key(runtime: RuntimeDep) -> PublicKey:
    """Raw Ed25519 key in base64, and the SHA-256 of it; needs no token."""
    return PublicKey(key=base64.b64encode(runtime.key.public_bytes).decode(), fingerprint=runtime.key.fingerprint)


@router.get("/v1/feed/head", operation_id="getFeedHead", responses=documented(), summary="The feed's signed head")
def get_head(caller: CallerDep, runtime: RuntimeDep) -> SignedDocument:
    """Epoch, serial, when it was signed and until when it counts, and from which hosts objects may come."""
    with runtime.database.read() as session:
        epoch, serial = repository.state(session)
    now = runtime.clock()
    head = {
        "epoch": epoch,
        "serial": serial,
        "issued": rfc3339(now),
        "expires": rfc3339(now + HEAD_LIFETIME),
        "object_hosts": runtime.store.hosts(),
    }
    return SignedDocument(**runtime.key.sign("feed-head", head).to_json())


def _events(runtime: Runtime, caller: Caller, after: int, limit: int) -> Events:
    with runtime.database.read() as session:
        return Events(events=[SignedDocument(**event) for event in repository.after(session, caller, after, limit)])


@router.get("/v1/feed", operation_id="getFeed", responses=documented(422), summary="Events, waiting for the next")
async def get_feed(
    caller: CallerDep,
    runtime: RuntimeDep,
    after: Annotated[int, Query(ge=0, lt=2**62, description="The last serial that is known")] = 0,
    wait: Annotated[float, Query(ge=0, le=3600, description="Seconds to wait for an event; 30 at most")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Events:
    """Events after ``after``; when there is none yet, the answer comes with the next one or after ``wait`` seconds."""
    found = await run_in_threadpool(_events, runtime, caller, after, limit)
    if found.events or wait <= 0:
        return found
    with runtime.metrics.waiting.track_inprogress():
        await runtime.signal.wait_beyond(after, min(wait, MAX_WAIT_S))
    return await run_in_threadpool(_events, runtime, caller, after, limit)


@router.get(
    "/v1/feed/snapshot", operation_id="getFeedSnapshot", responses=documented(), summary="What a new node starts from"
)
def get_snapshot(caller: CallerDep, runtime: RuntimeDep) -> SignedDocument:
    """Every published release and every tag that the caller may read, as of one serial."""
    with runtime.database.read() as session:
        epoch, serial = repository.state(session)
        releases = repository.published(session, caller)
        tags = repository.tags(session, caller)
    snapshot = {
        "epoch": epoch,
        "serial": serial,
        "issued": runtime.now(),
        "releases": [
            {
                "collection": release.collection.path,
                "version": release.version,
                "manifest_digest": (release.manifest_digest or b"").hex(),
                "files": release.files,
                "size_bytes": release.size_bytes,
                "access": release.collection.access,
            }
            for release in releases
        ],
        "tags": [{"collection": path, "tag": tag, "version": version} for path, tag, version in tags],
    }
    return SignedDocument(**runtime.key.sign("feed-snapshot", snapshot).to_json())
