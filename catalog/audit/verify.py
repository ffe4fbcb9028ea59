"""Check the ledger: its chain, its head, and the signed checkpoint that lies outside the database.

A chain alone does not show that its tail was cut off or that all of it was written anew; the checkpoint does, as far
as it reaches.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import structlog
from sqlalchemy.orm import Session

from catalog.audit import ledger
from catalog.audit.schemas import LedgerState
from catalog.database.models import LedgerEntry
from catalog.runtime import Runtime
from catalog.signing import SignatureError, Signed, SigningKey, verify
from compliance.ledger import LedgerBroken, verify_chain
from openshelf.errors import OpenshelfError

log = structlog.get_logger("catalog.audit")


def checkpoint_path(data: Path) -> Path:
    """Where the last checkpoint of the catalog in ``data`` lies."""
    return data / "ledger.checkpoint"


def write_checkpoint(runtime: Runtime) -> None:
    """Sign number and hash of the last entry, and replace the checkpoint by it, unless it says so already.

    A checkpoint that the ledger contradicts stays: it is the proof that something was cut off or rewritten.
    """
    with runtime.database.read() as session:
        sequence, head = ledger.head(session)
        try:
            before = read_checkpoint(runtime.data, runtime.key)
            if before == (sequence, head):
                return
            _check_checkpoint(session, sequence, before)
        except OpenshelfError as error:
            log.error("ledger.contradicts_checkpoint", detail=error.message)
            return
    sign_checkpoint(runtime.data, runtime.key, sequence, head)


def sign_checkpoint(data: Path, key: SigningKey, sequence: int, head: bytes) -> None:
    """Replace the checkpoint by one that knows ``sequence`` entries, of which the last has the hash ``head``."""
    path = checkpoint_path(data)
    temporary = path.with_suffix(".new")
    document = {"sequence": sequence, "hash": head.hex()}
    with temporary.open("w", encoding="utf-8") as sink:
        json.dump(key.sign("ledger-checkpoint", document).to_json(), sink)
        sink.flush()
        os.fsync(sink.fileno())
    temporary.rename(path)


def _read(path: Path) -> Signed:
    try:
        return Signed.from_json(json.loads(path.read_text("utf-8")))
    except (ValueError, UnicodeDecodeError) as error:
        raise SignatureError("The ledger's checkpoint is not a signed document") from error


def check(runtime: Runtime) -> LedgerState:
    """Recompute the whole chain, and compare."""
    with runtime.database.read() as session:
        sequence, head = ledger.head(session)
        detail = None
        try:
            _check_chain(session, sequence, head, read_checkpoint(runtime.data, runtime.key))
        except OpenshelfError as error:
            detail = error.message
    return LedgerState(intact=detail is None, entries=sequence, head=head.hex(), detail=detail)


def read_checkpoint(data: Path, key: SigningKey) -> tuple[int, bytes] | None:
    """How many entries the signed checkpoint knows and the hash of the last, or None when there is none."""
    path = checkpoint_path(data)
    if not path.exists():
        return None
    document = verify("ledger-checkpoint", _read(path), key.public_bytes)
    return int(document["sequence"]), bytes.fromhex(document["hash"])


def _check_chain(session: Session, sequence: int, head: bytes, checkpoint: tuple[int, bytes] | None) -> None:
    """Raise an :class:`OpenshelfError` that names the first place where something does not fit."""
    last, last_hash = verify_chain((ledger.parsed(row), row.hash) for row in ledger.every(session))
    if (last, last_hash) != (sequence, head):
        raise LedgerBroken(last + 1, "entries are missing at the end, or the head was changed")
    _check_checkpoint(session, last, checkpoint)


def _check_checkpoint(session: Session, last: int, checkpoint: tuple[int, bytes] | None) -> None:
    if checkpoint is None or checkpoint[0] == 0:
        return
    if checkpoint[0] > last:
        raise LedgerBroken(last + 1, f"the signed checkpoint knows {checkpoint[0]} entries")
    named = session.get(LedgerEntry, checkpoint[0])
    if named is None or named.hash != checkpoint[1]:
        raise LedgerBroken(checkpoint[0], "it is not the entry that the signed checkpoint names")
