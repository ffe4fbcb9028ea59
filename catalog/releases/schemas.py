"""Shapes of releases on the wire."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from catalog.names import is_digest

State = Literal["draft", "sealed", "submitted", "approved", "published", "rejected", "withdrawn"]


def _digest(text: str) -> str:
    if not is_digest(text):
        raise ValueError("must be a SHA-256 in 64 lower-case hexadecimal digits")
    return text


HexDigest = Annotated[str, AfterValidator(_digest), Field(json_schema_extra={"pattern": "^[0-9a-f]{64}$"})]
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)


def _moment(text: str) -> str:
    try:
        if _RFC3339.fullmatch(text) and datetime.fromisoformat(text):
            return text
    except ValueError:
        pass  # a thirteenth month
    raise ValueError("must be a time like 2026-01-31T00:00:00Z")


class DraftAbout(BaseModel):
    """What a draft says about itself. ``created`` is the recipe's date, never a clock."""

    model_config = ConfigDict(extra="forbid")

    created: Annotated[str, Field(max_length=32), AfterValidator(_moment)]
    licence_expression: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    licence_evidence: Annotated[list[dict[str, Any]], Field(max_length=1000)] = []
    source_urls: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=1000)] = []
    recipe_digest: HexDigest | None = None
    policy_digest: HexDigest | None = None
    residency: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=100)] = []
    rows: Annotated[int, Field(ge=0, lt=2**53)] = 0
    title: Annotated[str, Field(max_length=300)] = ""
    summary: Annotated[str, Field(max_length=10_000)] = ""
    facets: Annotated[dict[str, list[Annotated[str, Field(max_length=64)]]], Field(max_length=50)] = {}


class LicenceInfo(BaseModel):
    """A licence as an SPDX expression, with its class."""

    expression: str
    use: str
    attribution: bool
    share_alike: bool


class ReleaseInfo(BaseModel):
    """A release. ``reason`` is that of a rejection or of asked-for changes, or the code of a withdrawal."""

    ref: str = Field(examples=["datasets/belle/chat@1.0"])
    collection: str
    version: str
    state: State
    manifest_digest: str | None
    files: int
    size_bytes: int
    rows: int
    licence: LicenceInfo | None
    uploader: str
    submitter: str | None
    approver: str | None
    created: str
    tags: list[str]
    reason: str | None
    title: str
    summary: str
    facets: dict[str, list[str]]
    source_urls: list[str]
    residency: list[str]
    recipe_digest: str | None
    policy_digest: str | None
    published_at: str | None
    withdrawn_at: str | None


class FileInfo(BaseModel):
    """A file of a release."""

    path: str
    size: int
    sha256: str
    mode: int = Field(description="0444 or 0555, as a number", examples=[292])


class FileList(BaseModel):
    """Files in the order of their paths' bytes."""

    files: list[FileInfo]
    next: str | None = Field(description="Cursor of the next page")
