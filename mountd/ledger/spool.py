"""What is to be told to the catalog, on the node's disk until it has been received (``<cache>/spool``).

SQLite; each step is one transaction that is durable when it returns. Counts of a record are totals, so a newer state
of it takes the place of an older one that still waits: an outage of days leaves as many rows as there are records.
``opens`` beside it is a number in shared memory that counts every open as it is noticed: what a killed worker had
noticed but not kept is known by the difference.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mountd.ledger.records import Record

log = logging.getLogger("openshelf.mount.ledger")

MOST_RECORDS = 65_536
"""Records that wait, at most; with 1 KiB for each, 64 MiB."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    place INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT UNIQUE NOT NULL, opens INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS confirmations (
    place INTEGER PRIMARY KEY AUTOINCREMENT, release TEXT UNIQUE NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS counts (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    settled INTEGER NOT NULL, unrecorded INTEGER NOT NULL, delivered INTEGER NOT NULL, dropped INTEGER NOT NULL
);
INSERT OR IGNORE INTO counts VALUES (1, -1, 0, 0, 0);
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """``settled``: opens that are kept or known to be missing; ``unrecorded``: the latter; ``delivered``: records
    received by the catalog; ``dropped``: records given up because too many waited or the catalog refused them;
    ``waiting``: records to be told."""

    settled: int
    unrecorded: int
    delivered: int
    dropped: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record as it waits: its name, its opens (by which a newer state is known), and what is sent."""

    record: str
    opens: int
    body: Mapping[str, Any]


class Spool:
    """The spool. Thread-safe. Raises sqlite3.Error when its disk fails."""

    def __init__(self, db: sqlite3.Connection, noticed: mmap.mmap) -> None:
        self._lock = threading.Lock()
        self._db = db
        self._noticed = noticed
        self.noticed = memoryview(noticed).cast("Q")
        """One number: the opens that were noticed, written by whoever notices them."""
        self._counts = self._read_counts()

    @classmethod
    def open(cls, folder: Path) -> Spool:
        """Open or make the spool; a damaged one is begun anew. What a killed worker lost is counted and logged.

        On a disk that is full or fails, it is kept in memory: a mount serves files without one too.
        """
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            noticed = _map(folder / "opens")
            spool = cls(_open(folder / "usage.sqlite"), noticed)
            spool._settle()
        except (OSError, sqlite3.Error) as error:
            log.error("The access ledger is kept in memory: its spool %s cannot be used (%s).", folder, error)
            spool = cls(_connect(":memory:"), mmap.mmap(-1, 8))
            spool._settle()
        return spool

    def _read_counts(self) -> Counts:
        query = "SELECT settled, unrecorded, delivered, dropped, (SELECT count(*) FROM records) FROM counts"
        return Counts(*self._db.execute(query).fetchone())

    def _settle(self) -> None:
        """Compare what was noticed with what was kept, before anything new is noticed."""
        settled = self._counts.settled
        if settled > self.noticed[0]:
            self.noticed[0] = settled  # after a power cut
        lost = self.noticed[0] - settled if settled >= 0 else 0
        if lost:
            log.warning("%d opens before the last worker's end are missing from the access ledger.", lost)
        if lost or settled < 0:
            with self._lock, self._transaction():
                self._db.execute("UPDATE counts SET settled = ?, unrecorded = unrecorded + ?", (self.noticed[0], lost))
            self._counts = self._read_counts()

    def counts(self) -> Counts:
        """The present counts."""
        return self._counts

    def keep(self, records: Sequence[Record], settled: int, unrecorded: int) -> None:
        """Keep the present state of records that have changed. ``settled`` opens more are accounted for by it, of
        which ``unrecorded`` are in none of them. The oldest are given up when too many wait."""
        rows = [(each.record, each.opens, json.dumps(each.to_json(), separators=(",", ":"))) for each in records]
        with self._lock, self._transaction():
            self._db.executemany(
                "INSERT INTO records (record, opens, body) VALUES (?, ?, ?)"
                " ON CONFLICT (record) DO UPDATE SET opens = excluded.opens, body = excluded.body",
                rows,
            )
            (waiting,) = self._db.execute("SELECT count(*) FROM records").fetchone()
            dropped = max(0, waiting - MOST_RECORDS)
            if dropped:
                self._db.execute(
                    "DELETE FROM records WHERE place IN (SELECT place FROM records ORDER BY place LIMIT ?)", (dropped,)
                )
                log.warning("%d records of the access ledger were given up: too many wait.", dropped)
            self._db.execute(
                "UPDATE counts SET settled = settled + ?, unrecorded = unrecorded + ?, dropped = dropped + ?",
                (settled, unrecorded, dropped),
            )
            self._counts = self._read_counts()

    def waiting(self, most: int) -> list[Waiting]:
        """Up to ``most`` records in the order in which they began to wait."""
        with self._lock:
            found = self._db.execute("SELECT record, opens, body FROM records ORDER BY place LIMIT ?", (most,))
            return [Waiting(record, opens, json.loads(body)) for record, opens, body in found]

    def delivered(self, records: Sequence[Waiting]) -> None:
        """The catalog has these; one that has grown meanwhile goes on waiting."""
        self._remove(records, "delivered")

    def refused(self, records: Sequence[Waiting]) -> None:
        """The catalog will never take these."""
        self._remove(records, "dropped")

    def _remove(self, records: Sequence[Waiting], counted_as: str) -> None:
        with self._lock, self._transaction():
            self._db.executemany(
                "DELETE FROM records WHERE record = ? AND opens = ?", [(each.record, each.opens) for each in records]
            )
            statement = f"UPDATE counts SET {counted_as} = {counted_as} + ?"  # noqa: S608 (one of two words of ours)
            self._db.execute(statement, (len(records),))
            self._counts = self._read_counts()

    # Confirmations of withdrawals

    def put_confirmation(self, body: Mapping[str, Any]) -> None:
        """Keep what is to be said about a withdrawal; it takes the place of what still waits about the same."""
        with self._lock, self._transaction():
            self._db.execute(
                "INSERT INTO confirmations (release, version, body) VALUES (?, 1, ?)"
                " ON CONFLICT (release) DO UPDATE SET version = version + 1, body = excluded.body",
                (body["release"], json.dumps(body)),
            )

    def confirmations(self) -> list[tuple[str, int, Mapping[str, Any]]]:
        """(release, version, what to say) of all that wait, the oldest first."""
        with self._lock:
            found = self._db.execute("SELECT release, version, body FROM confirmations ORDER BY place").fetchall()
        return [(release, version, json.loads(body)) for release, version, body in found]

    def confirmed(self, release: str, version: int) -> None:
        """It was said, unless there is something newer to say."""
        with self._lock, self._transaction():
            self._db.execute("DELETE FROM confirmations WHERE release = ? AND version = ?", (release, version))

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._db.close()
            self.noticed.release()
            self._noticed.close()

    def _transaction(self) -> sqlite3.Connection:
        self._db.execute("BEGIN IMMEDIATE")
        return self._db


def _open(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path)
    except sqlite3.OperationalError:
        raise  # the disk, not the database
    except sqlite3.DatabaseError as error:
        log.error("The spool of the access ledger is damaged (%s): what waited in it is lost.", error)
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            name.unlink(missing_ok=True)
        return _connect(path)


def _map(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, 8)  # a hole would be filled at the first write, which a full disk ends
        return mmap.mmap(descriptor, 8)
    finally:
        os.close(descriptor)


def _connect(path: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
    except sqlite3.Error:
        db.close()
        raise
    return db
