"""What is sent to and comes from a catalog, as plain frozen dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from catalog.names import ReleaseRef, parse_release
from openshelf.errors import OpenshelfError


class BadShape(OpenshelfError):
    """A JSON object of the catalog lacks what it must have."""

    def __init__(self, what: str) -> None:
        super().__init__(
            "bad_answer",
            f"The catalog's answer is no {what}",
            "Check that both sides run the same version of openshelf.",
        )


@dataclass(frozen=True, slots=True)
class DraftAbout:
    """What a draft says about itself when it is begun.

    ``created`` is an RFC 3339 time that comes from the recipe, never from a clock. Digests are hexadecimal SHA-256.
    ``licence_evidence`` holds objects that say where the licence was found; ``facets`` maps a facet (``language``,
    ``task``) to its values.
    """

    created: str
    licence_expression: str | None = None
    licence_evidence: Sequence[Mapping[str, Any]] = ()
    source_urls: Sequence[str] = ()
    recipe_digest: str | None = None
    policy_digest: str | None = None
    residency: Sequence[str] = ()
    rows: int = 0
    title: str = ""
    summary: str = ""
    facets: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As the JSON object that is sent."""
        return dataclasses.asdict(
            dataclasses.replace(
                self,
                licence_evidence=[dict(item) for item in self.licence_evidence],
                source_urls=list(self.source_urls),
                residency=list(self.residency),
                facets={name: list(values) for name, values in self.facets.items()},
            )
        )


@dataclass(frozen=True, slots=True)
class DraftFile:
    """A file of a draft: its path in the release, hexadecimal SHA-256, mode 0o444 or 0o555, and modification time."""

    path: str
    sha256: str
    mtime_ns: int
    mode: int = 0o444


@dataclass(frozen=True, slots=True)
class UploadedObject:
    """An object that the catalog took: hexadecimal SHA-256 and size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a release: path, size in bytes, hexadecimal SHA-256."""

    path: str
    size: int
    sha256: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the catalog's JSON object."""
        try:
            return cls(str(value["path"]), int(value["size"]), str(value["sha256"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadShape("file of a release") from error


@dataclass(frozen=True, slots=True)
class ReleaseInfo:
    """A release as the catalog shows it.

    ``state`` is one of draft, sealed, submitted, approved, published, rejected, withdrawn. ``licence`` has the keys
    expression, use, attribution, share_alike, or is None while none is known. ``reason`` is that of a rejection,
    of asked-for changes, or the code of a withdrawal. ``created`` is the recipe's date. Sizes are bytes.
    """

    ref: ReleaseRef
    state: str
    manifest_digest: str | None
    files: int
    size_bytes: int
    rows: int
    licence: Mapping[str, Any] | None
    uploader: str | None
    submitter: str | None
    approver: str | None
    created: str | None
    tags: tuple[str, ...]
    reason: str | None
    title: str = ""
    summary: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the catalog's JSON object."""
        try:
            return cls(
                ref=parse_release(f"{value['collection']}@{value['version']}"),
                state=str(value["state"]),
                manifest_digest=value.get("manifest_digest"),
                files=int(value.get("files") or 0),
                size_bytes=int(value.get("size_bytes") or 0),
                rows=int(value.get("rows") or 0),
                licence=value.get("licence"),
                uploader=value.get("uploader"),
                submitter=value.get("submitter"),
                approver=value.get("approver"),
                created=value.get("created"),
                tags=tuple(value.get("tags") or ()),
                reason=value.get("reason"),
                title=str(value.get("title") or ""),
                summary=str(value.get("summary") or ""),
            )
        except (KeyError, TypeError, ValueError, OpenshelfError) as error:
            raise BadShape("release") from error

    def to_json(self) -> dict[str, Any]:
        """As the JSON object that commands print."""
        return {
            "release": str(self.ref),
            "state": self.state,
            "title": self.title,
            "manifest_digest": self.manifest_digest,
            "licence": dict(self.licence) if self.licence else None,
            "tags": list(self.tags),
            "created": self.created,
            "totals": {"files": self.files, "size_bytes": self.size_bytes, "rows": self.rows},
            "uploader": self.uploader,
            "submitter": self.submitter,
            "approver": self.approver,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Attachment:
    """A review object of a release: report, findings, statistics, and so on. Never part of the manifest."""

    name: str
    size_bytes: int
    media_type: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the catalog's JSON object."""
        try:
            return cls(str(value["name"]), int(value["size_bytes"]), str(value["media_type"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadShape("attachment") from error


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token as the catalog lists it: never the secret. Times are RFC 3339 or None."""

    id: str
    name: str
    role: str
    created: str | None
    expires: str | None
    last_used: str | None
    revoked: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the catalog's JSON object."""
        try:
            return cls(
                id=str(value["id"]),
                name=str(value["name"]),
                role=str(value["role"]),
                created=value.get("created"),
                expires=value.get("expires"),
                last_used=value.get("last_used"),
                revoked=bool(value.get("revoked")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadShape("token") from error

    def to_json(self) -> dict[str, Any]:
        """As the JSON object that commands print."""
        return dataclasses.asdict(self)
