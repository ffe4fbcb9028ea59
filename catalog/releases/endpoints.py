"""``/v1/collections/…/releases/{version}``: begin a draft, read a release."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from catalog.collections.endpoints import PATH as COLLECTION_PATH
from catalog.downloads.manifests import local_manifest
from catalog.feed.endpoints import SignedDocument
from catalog.releases import drafts, service
from catalog.releases.schemas import DraftAbout, FileList, ReleaseInfo
from catalog.web.cursors import link_next, number_cursor
from catalog.web.dependencies import CURATORS, CallerDep, Cursor, Limit, RefDep, RuntimeDep, require
from catalog.web.problems import NotFound, documented

router = APIRouter(tags=["releases"])
PATH = COLLECTION_PATH + "/releases/{version}"


@router.put(
    PATH,
    operation_id="beginDraft",
    responses=documented(400, 403, 409, 413, 422, 507),
    summary="Begin or renew a draft",
)
def begin_draft(ref: RefDep, about: DraftAbout, caller: CallerDep, runtime: RuntimeDep) -> ReleaseInfo:
    """Idempotent for its uploader. A release that says the same and is under review or published is answered as is."""
    require(caller, CURATORS, "begin a draft")
    return drafts.begin(runtime, caller, ref, about)


@router.get(PATH, operation_id="getRelease", responses=documented(400, 404), summary="A release")
def get_release(ref: RefDep, caller: CallerDep, runtime: RuntimeDep) -> ReleaseInfo:
    """By version, or by a tag in its place."""
    with runtime.database.read() as session:
        return service.show(session, service.find_or_tagged(session, caller, ref))


@router.get(
    PATH + "/files",
    operation_id="listFiles",
    responses=documented(400, 403, 404, 409, 410, 422),
    summary="The files of a release",
)
def list_files(
    request: Request,
    response: Response,
    ref: RefDep,
    caller: CallerDep,
    runtime: RuntimeDep,
    cursor: Cursor = None,
    limit: Limit = 1000,
) -> FileList:
    """A page of the manifest."""
    start = number_cursor(cursor)
    with runtime.database.read() as session:
        digest = service.sealed_digest(service.find_contents(session, caller, ref))
    found = service.list_files(local_manifest(runtime, digest), digest, start, limit)
    link_next(request, response, found.next)
    return found


@router.get(
    PATH + "/release.json",
    operation_id="getReleaseRecord",
    responses=documented(400, 403, 404, 409, 410),
    summary="The signed record of a published release",
)
def get_record(ref: RefDep, caller: CallerDep, runtime: RuntimeDep) -> SignedDocument:
    """As it was signed at publication."""
    with runtime.database.read() as session:
        release = service.find_contents(session, caller, ref)
        if release.record is None:
            raise NotFound("not_published", f"{ref} is {release.state}: its record is made when it is published", "")
        return SignedDocument(**release.record)
