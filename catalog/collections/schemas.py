"""Shapes of collections on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from catalog.tokens.schemas import PrincipalName

Access = Literal["public", "restricted"]


class CollectionInfo(BaseModel):
    """A collection, with the card of its newest published release."""

    collection: str = Field(examples=["datasets/belle/chat"])
    kind: str = Field(examples=["dataset"])
    access: Access
    title: str
    summary: str
    language: str | None
    licence: str | None
    releases: int = Field(description="How many releases are published")
    updated: str


class CollectionList(BaseModel):
    """Collections by name, or best match first."""

    collections: list[CollectionInfo]
    next: str | None = Field(description="Cursor of the next page")


class VersionInfo(BaseModel):
    """A release in its collection's list."""

    version: str
    state: str
    manifest_digest: str | None
    files: int
    size_bytes: int
    rows: int
    created: str


class CollectionDetails(CollectionInfo):
    """A collection with its releases and tags."""

    owners: list[str]
    versions: list[VersionInfo]
    tags: dict[str, str] = Field(description="Tag to version")


class AccessRule(BaseModel):
    """Who may read a collection: everybody with a token, or its owners and the named readers."""

    model_config = ConfigDict(extra="forbid")

    access: Access
    readers: Annotated[list[PrincipalName], Field(max_length=10_000)] = []
