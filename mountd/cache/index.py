"""The persisted index of the cache: size and last use of every object, so that opening scans nothing.

SQLite (WAL, not synced at each commit: after a power cut a row may be missing or stale, which reconciling repairs).
A row is written before the first byte of its object, so no bytes lie in the cache that the index does not know.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    sha256 BLOB PRIMARY KEY,
    disk_bytes INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    last_use INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_last_use ON objects (last_use, sha256, disk_bytes, sealed);
CREATE INDEX IF NOT EXISTS partial_files ON objects (sha256, disk_bytes) WHERE sealed = 0;
"""


TOUCHES_KEPT = 4096
_ASKED_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One object of the cache; ``disk_bytes`` is what it takes on disk, ``last_use`` a running number."""

    sha256: bytes
    disk_bytes: int
    sealed: bool


class Index:
    """The table of cached objects. Thread-safe. Raises sqlite3.Error when its disk fails."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = _open(path)
        self._clock: int = self._db.execute("SELECT coalesce(max(last_use), 0) FROM objects").fetchone()[0]
        self._touched: dict[bytes, int] = {}

    def total_bytes(self) -> int:
        """The sum of ``disk_bytes``."""
        with self._lock:
            return int(self._db.execute("SELECT coalesce(sum(disk_bytes), 0) FROM objects").fetchone()[0])

    def counts(self) -> tuple[int, int]:
        """How many objects are sealed, and how many partial."""
        with self._lock:
            sealed, total = self._db.execute("SELECT coalesce(sum(sealed), 0), count(*) FROM objects").fetchone()
        return int(sealed), int(total) - int(sealed)

    def get(self, sha256: bytes) -> IndexRow | None:
        """The row of one object."""
        with self._lock:
            found = self._db.execute("SELECT disk_bytes, sealed FROM objects WHERE sha256 = ?", (sha256,)).fetchone()
        return None if found is None else IndexRow(sha256, int(found[0]), bool(found[1]))

    def put(self, sha256: bytes, disk_bytes: int, *, sealed: bool) -> None:
        """Insert or replace a row; it counts as just used."""
        with self._lock:
            self._clock += 1
            self._touched.pop(sha256, None)
            self._db.execute(
                "INSERT INTO objects VALUES (?, ?, ?, ?) ON CONFLICT (sha256) DO UPDATE SET"
                " disk_bytes = excluded.disk_bytes, sealed = excluded.sealed, last_use = excluded.last_use",
                (sha256, disk_bytes, sealed, self._clock),
            )

    def enter(self, rows: Sequence[tuple[bytes, int]]) -> None:
        """Insert rows of new objects (SHA-256, ``disk_bytes``), not sealed yet, in one transaction."""
        with self._lock, self._transaction():
            self._clock += 1
            self._db.executemany(
                "INSERT INTO objects VALUES (?, ?, 0, ?)", [(sha256, taken, self._clock) for sha256, taken in rows]
            )

    def seal(self, digests: Iterable[bytes]) -> None:
        """Mark objects as sealed, in one transaction."""
        with self._lock, self._transaction():
            self._db.executemany("UPDATE objects SET sealed = 1 WHERE sha256 = ?", [(sha256,) for sha256 in digests])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        with self._db:
            yield

    def remove(self, sha256: bytes) -> None:
        """Forget an object."""
        with self._lock:
            self._touched.pop(sha256, None)
            self._db.execute("DELETE FROM objects WHERE sha256 = ?", (sha256,))

    def touch(self, sha256: bytes) -> None:
        """Note a use; uses are written :data:`TOUCHES_KEPT` at a time, and before the next eviction."""
        with self._lock:
            self._clock += 1
            self._touched[sha256] = self._clock
            if len(self._touched) >= TOUCHES_KEPT:
                self._write_touches()

    def flush(self) -> None:
        """Write the noted uses."""
        with self._lock:
            self._write_touches()

    def _write_touches(self) -> None:
        uses = [(clock, sha256) for sha256, clock in self._touched.items()]
        self._touched.clear()
        if uses:
            with self._transaction():
                self._db.executemany("UPDATE objects SET last_use = ? WHERE sha256 = ?", uses)

    def oldest(self, limit: int, after: tuple[int, bytes] = (-1, b"")) -> list[tuple[int, IndexRow]]:
        """Up to ``limit`` rows in order of last use, after the place ``after`` = (last_use, sha256)."""
        with self._lock:
            found = self._db.execute(
                "SELECT last_use, sha256, disk_bytes, sealed FROM objects WHERE (last_use, sha256) > (?, ?)"
                " ORDER BY last_use, sha256 LIMIT ?",
                (*after, limit),
            ).fetchall()
        return [(int(use), IndexRow(bytes(sha), int(size), bool(sealed))) for use, sha, size, sealed in found]

    def partials(self) -> list[IndexRow]:
        """All partial files."""
        with self._lock:
            found = self._db.execute("SELECT sha256, disk_bytes FROM objects WHERE sealed = 0").fetchall()
        return [IndexRow(bytes(sha), int(size), sealed=False) for sha, size in found]

    def known(self, digests: Iterable[bytes]) -> list[bytes]:
        """Those of ``digests`` that are in the cache, sealed or partial."""
        with self._lock:
            asked = self._db.execute
            return [d for d in digests if asked("SELECT 1 FROM objects WHERE sha256 = ?", (d,)).fetchone()]

    def known_among(self, digests: Sequence[bytes]) -> set[bytes]:
        """The same for many at once."""
        found: set[bytes] = set()
        for start in range(0, len(digests), _ASKED_AT_ONCE):
            part = digests[start : start + _ASKED_AT_ONCE]
            places = ",".join("?" * len(part))
            with self._lock:
                rows = self._db.execute(f"SELECT sha256 FROM objects WHERE sha256 IN ({places})", part)  # noqa: S608
                found.update(bytes(sha256) for (sha256,) in rows)
        return found

    def close(self) -> None:
        """Write the noted uses and close."""
        self.flush()
        with self._lock:
            self._db.close()


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.executescript(_SCHEMA)
    except sqlite3.Error:
        db.close()
        raise
    return db
