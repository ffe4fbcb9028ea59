"""The tables of the cache's index, and how those of an older format become them, in place."""

from __future__ import annotations

import sqlite3

VERSION = 2
"""Kept as SQLite's ``user_version``; format 1 of the cache had none, and one disk."""

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
    sha256 BLOB PRIMARY KEY,
    disk_bytes INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    last_use INTEGER NOT NULL,
    disk INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_disk_and_use ON objects (disk, last_use, sha256, disk_bytes, sealed);
CREATE INDEX IF NOT EXISTS partial_files ON objects (sha256, disk_bytes, disk) WHERE sealed = 0;
CREATE TABLE IF NOT EXISTS disks (
    number INTEGER PRIMARY KEY,
    identity TEXT NOT NULL UNIQUE,
    weight INTEGER NOT NULL,
    attached INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS pins (release TEXT PRIMARY KEY, manifest_digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS standing (name TEXT PRIMARY KEY, value);
"""
_FROM_1 = """
ALTER TABLE objects ADD COLUMN disk INTEGER NOT NULL DEFAULT 0;
DROP INDEX IF EXISTS by_last_use;
DROP INDEX IF EXISTS partial_files;
"""


def make(db: sqlite3.Connection) -> None:
    """Make the tables, or bring those of format 1 up to date; after a crash it is as if it had not begun."""
    if db.execute("PRAGMA user_version").fetchone()[0] >= VERSION:
        return
    old = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'by_last_use'").fetchone()
    db.executescript(f"BEGIN; {_FROM_1 if old else ''} {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
