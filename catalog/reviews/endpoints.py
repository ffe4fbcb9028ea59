"""``R/submit`` … ``R/withdraw``, tags, attachments and the report."""

from __future__ import annotations

import re
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Body, Header, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from catalog.collections.endpoints import PATH as COLLECTION_PATH
from catalog.database.models import Attachment
from catalog.downloads.streams import answer
from catalog.releases.endpoints import PATH
from catalog.releases.schemas import ReleaseInfo
from catalog.reviews import attachments, service, tags
from catalog.reviews.schemas import (
    Approval,
    AttachmentInfo,
    AttachmentList,
    Nothing,
    Refusal,
    TagTarget,
    Withdrawal,
)
from catalog.runtime import Runtime
from catalog.uploads.bodies import body_portions, content_length
from catalog.web.dependencies import CURATORS, CallerDep, CollectionDep, RefDep, RuntimeDep, require
from catalog.web.problems import BadRequest, documented
from openshelf.units import GIB

router = APIRouter(tags=["review"])

ATTACHMENT_BYTES = 16 * GIB
_MEDIA_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9.+-]{1,100}(; ?charset=[A-Za-z0-9-]{1,20})?")
_STEP_ERRORS = documented(400, 403, 404, 409, 422)
AttachmentName = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="The review object's name")
]
NoBody = Annotated[Nothing | None, Body()]


@router.post(PATH + "/submit", operation_id="submitRelease", responses=_STEP_ERRORS, summary="Ask for review")
def submit(ref: RefDep, caller: CallerDep, runtime: RuntimeDep, _body: NoBody = None) -> ReleaseInfo:
    """sealed → submitted; needs a licence."""
    return service.submit(runtime, caller, ref)


@router.post(PATH + "/approve", operation_id="approveRelease", responses=_STEP_ERRORS, summary="Approve")
def approve(
    ref: RefDep, caller: CallerDep, runtime: RuntimeDep, body: Annotated[Approval | None, Body()] = None
) -> ReleaseInfo:
    """submitted → approved, by neither its uploader nor its submitter."""
    wanted = body or Approval()
    seen = bytes.fromhex(wanted.manifest_digest) if wanted.manifest_digest else None
    return service.approve(runtime, caller, ref, wanted.note, seen)


@router.post(PATH + "/reject", operation_id="rejectRelease", responses=_STEP_ERRORS, summary="Reject")
def reject(ref: RefDep, body: Refusal, caller: CallerDep, runtime: RuntimeDep) -> ReleaseInfo:
    """submitted → rejected; the version may be ingested again."""
    return service.reject(runtime, caller, ref, body.reason)


@router.post(PATH + "/return", operation_id="returnRelease", responses=_STEP_ERRORS, summary="Ask for changes")
def return_to_draft(ref: RefDep, body: Refusal, caller: CallerDep, runtime: RuntimeDep) -> ReleaseInfo:
    """submitted or approved → draft."""
    return service.return_to_draft(runtime, caller, ref, body.reason)


@router.post(PATH + "/publish", operation_id="publishRelease", responses=_STEP_ERRORS, summary="Publish")
def publish(ref: RefDep, caller: CallerDep, runtime: RuntimeDep, _body: NoBody = None) -> ReleaseInfo:
    """approved → published: signed and announced in the feed."""
    return service.publish(runtime, caller, ref)


@router.post(PATH + "/withdraw", operation_id="withdrawRelease", responses=_STEP_ERRORS, summary="Take down")
def withdraw(ref: RefDep, body: Withdrawal, caller: CallerDep, runtime: RuntimeDep) -> ReleaseInfo:
    """published → withdrawn, with its tags, for good."""
    return service.withdraw(runtime, caller, ref, body)


@router.put(
    COLLECTION_PATH + "/tags/{tag}", operation_id="setTag", responses=_STEP_ERRORS, summary="Let a tag name a release"
)
def set_tag(
    collection: CollectionDep, tag: str, body: TagTarget, caller: CallerDep, runtime: RuntimeDep
) -> ReleaseInfo:
    """A tag that exists is moved."""
    return tags.set_tag(runtime, caller, collection, tag, body.version)


@router.delete(
    COLLECTION_PATH + "/tags/{tag}",
    operation_id="removeTag",
    status_code=204,
    responses=documented(400, 403, 404),
    summary="Remove a tag",
)
def remove_tag(collection: CollectionDep, tag: str, caller: CallerDep, runtime: RuntimeDep) -> None:
    """The release stays."""
    tags.remove_tag(runtime, caller, collection, tag)


@router.get(
    PATH + "/attachments",
    operation_id="listAttachments",
    responses=documented(400, 403, 404),
    summary="Review objects of a release",
)
def list_attachments(ref: RefDep, caller: CallerDep, runtime: RuntimeDep) -> AttachmentList:
    """For its uploader, the collection's owners, auditors and administrators."""
    with runtime.database.read() as session:
        release = attachments.find_reviewed(session, caller, ref)
        return AttachmentList(attachments=[attachments.info(row) for row in attachments.of(session, release)])


_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "The bytes", "content": {"application/octet-stream": {}}},
}


@router.get(
    PATH + "/attachments/{attachment}",
    operation_id="getAttachment",
    response_class=Response,
    responses={**_STREAM, **documented(400, 403, 404, 422)},
    summary="A review object",
)
async def get_attachment(
    request: Request, ref: RefDep, attachment: AttachmentName, caller: CallerDep, runtime: RuntimeDep
) -> Response:
    """Always sent as a download: what it holds is not the catalog's own."""

    def find() -> Attachment:
        with runtime.database.read() as session:
            return attachments.find_attachment(session, caller, ref, attachment)

    return await _stream(request, runtime, await run_in_threadpool(find))


async def _stream(request: Request, runtime: Runtime, found: Attachment) -> Response:
    digest = found.sha256.hex()
    extra = {
        "Content-Type": found.media_type,
        "Content-Disposition": f'attachment; filename="{found.name}"',
        "Cache-Control": "private, no-cache",
    }
    return await answer(
        request,
        runtime.metrics,
        digest,
        found.size_bytes,
        lambda start, length: runtime.review_store.open(digest, start, length),
        extra,
    )


@router.put(
    PATH + "/attachments/{attachment}",
    operation_id="putAttachment",
    responses=documented(400, 403, 404, 409, 411, 413, 422, 503, 507),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
    summary="Attach a review object",
)
async def put_attachment(
    ref: RefDep,
    attachment: AttachmentName,
    request: Request,
    caller: CallerDep,
    runtime: RuntimeDep,
    content_type: Annotated[str, Header()] = "application/octet-stream",
) -> AttachmentInfo:
    """By the draft's uploader; never part of the manifest."""
    require(caller, CURATORS, "attach review objects")
    if not _MEDIA_TYPE.fullmatch(content_type):
        raise BadRequest("bad_media_type", "The Content-Type is not a media type", "Send one like application/json.")
    size = content_length(request, ATTACHMENT_BYTES)

    def receive() -> AttachmentInfo:
        return attachments.attach(runtime, caller, ref, attachment, content_type, size, body_portions(request))

    return await anyio.to_thread.run_sync(receive, limiter=request.app.state.body_limiter)


@router.get(
    PATH + "/report",
    operation_id="getReport",
    response_class=Response,
    responses={
        200: {"description": "The report", "content": {"application/json": {}, "text/markdown": {}}},
        **documented(400, 403, 404),
    },
    summary="The review report of a release",
)
async def get_report(
    request: Request,
    ref: RefDep,
    caller: CallerDep,
    runtime: RuntimeDep,
    accept: Annotated[str, Header()] = "application/json",
) -> Response:
    """JSON, or Markdown when `Accept` names it first. Counts only, so readers of a published release may have it."""
    name = "report.md" if accept.split(",")[0].strip().startswith("text/") else "report.json"

    def find() -> Attachment:
        with runtime.database.read() as session:
            return attachments.find_report(session, caller, ref, name)

    return await _stream(request, runtime, await run_in_threadpool(find))
