"""Everything one running catalog holds: handed to the endpoints, so that nothing is global."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.orm import Session

from catalog.database.engine import Database
from catalog.feed.signal import FeedSignal
from catalog.objects import ObjectStore
from catalog.objects.health import StoreHealth
from catalog.signing import SigningKey
from catalog.web.metrics import Metrics


def utc_now() -> datetime:
    """The time now, in UTC."""
    return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """``moment`` in UTC to the second, with ``Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Runtime:
    """The parts of a running catalog. ``review_store`` holds what no object address ever reaches."""

    data: Path
    database: Database
    store: ObjectStore
    review_store: ObjectStore
    key: SigningKey
    signal: FeedSignal
    metrics: Metrics = field(default_factory=Metrics)
    store_health: StoreHealth = field(default_factory=StoreHealth)
    clock: Callable[[], datetime] = utc_now

    def now(self) -> str:
        """The time now as RFC 3339."""
        return rfc3339(self.clock())

    @contextmanager
    def change(self) -> Iterator[Session]:
        """A write transaction; those who wait for the feed are woken once it is committed."""
        with self.database.write() as session:
            yield session
            serial = session.info.get("feed_serial")
        if serial is not None:
            self.metrics.feed_serial.set(serial)
            self.signal.advance(serial)

    @property
    def incoming(self) -> Path:
        """The folder for files that are being received or built."""
        return self.data / "incoming"

    @property
    def manifests(self) -> Path:
        """The folder of manifests, by digest."""
        return self.data / "manifests"
