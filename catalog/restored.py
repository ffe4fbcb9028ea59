"""After a backup was put back: begin a new epoch of the feed, so that nodes follow the catalog as it is now.

A node never goes back within an epoch. A restored catalog gives out serials that nodes have seen with other contents,
so its events belong to an epoch that no node knows: the number of seconds since 1970. One more than the epoch of the
backup would not do, because restoring the same backup twice would use it twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from catalog.audit import ledger, verify
from catalog.feed import repository as feed
from catalog.runtime import rfc3339
from catalog.start import Records


@dataclass(frozen=True, slots=True)
class NewEpoch:
    """``known_entries`` is how many entries of the ledger the signed checkpoint knew, ``entries`` how many there are
    in the copy; both without the one that says so."""

    epoch_before: int
    epoch: int
    serial: int
    known_entries: int
    entries: int


def begin_epoch(records: Records, now: datetime) -> NewEpoch:
    """Raise the feed's epoch, write it into the ledger, and let the signed checkpoint begin anew.

    A checkpoint that knows more entries than the copy has is kept beside as ``ledger.checkpoint.before-EPOCH``, and
    what it says stands in the ledger. Raises :class:`catalog.signing.SignatureError` for one that another key signed.
    """
    known = verify.read_checkpoint(records.data, records.key) or (0, bytes(32))
    with records.database.write() as session:
        before, serial = feed.state(session)
        entries, _ = ledger.head(session)
        epoch = max(before + 1, int(now.timestamp()))
        feed.set_epoch(session, epoch)
        details = {
            "epoch_before": before,
            "epoch": epoch,
            "serial": serial,
            "entries": entries,
            "known_entries": known[0],
            "known_hash": known[1].hex(),
        }
        ledger.append(session, rfc3339(now), None, "catalog.restored", "catalog", details)
        head = ledger.head(session)
    path = verify.checkpoint_path(records.data)
    if path.exists():
        path.rename(path.with_name(f"{path.name}.before-{epoch}"))
    verify.sign_checkpoint(records.data, records.key, *head)
    return NewEpoch(before, epoch, serial, known[0], entries)
