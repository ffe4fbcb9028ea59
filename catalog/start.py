"""Open a catalog's data folder: lock it, migrate its database, load its key."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from catalog.audit import verify
from catalog.database.engine import Database, make_engine, sqlite_url
from catalog.database.migrate import migrate
from catalog.feed import repository as feed
from catalog.feed.signal import FeedSignal
from catalog.objects import open_store
from catalog.runtime import Runtime
from catalog.signing import SigningKey
from openshelf.errors import OpenshelfError, UsageError

DATABASE_NAME = "catalog.db"


@contextmanager
def open_catalog(data: Path, objects: str | None = None) -> Iterator[Runtime]:
    """The catalog in the folder ``data``, made at the first start; ``objects`` is ``s3://BUCKET/PREFIX`` or None.

    Raises :class:`OpenshelfError` when another process serves the folder, or when it cannot be used.
    """
    _make_folders(data)
    with contextlib.ExitStack() as stack:
        records = stack.enter_context(_open_records(data))
        for left in (data / "incoming").iterdir():
            left.unlink()  # what a crash interrupted: nobody else holds the lock
        store = open_store(objects, data)
        stack.callback(store.close)
        review_store = open_store(f"{objects.rstrip('/')}/review" if objects else None, data / "review")
        stack.callback(review_store.close)
        runtime = Runtime(
            data=data,
            database=records.database,
            store=store,
            review_store=review_store,
            key=records.key,
            signal=FeedSignal(records.serial),
        )
        runtime.metrics.feed_serial.set(records.serial)
        yield runtime
        verify.write_checkpoint(runtime)


@dataclass(frozen=True)
class Records:
    """A catalog's database and key without its objects, and the feed's last serial."""

    data: Path
    database: Database
    key: SigningKey
    serial: int


@contextmanager
def open_records(data: Path) -> Iterator[Records]:
    """The records of the catalog that is in the folder ``data`` and is not being served.

    Raises :class:`OpenshelfError` when there is none, when it is served, or when it cannot be used.
    """
    if not (data / DATABASE_NAME).is_file() or not (data / "catalog.key").is_file():
        raise UsageError(
            "no_catalog",
            f"There is no catalog in {data}",
            f"Put {DATABASE_NAME} and catalog.key of the backup there, or name another folder with --data.",
        )
    with _open_records(data) as records:
        yield records


@contextmanager
def _open_records(data: Path) -> Iterator[Records]:
    with _lock(data):
        key = _load_key(data / "catalog.key")
        database = Database(make_engine(sqlite_url(data / DATABASE_NAME)))
        try:
            yield Records(data, database, key, _prepare(database, data / DATABASE_NAME))
        finally:
            database.close()


def _load_key(path: Path) -> SigningKey:
    try:
        return SigningKey.load_or_create(path)
    except (ValueError, OSError) as error:
        raise OpenshelfError(
            "bad_key", f"The catalog's key {path} cannot be read", "Restore it from a backup: nodes know only this key."
        ) from error


def _prepare(database: Database, path: Path) -> int:
    """Migrate the database; the feed's last serial."""
    try:
        migrate(database.engine)
        with database.read() as session:
            return feed.state(session)[1]
    except DBAPIError as error:
        raise OpenshelfError(
            "bad_database",
            f"The database {path} cannot be used: {error.orig}",
            "Check the disk and the rights; restore it from a backup if it is damaged.",
        ) from error


def _make_folders(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("incoming", "manifests", "review"):
            (data / name).mkdir(exist_ok=True, mode=0o700)
        # SQLite would give it the rights of the umask; its side files take over the database's.
        os.close(os.open(data / DATABASE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise OpenshelfError(
            "bad_data_folder",
            f"The data folder {data} cannot be used: {error.strerror}",
            "Name another with --data, or make it writable.",
        ) from error


@contextmanager
def _lock(data: Path) -> Iterator[None]:
    descriptor = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise OpenshelfError(
                "data_in_use",
                f"Another catalog is serving {data}",
                "Stop it first, or name another folder with --data.",
            ) from error
        yield
    finally:
        os.close(descriptor)
