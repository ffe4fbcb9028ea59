"""Shapes of the ledger on the wire."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class LedgerEntryInfo(BaseModel):
    """An entry with its place in the chain."""

    sequence: int
    entry: dict[str, Any]
    previous: str
    hash: str


class LedgerPage(BaseModel):
    """Entries, oldest first."""

    entries: list[LedgerEntryInfo]


class LedgerState(BaseModel):
    """Whether the chain holds."""

    intact: bool
    entries: int = Field(description="The number of the last entry")
    head: str = Field(description="The hash of the last entry")
    detail: str | None = Field(description="Where it is broken")
