"""The last good state of the feed on disk: which releases and tags there are, who may see them, up to which event.

It lets a mount start without the catalog. SQLite; each step of the feed is one transaction.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalog.names import Collection, ReleaseRef, is_digest, is_name, parse_collection
from catalog.trust import BadFeed
from openshelf.errors import UsageError

log = logging.getLogger("openshelf.mount.follow")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS releases (
    collection TEXT NOT NULL, version TEXT NOT NULL, manifest_digest TEXT NOT NULL, PRIMARY KEY (collection, version)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tags (
    collection TEXT NOT NULL, tag TEXT NOT NULL, version TEXT NOT NULL, PRIMARY KEY (collection, tag)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS restricted (collection TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS withdrawn (
    collection TEXT NOT NULL, version TEXT NOT NULL, manifest_digest TEXT NOT NULL, policy TEXT NOT NULL,
    done TEXT NOT NULL, objects INTEGER NOT NULL, size_bytes INTEGER NOT NULL, PRIMARY KEY (collection, version)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER, serial INTEGER);
"""
_SCHEMA_VERSION = 1
"""1: with the restricted collections. A state of before is good to start from, and a snapshot completes it."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A release that is no longer listed and of which something is still to be done: removed, confirmed, or waited for.

    ``manifest_digest`` is empty when it was not listed here before. ``policy`` is ``drain`` or ``revoke`` for a
    withdrawal, ``lost`` when this node may not read it any more. ``done`` is when its files were removed (RFC 3339),
    empty before; ``objects`` and ``size_bytes`` say how much that was.
    """

    ref: ReleaseRef
    manifest_digest: str
    policy: str
    done: str = ""
    objects: int = 0
    size_bytes: int = 0


class FeedState:
    """Releases, tags and the feed position. Thread-safe."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._lock = threading.Lock()
        self._db = db

    @classmethod
    def open(cls, path: Path) -> FeedState:
        """Open or make the state; a damaged one is begun anew (a snapshot of the feed fills it again)."""
        try:
            return cls(_connect(path))
        except sqlite3.DatabaseError as error:
            log.warning("The stored state of the feed is damaged (%s) and is taken from the catalog again.", error)
            for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
                name.unlink(missing_ok=True)
            return cls(_connect(path))

    @property
    def position(self) -> tuple[int, int] | None:
        """Epoch and serial that this state is of; None when there is none yet."""
        with self._lock:
            found = self._db.execute("SELECT epoch, serial FROM position").fetchone()
        return None if found is None else (int(found[0]), int(found[1]))

    def collections(self) -> list[Collection]:
        """All collections with releases."""
        with self._lock:
            found = self._db.execute("SELECT DISTINCT collection FROM releases ORDER BY collection").fetchall()
        return [parse_collection(name) for (name,) in found]

    def releases(self, collection: Collection) -> dict[str, str]:
        """Version → manifest digest (hexadecimal) of a collection."""
        with self._lock:
            rows = self._db.execute(
                "SELECT version, manifest_digest FROM releases WHERE collection = ?", (str(collection),)
            ).fetchall()
        return dict(rows)

    def tags(self, collection: Collection) -> dict[str, str]:
        """Tag → version of a collection."""
        with self._lock:
            rows = self._db.execute("SELECT tag, version FROM tags WHERE collection = ?", (str(collection),)).fetchall()
        return dict(rows)

    def is_restricted(self, collection: Collection) -> bool:
        """Whether only some may read the collection."""
        with self._lock:
            asked = self._db.execute("SELECT 1 FROM restricted WHERE collection = ?", (str(collection),))
            return asked.fetchone() is not None

    def uses(self, manifest_digest: str) -> bool:
        """Whether any release has this manifest."""
        with self._lock:
            asked = self._db.execute("SELECT 1 FROM releases WHERE manifest_digest = ? LIMIT 1", (manifest_digest,))
            return asked.fetchone() is not None

    def gone(self) -> list[Gone]:
        """Releases of which something is still to be done after they went."""
        with self._lock:
            rows = self._db.execute("SELECT * FROM withdrawn ORDER BY collection, version").fetchall()
        return [Gone(ReleaseRef(parse_collection(name), version), *rest) for name, version, *rest in rows]

    def put_gone(self, gone: Gone) -> None:
        """Note how far it has come with a release that went."""
        key = (str(gone.ref.collection), gone.ref.version)
        with self._lock:
            self._db.execute(
                "UPDATE withdrawn SET done = ?, objects = ?, size_bytes = ? WHERE collection = ? AND version = ?",
                (gone.done, gone.objects, gone.size_bytes, *key),
            )

    def forget_gone(self, ref: ReleaseRef) -> None:
        """Nothing more is to be done about a release that went."""
        key = (str(ref.collection), ref.version)
        with self._lock:
            self._db.execute("DELETE FROM withdrawn WHERE collection = ? AND version = ?", key)

    def replace(self, snapshot: Mapping[str, Any]) -> set[Collection]:
        """Take a verified snapshot; the collections that differ from before."""
        releases = {_release_key(item): _digest(item) for item in snapshot["releases"]}
        tags = {_tag_key(item): _name(item, "version") for item in snapshot["tags"]}
        restricted = {_collection(item) for item in snapshot["releases"] if _is_restricted(item)}
        with self._lock:
            before = {(c, v): d for c, v, d in self._db.execute("SELECT * FROM releases")}
            tags_before = {(c, t): v for c, t, v in self._db.execute("SELECT * FROM tags")}
            changed = {key[0] for key in before.keys() | releases.keys() if before.get(key) != releases.get(key)}
            changed |= {key[0] for key in tags_before.keys() | tags.keys() if tags_before.get(key) != tags.get(key)}
            changed |= restricted ^ {name for (name,) in self._db.execute("SELECT collection FROM restricted")}
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                lost = [(*key, digest) for key, digest in before.items() if releases.get(key) != digest]
                self._db.executemany("INSERT OR IGNORE INTO withdrawn VALUES (?, ?, ?, 'lost', '', 0, 0)", lost)
                self._db.executemany("DELETE FROM withdrawn WHERE collection = ? AND version = ?", list(releases))
                self._db.execute("DELETE FROM releases")
                self._db.execute("DELETE FROM restricted")
                self._db.executemany("INSERT INTO restricted VALUES (?)", [(name,) for name in restricted])
                self._db.execute("DELETE FROM tags")
                self._db.executemany("INSERT INTO releases VALUES (?, ?, ?)", [(*k, d) for k, d in releases.items()])
                self._db.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(*k, v) for k, v in tags.items()])
                self._move(snapshot)
        return {parse_collection(name) for name in changed}

    def apply(self, events: Iterable[Mapping[str, Any]]) -> set[Collection]:
        """Take verified events in order; the collections that they concern."""
        concerned: set[Collection] = set()
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                for event in events:
                    concerned |= self._apply(event)
                    self._move(event)
        return concerned

    def _apply(self, event: Mapping[str, Any]) -> set[Collection]:
        """One event; types that change no name (``key``, ``hidden``, ``access``) only move the position."""
        match event["type"]:
            case "published":
                if _is_restricted(event):
                    self._db.execute("INSERT OR IGNORE INTO restricted VALUES (?)", (_collection(event),))
                self._db.execute("DELETE FROM withdrawn WHERE collection = ? AND version = ?", _release_key(event))
                statement = "INSERT OR REPLACE INTO releases VALUES (?, ?, ?)"
                values: tuple[str, ...] = (*_release_key(event), _digest(event))
            case "withdrawn":
                policy = "revoke" if event.get("policy") == "revoke" else "drain"
                self._db.execute(
                    "INSERT OR REPLACE INTO withdrawn VALUES (?, ?, coalesce((SELECT manifest_digest FROM releases"
                    " WHERE collection = ? AND version = ?), ''), ?, '', 0, 0)",
                    (*_release_key(event), *_release_key(event), policy),
                )
                self._db.execute("DELETE FROM tags WHERE collection = ? AND version = ?", _release_key(event))
                statement = "DELETE FROM releases WHERE collection = ? AND version = ?"
                values = _release_key(event)
            case "tagged":
                statement = "INSERT OR REPLACE INTO tags VALUES (?, ?, ?)"
                values = (*_tag_key(event), _name(event, "version"))
            case "untagged":
                statement, values = "DELETE FROM tags WHERE collection = ? AND tag = ?", _tag_key(event)
            case _:
                return set()
        self._db.execute(statement, values)
        return {parse_collection(values[0])}

    def _move(self, document: Mapping[str, Any]) -> None:
        place = (document["epoch"], document["serial"])
        self._db.execute("INSERT OR REPLACE INTO position VALUES (1, ?, ?)", place)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
        if db.execute("PRAGMA user_version").fetchone() == (0,):
            db.execute("UPDATE position SET serial = -1")  # so that a snapshot is taken as soon as one can be had
            db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    except sqlite3.Error:
        db.close()
        raise
    return db


def _collection(item: Mapping[str, Any]) -> str:
    try:
        return str(parse_collection(item["collection"]))
    except (KeyError, AttributeError, TypeError, UsageError) as error:
        raise BadFeed("feed") from error


def _name(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not is_name(value):
        raise BadFeed("feed")
    return value


def _is_restricted(item: Mapping[str, Any]) -> bool:
    """Of a release; a catalog that does not say yet is of before collections were shown by their access rule."""
    access = item.get("access", "public")
    if access not in ("public", "restricted"):
        raise BadFeed("feed")
    return bool(access == "restricted")


def _digest(item: Mapping[str, Any]) -> str:
    value = item.get("manifest_digest")
    if not isinstance(value, str) or not is_digest(value):
        raise BadFeed("feed")
    return value


def _release_key(item: Mapping[str, Any]) -> tuple[str, str]:
    return _collection(item), _name(item, "version")


def _tag_key(item: Mapping[str, Any]) -> tuple[str, str]:
    return _collection(item), _name(item, "tag")
