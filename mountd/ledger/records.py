"""Opens taken together: one record for each job, user and release."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mountd import inodes
from mountd.interfaces import Node
from mountd.ledger.jobs import Job

BITMAPS_BYTES = 32 << 20
"""Memory in which opened files are told apart (a bit for each file of a release), for all records together."""
LIVE_RECORDS = 4096
"""Records that can still grow; of the longest idle no more is counted under the same number."""
IDLE_S = 6 * 3600.0

Key = tuple[str, Job, int]
"""Release, job, uid."""


@dataclass(slots=True)
class Record:
    """What one job of one user opened of one release. Counts are totals; times are seconds since 1970.

    ``exact`` turns false when there is no memory left to tell the files apart: ``files`` and ``bytes_declared`` are
    then the least that it can be.
    """

    key: Key
    record: str
    first: float
    last: float
    opens: int = 0
    files: int = 0
    bytes_declared: int = 0
    exact: bool = True
    seen: bytearray = field(default_factory=bytearray)

    def to_json(self) -> dict[str, Any]:
        """As it is sent to the catalog."""
        release, job, uid = self.key
        return {
            "record": self.record,
            "release": release,
            "job": job.to_json(),
            "uid": uid,
            "first": utc(self.first),
            "last": utc(self.last),
            "opens": self.opens,
            "files": self.files,
            "bytes_declared": self.bytes_declared,
            "exact": self.exact,
        }


def utc(seconds: float) -> str:
    """A moment as RFC 3339 in UTC; what a broken clock says of other centuries becomes the nearest moment in ours."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(seconds, 946_684_800), 4_102_444_799)))


class Records:
    """The records that are growing. For one thread."""

    def __init__(self) -> None:
        self._live: dict[Key, Record] = {}
        self._changed: dict[str, Record] = {}
        self._bitmaps_bytes = 0

    def add(self, node: Node, job: Job, uid: int, at: float) -> None:
        """Count one open of a file of a release."""
        key = (str(node.release), job, uid)
        record = self._live.pop(key, None)
        if record is not None and at - record.last > IDLE_S:
            self._drop(record)
            record = None
        if record is None:
            while len(self._live) >= LIVE_RECORDS:
                self._drop(self._live.pop(next(iter(self._live))))
            record = Record(key, secrets.token_hex(16), at, at)
        self._live[key] = record  # at the end: in order of last use
        record.opens += 1
        record.first, record.last = min(record.first, at), max(record.last, at)
        self._count_file(record, node)
        self._changed[record.record] = record

    def _count_file(self, record: Record, node: Node) -> None:
        place = inodes.split(node.nodeid)[1]
        if not place & inodes.FILE_BIT or place & inodes.MADE_BIT:
            return  # release.json, made by the mount
        byte, bit = divmod(place & ~inodes.FILE_BIT, 8)
        seen = record.seen
        if byte >= len(seen):
            more = byte + 1 + len(seen) // 2 - len(seen)
            if self._bitmaps_bytes + more > BITMAPS_BYTES:
                record.exact = False
                return
            self._bitmaps_bytes += more
            seen.extend(bytes(more))
        if not seen[byte] >> bit & 1:
            seen[byte] |= 1 << bit
            record.files += 1
            record.bytes_declared += node.size

    def _drop(self, record: Record) -> None:
        self._bitmaps_bytes -= len(record.seen)
        record.seen = bytearray()

    def take_changed(self) -> Iterator[Record]:
        """The records that have changed since the last time."""
        changed, self._changed = self._changed, {}
        yield from changed.values()

    def put_back(self, records: list[Record]) -> None:
        """Take records as changed again, since they could not be kept."""
        self._changed.update((record.record, record) for record in records)
