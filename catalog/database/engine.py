"""Connections and transactions: many readers, one writer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from openshelf.errors import OpenshelfError

BUSY_TIMEOUT_MS = 10_000
READERS = 16
"""Connections kept open; as many again are opened for a crowd."""


class DatabaseFull(OpenshelfError):
    """The disk under the database is full; the transaction was rolled back."""

    def __init__(self) -> None:
        super().__init__(
            "database_full", "The catalog's disk is full; nothing was changed", "Free space there, then try again."
        )


def sqlite_url(path: Path) -> str:
    """The address of the SQLite database at ``path``."""
    return f"sqlite:///{path}"


def make_engine(url: str) -> Engine:
    """An engine for ``url``; SQLite in WAL mode, with foreign keys, and every commit durable.

    No error of it repeats the parameters of a statement: they may be somebody's data.
    """
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_size=READERS, max_overflow=READERS, pool_pre_ping=True, hide_parameters=True)
    engine = create_engine(
        url,
        pool_size=READERS,
        max_overflow=4 * READERS,
        hide_parameters=True,
        connect_args={"timeout": BUSY_TIMEOUT_MS / 1000},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction of its own: `begin` below does
        for pragma in (
            "journal_mode = WAL",
            f"busy_timeout = {BUSY_TIMEOUT_MS}",
            "foreign_keys = ON",
            "synchronous = FULL",
        ):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A deferred transaction that writes later fails at once when another wrote meanwhile; an immediate one waits.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


class Database:
    """Transactions on one engine. Writers of this process take turns, so that none waits on the file's lock."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._writing = threading.Lock()
        self._write_engine = engine.execution_options(writes=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state of the database and changes nothing."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session that is committed at the end, or rolled back when the block raises."""
        with self._writing, Session(self._write_engine, expire_on_commit=False) as session:
            try:
                with session.begin():
                    yield session
            except OperationalError as error:
                if "disk is full" in str(error.orig):
                    raise DatabaseFull from error
                raise

    @property
    def busy(self) -> bool:
        """Whether somebody is writing, so that who writes now has to wait."""
        return self._writing.locked()

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
