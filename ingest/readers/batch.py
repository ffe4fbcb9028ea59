"""What every reader gives: batches of parsed records with their places, and the rejects beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ingest.rejects import Reject
from openshelf.units import MIB

MAX_RECORD_BYTES = 64 * MIB
"""The longest line, array element, CSV field, document or Parquet row that is accepted."""
BATCH_BYTES = 8 * MIB
"""About how many bytes of source one batch covers."""


@dataclass(slots=True)
class Batch:
    """Some records of a split, in file order.

    ``lines[i]`` is where ``records[i]`` stands: its line, or its number in a JSON array or a Parquet file, from 1.
    ``keys[i]`` is the key of a record in an object of records (CrossWOZ), else None. ``size_bytes`` is how far the
    batch moved through the source, for progress. ``truncated`` says that the source ends before its end.
    """

    records: list[Any] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    keys: list[str | None] | None = None
    rejects: list[Reject] = field(default_factory=list)
    size_bytes: int = 0
    truncated: bool = False


def distinct_names(header: Sequence[str]) -> list[str]:
    """Column names that can be keys of a record, in the order of ``header``.

    What is no text in a name (bytes that are not UTF-8, NUL) is shown as U+FFFD; an empty name is called by its number,
    and a repeated one gets its number behind it.
    """
    names: list[str] = []
    for number, raw in enumerate(header, 1):
        shown = raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "\ufffd")
        wanted = shown.strip() or f"column_{number}"
        names.append(wanted if wanted not in names else f"{wanted}_{number}")
    return names
