"""Shapes of review on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from catalog.names import REASON_CODE_FORM, is_reason_code
from catalog.releases.schemas import HexDigest


def _reason_code(text: str) -> str:
    if not is_reason_code(text):
        raise ValueError(f"must be {REASON_CODE_FORM}")
    return text


Reason = Annotated[str, Field(min_length=1, max_length=2000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Nothing(_Strict):
    """A step that needs no words."""


class Approval(_Strict):
    """An approval; with ``manifest_digest`` it is refused when the release is another than the one looked at."""

    note: Annotated[str, Field(max_length=2000)] = ""
    manifest_digest: HexDigest | None = None


class Refusal(_Strict):
    """Why a release is rejected or goes back."""

    reason: Reason


class Withdrawal(_Strict):
    """Why a release is taken down."""

    reason_code: Annotated[
        str, AfterValidator(_reason_code), Field(description=REASON_CODE_FORM, examples=["personal_data"])
    ]
    note: Annotated[str, Field(max_length=2000)] = ""
    legal_basis: Annotated[str, Field(max_length=2000)] = ""
    policy: Literal["revoke"] | None = Field(
        None, description="revoke: files that jobs have open end too, on every node, whatever its own settings say"
    )


class TagTarget(_Strict):
    """The release that a tag names."""

    version: str


class AttachmentInfo(BaseModel):
    """A review object."""

    name: str
    size_bytes: int
    media_type: str
    sha256: str


class AttachmentList(BaseModel):
    """Review objects by name."""

    attachments: list[AttachmentInfo]
