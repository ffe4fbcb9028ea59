"""The persisted index of the cache: size, disk and last use of every object, so that opening scans nothing.

It holds too which disks there are, which releases are pinned, and how far old files were hashed again
(:mod:`mountd.cache.schema`).

SQLite (WAL, not synced at each commit: after a power cut a row may be missing or stale, which reconciling repairs).
A row is written before the first byte of its object, so no bytes lie in the cache that the index does not know.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mountd.cache import schema

log = logging.getLogger("openshelf.mount.cache")

TOUCHES_KEPT = 4096
_ASKED_AT_ONCE = 512
_USES_AT_ONCE = 64
_Item = TypeVar("_Item")
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One object of the cache: what it takes, and on which disk."""

    sha256: bytes
    disk_bytes: int
    sealed: bool
    disk: int = 0


class Index:
    """The table of cached objects. Thread-safe. Raises sqlite3.Error when its disk fails."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._path = path
        self._db = _open(path)
        self._clock: int = self._db.execute("SELECT coalesce(max(last_use), 0) FROM objects").fetchone()[0]
        self._touched: dict[bytes, int] = {}
        self._writing_touches = False

    def bound_log(self, size_bytes: int) -> None:
        """Fold the log beside the index into it at about this length: the longer, the fewer waits for the disk."""
        with self._lock:
            self._db.execute(f"PRAGMA wal_autocheckpoint = {size_bytes // PAGE_BYTES}")
            self._db.execute(f"PRAGMA journal_size_limit = {size_bytes}")

    def totals(self) -> dict[int, tuple[int, int, int]]:
        """By disk: the sum of ``disk_bytes``, how many objects are sealed, and how many partial."""
        with self._lock:
            found = self._db.execute(
                "SELECT disk, sum(disk_bytes), sum(sealed), count(*) FROM objects GROUP BY disk"
            ).fetchall()
        return {int(disk): (int(size), int(sealed), int(count) - int(sealed)) for disk, size, sealed, count in found}

    @property
    def clock(self) -> int:
        """The number of the latest use."""
        return self._clock

    def get(self, sha256: bytes) -> IndexRow | None:
        """The row of one object."""
        with self._lock:
            found = self._db.execute(
                "SELECT disk_bytes, sealed, disk FROM objects WHERE sha256 = ?", (sha256,)
            ).fetchone()
        return None if found is None else IndexRow(sha256, int(found[0]), bool(found[1]), int(found[2]))

    def put(self, sha256: bytes, disk_bytes: int, *, sealed: bool, disk: int = 0) -> None:
        """Insert or replace a row; it counts as just used."""
        with self._lock:
            self._clock += 1
            self._touched.pop(sha256, None)
            self._db.execute(
                "INSERT INTO objects VALUES (?, ?, ?, ?, ?) ON CONFLICT (sha256) DO UPDATE SET disk_bytes ="
                " excluded.disk_bytes, sealed = excluded.sealed, last_use = excluded.last_use, disk = excluded.disk",
                (sha256, disk_bytes, sealed, self._clock, disk),
            )

    def enter(self, rows: Sequence[tuple[bytes, int, int]]) -> None:
        """Insert rows of new objects (SHA-256, ``disk_bytes``, disk), not sealed yet, in one transaction."""
        with self.batch():
            self._clock += 1
            # In the order of the table, which halves the pages written; one statement for many rows, during which the
            # interpreter's lock is free.
            for part in _portions(sorted(rows)):
                values = [value for sha256, taken, disk in part for value in (sha256, taken, self._clock, disk)]
                self._db.execute(
                    f"INSERT OR REPLACE INTO objects VALUES {','.join(['(?, ?, 0, ?, ?)'] * len(part))}",  # noqa: S608
                    values,
                )

    def adopt(self, rows: Sequence[tuple[bytes, int, bool, int]]) -> None:
        """Insert rows of objects that were found on a disk (SHA-256, ``disk_bytes``, sealed, disk) and have none."""
        with self.batch():
            self._db.executemany(
                "INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?)",
                [(sha256, taken, sealed, self._clock, disk) for sha256, taken, sealed, disk in rows],
            )

    def seal(self, digests: Iterable[bytes]) -> None:
        """Mark objects as sealed, in one transaction."""
        with self.batch():
            for part in _portions(sorted(digests)):
                places = ",".join("?" * len(part))
                self._db.execute(f"UPDATE objects SET sealed = 1 WHERE sha256 IN ({places})", part)  # noqa: S608

    @contextmanager
    def batch(self) -> Iterator[None]:
        """One transaction for many changes: quicker, and all or none of them are kept. Others wait meanwhile."""
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN")
            with self._db:
                yield

    def remove(self, sha256: bytes) -> None:
        """Forget an object."""
        with self._lock:
            self._touched.pop(sha256, None)
            self._db.execute("DELETE FROM objects WHERE sha256 = ?", (sha256,))

    def touch(self, sha256: bytes) -> None:
        """Note a use; they are written :data:`TOUCHES_KEPT` at a time by another thread, and before an eviction."""
        # No lock: this is done at every open, and the clock need not be exact.
        self._clock += 1
        self._touched[sha256] = self._clock
        if len(self._touched) >= TOUCHES_KEPT and not self._writing_touches:
            self._writing_touches = True
            threading.Thread(target=self._write_soon, name="touches", daemon=True).start()

    def _write_soon(self) -> None:
        try:
            self.flush()
        except sqlite3.Error as error:
            log.warning("The last uses of cached files were not written: %s.", error)
        finally:
            self._writing_touches = False

    def flush(self) -> None:
        """Write the noted uses."""
        with self._lock:
            self._write_touches()

    def _write_touches(self) -> None:
        touched, self._touched = self._touched, {}
        used = sorted(touched, key=touched.__getitem__)
        # Of many, neighbours share one time and one statement, during which the interpreter's lock is free.
        together = _USES_AT_ONCE if len(used) >= TOUCHES_KEPT else 1
        with self.batch():
            for start in range(0, len(used), together):
                part = used[start : start + together]
                places = ",".join("?" * len(part))
                self._db.execute(
                    f"UPDATE objects SET last_use = ? WHERE sha256 IN ({places})",  # noqa: S608
                    (touched[part[-1]], *part),
                )

    def oldest(self, disk: int, limit: int, after: tuple[int, bytes] = (-1, b"")) -> list[tuple[int, IndexRow]]:
        """Up to ``limit`` rows of a disk in order of last use, after the place ``after`` = (last_use, sha256)."""
        with self._lock:
            found = self._db.execute(
                "SELECT last_use, sha256, disk_bytes, sealed FROM objects WHERE disk = ?"
                " AND (last_use, sha256) > (?, ?) ORDER BY last_use, sha256 LIMIT ?",
                (disk, *after, limit),
            ).fetchall()
        return [(int(use), IndexRow(bytes(sha), int(size), bool(sealed), disk)) for use, sha, size, sealed in found]

    def sealed_after(self, sha256: bytes, limit: int) -> list[IndexRow]:
        """Up to ``limit`` sealed objects whose digests follow ``sha256``, in order of their digests."""
        with self._lock:
            found = self._db.execute(
                "SELECT sha256, disk_bytes, disk FROM objects WHERE sha256 > ? AND sealed ORDER BY sha256 LIMIT ?",
                (sha256, limit),
            ).fetchall()
        return [IndexRow(bytes(sha), int(size), sealed=True, disk=int(disk)) for sha, size, disk in found]

    def partials(self) -> list[IndexRow]:
        """All partial files."""
        with self._lock:
            found = self._db.execute("SELECT sha256, disk_bytes, disk FROM objects WHERE sealed = 0").fetchall()
        return [IndexRow(bytes(sha), int(size), sealed=False, disk=int(disk)) for sha, size, disk in found]

    def drop_disk(self, disk: int, limit: int) -> int:
        """Forget up to ``limit`` objects of a disk; how many there were."""
        with self._lock:
            return self._db.execute(
                "DELETE FROM objects WHERE sha256 IN (SELECT sha256 FROM objects WHERE disk = ? LIMIT ?)", (disk, limit)
            ).rowcount

    def reading(self) -> sqlite3.Connection:
        """A connection of its own to read much with, while others go on; the caller closes it."""
        return sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, check_same_thread=False, isolation_level=None)

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Carry out a statement on the small tables beside the objects (disks, pins, standing)."""
        with self._lock:
            return self._db.execute(statement, values).fetchall()

    def known(self, digests: Iterable[bytes]) -> list[bytes]:
        """Those of ``digests`` that are in the cache, sealed or partial."""
        with self._lock:
            asked = self._db.execute
            return [d for d in digests if asked("SELECT 1 FROM objects WHERE sha256 = ?", (d,)).fetchone()]

    def known_among(self, digests: Sequence[bytes]) -> set[bytes]:
        """The same for many at once."""
        found: set[bytes] = set()
        for part in _portions(digests):
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


def _portions(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """``items`` in portions for which one statement has places."""
    for start in range(0, len(items), _ASKED_AT_ONCE):
        yield items[start : start + _ASKED_AT_ONCE]


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        schema.make(db)
    except sqlite3.Error:
        db.close()
        raise
    return db
