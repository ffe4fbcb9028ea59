"""The hash chain under the audit ledger: each entry's hash covers the entry and the hash before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import rfc8785

from openshelf.errors import OpenshelfError

GENESIS = bytes(32)
"""What the first entry follows."""

_DOMAIN = b"openshelf/v1/ledger-entry\n"


class LedgerBroken(OpenshelfError):
    """An entry is missing, changed, out of order, or does not follow the one before. ``sequence`` is its number."""

    def __init__(self, sequence: int, reason: str) -> None:
        super().__init__(
            "ledger_broken",
            f"The ledger is broken at entry {sequence}: {reason}",
            "Keep a copy of the database, and compare with the last signed checkpoint.",
        )
        self.sequence = sequence


def entry_hash(previous: bytes, entry: Mapping[str, Any]) -> bytes:
    """SHA-256 over a domain prefix, the 32 bytes of ``previous``, and the canonical JSON (RFC 8785) of ``entry``."""
    if len(previous) != len(GENESIS):
        raise ValueError("the previous hash has 32 bytes")
    return hashlib.sha256(_DOMAIN + previous + rfc8785.dumps(dict(entry))).digest()


def verify_chain(
    entries: Iterable[tuple[Mapping[str, Any], bytes]], *, previous: bytes = GENESIS, after: int = 0
) -> tuple[int, bytes]:
    """Check entries with their stored hashes, oldest first, from the one that follows number ``after``.

    Every entry's ``sequence`` must be one more than the last. Returns number and hash of the last entry, to be compared
    with the head or a checkpoint: a chain that was cut short is intact in itself. Raises :class:`LedgerBroken`.
    """
    for entry, stored in entries:
        sequence = after + 1
        if entry.get("sequence") != sequence:
            raise LedgerBroken(sequence, "the number of the entry that stands there is another")
        if entry_hash(previous, entry) != stored:
            raise LedgerBroken(sequence, "its content, or what it follows, was changed")
        previous, after = stored, sequence
    return after, previous
