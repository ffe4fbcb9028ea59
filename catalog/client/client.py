"""The client as the other packages see it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from catalog.client.drafts import Drafts
from catalog.client.objects import ObjectReading
from catalog.client.people import People
from catalog.client.reviews import Reviews
from catalog.client.session import Session
from catalog.client.usage import UsageReports


class Client(Drafts, Reviews, UsageReports, ObjectReading, People):
    """Talks to the catalog at ``url`` as the holder of ``token``. Safe to use from several threads at once.

    ``timeout_s`` is how long the catalog may be silent; requests that may be repeated are tried four times with
    short random pauses when the connection breaks or the answer is 502, 503 or 504. Use as a context manager, or
    :meth:`close`.
    """

    def __init__(self, url: str, token: str | None, *, timeout_s: float = 30.0) -> None:
        super().__init__()
        self._session = Session(url, token, timeout_s)

    @property
    def url(self) -> str:
        """The catalog's address."""
        return self._session.url

    def is_loopback(self) -> bool:
        """Whether the catalog is on this machine."""
        return self._session.is_loopback()

    def close(self) -> None:
        """Close every connection."""
        self._session.close()
        self._close_stores()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
