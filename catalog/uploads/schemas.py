"""Shapes of uploads on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from catalog.releases.schemas import HexDigest


class Asked(BaseModel):
    """Digests that a draft needs."""

    model_config = ConfigDict(extra="forbid")

    digests: Annotated[list[HexDigest], Field(max_length=100_000)]


class Missing(BaseModel):
    """Those that must be sent, in the order asked."""

    missing: list[str]


class Uploaded(BaseModel):
    """An object as the catalog received it."""

    sha256: str
    size: int
