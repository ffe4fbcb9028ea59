"""The state machine of a release: one function a transition. Pure: rows in, rows changed, no queries.

    draft → sealed → submitted → approved → published → withdrawn
                         │  └→ rejected     (begun again as a draft)
                         └→ draft with a reason (also from approved)

Beginning and sealing are in :mod:`catalog.releases.drafts` and :mod:`catalog.uploads.seal`.
"""

from __future__ import annotations

from catalog.database.access import Caller
from catalog.database.models import Release
from catalog.releases.service import name_of
from catalog.web.problems import Conflict, Forbidden, Unprocessable

_NEXT_STEPS = {
    "draft": "It must be sealed first.",
    "sealed": "It must be submitted first.",
    "submitted": "It can be approved, rejected or returned.",
    "approved": "It can be published or returned.",
    "published": "It can be withdrawn.",
    "rejected": "It can only be ingested again.",
    "withdrawn": "A withdrawn release stays withdrawn.",
}


def _expect(release: Release, verb: str, *states: str) -> None:
    if release.state not in states:
        raise Conflict(
            "wrong_state", f"{name_of(release)} is {release.state} and cannot be {verb}", _NEXT_STEPS[release.state]
        )


def submit(release: Release, caller: Caller, now: str) -> None:
    """sealed → submitted; a licence must be known."""
    _expect(release, "submitted", "sealed")
    if release.licence_expression is None:
        raise Unprocessable(
            "no_licence",
            f"{name_of(release)} has no licence",
            "Ingest it again with --licence SPDX, e.g. --licence Apache-2.0.",
        )
    release.state = "submitted"
    release.submitter_id = caller.principal_id
    release.submitted_at = now
    release.reason = None


def approve(release: Release, caller: Caller, seen: bytes | None, now: str) -> None:
    """submitted → approved, by neither its uploader nor its submitter, for the manifest as it stands."""
    _expect(release, "approved", "submitted")
    if caller.principal_id in (release.uploader_id, release.submitter_id):
        raise self_approval(release)
    if seen is not None and seen != release.manifest_digest:
        raise Conflict(
            "other_manifest",
            f"{name_of(release)} is not the one you looked at: its manifest is another",
            "Look at it again.",
        )
    release.state = "approved"
    release.approver_id = caller.principal_id
    release.approved_digest = release.manifest_digest
    release.approved_at = now


def self_approval(release: Release) -> Forbidden:
    """Nobody approves his own work."""
    return Forbidden(
        "self_approval",
        f"{name_of(release)} was uploaded or submitted by you, under this or another token",
        "Somebody else must approve it.",
    )


def reject(release: Release, reason: str) -> None:
    """submitted → rejected."""
    _expect(release, "rejected", "submitted")
    release.state = "rejected"
    release.reason = reason


def return_to_draft(release: Release, reason: str) -> None:
    """submitted or approved → draft, with what must change."""
    _expect(release, "returned", "submitted", "approved")
    release.state = "draft"
    release.reason = reason
    release.manifest_digest = None
    release.approved_digest = None
    release.submitter_id = None
    release.approver_id = None
    release.sealed_at = release.submitted_at = release.approved_at = None
    release.files = 0
    release.size_bytes = 0


def publish(release: Release, record: dict[str, object], now: str) -> None:
    """approved → published, with its signed record."""
    check_publishable(release)
    release.state = "published"
    release.record = record
    release.published_at = now


def check_publishable(release: Release) -> None:
    """:class:`Conflict` unless the release is approved as it stands."""
    _expect(release, "published", "approved")
    assert release.manifest_digest is not None
    assert release.approved_digest == release.manifest_digest


def withdraw(release: Release, reason_code: str, note: str, legal_basis: str, now: str) -> None:
    """published → withdrawn, for good."""
    _expect(release, "withdrawn", "published")
    release.state = "withdrawn"
    release.reason_code = reason_code
    release.reason = note or None
    release.legal_basis = legal_basis or None
    release.withdrawn_at = now
