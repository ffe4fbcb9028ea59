"""What anybody with a token may read: releases, their files, search, and the signed feed."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from catalog.client.errors import BadAnswer
from catalog.client.models import FileInfo, ReleaseInfo
from catalog.client.paths import release_path
from catalog.client.session import Answer, Session
from catalog.names import ReleaseRef, parse_release
from catalog.signing import Signed

PAGE_ITEMS = 1000
_NEXT = re.compile(r'<([^>]*)>\s*;\s*rel="?next"?')


def next_cursor(answer: Answer) -> str | None:
    """The cursor of the following page, from the ``Link`` header (RFC 8288); None on the last page."""
    match = _NEXT.search(answer.headers.get("Link", ""))
    found = parse_qs(urlsplit(match.group(1)).query).get("cursor") if match else None
    return found[0] if found else None


class Reading:
    """The part of the client that reads what the catalog knows."""

    _session: Session

    def release(self, name: str | ReleaseRef) -> ReleaseInfo:
        """The release ``COLLECTION@VERSION``; a tag may stand for the version."""
        ref = parse_release(name) if isinstance(name, str) else name
        return ReleaseInfo.from_json(self._session.call("GET", release_path(ref)).json())

    def files(self, ref: ReleaseRef, limit: int = 10_000) -> list[FileInfo]:
        """The first ``limit`` files of a release in path order."""
        pages = self._pages(release_path(ref, "files"), "files", limit, {})
        return [FileInfo.from_json(item) for item in pages]

    def search(
        self, query: str = "", *, facets: Mapping[str, str] | None = None, limit: int = 50
    ) -> list[dict[str, Any]]:
        """Collections that match ``query`` and every facet, best first: ``collection``, ``title``, ``summary``, …"""
        asked: dict[str, str | int | float] = {"q": query, **(facets or {})}
        return list(self._pages("/v1/search", "collections", limit, asked))

    def collections(self, limit: int = 10_000) -> list[dict[str, Any]]:
        """The first ``limit`` collections in name order."""
        return list(self._pages("/v1/collections", "collections", limit, {}))

    def _pages(
        self, path: str, name: str, limit: int, query: Mapping[str, str | int | float]
    ) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        left = limit
        while left > 0:
            asked = {**query, "limit": min(left, PAGE_ITEMS)} | ({"cursor": cursor} if cursor else {})
            answer = self._session.call("GET", path, query=asked)
            items = answer.items(name)
            yield from items[:left]
            left -= len(items)
            cursor = next_cursor(answer)
            if cursor is None or not items:
                return

    def report(self, ref: ReleaseRef) -> str:
        """The review report of a release as Markdown."""
        answer = self._session.call("GET", release_path(ref, "report"), headers={"Accept": "text/markdown"})
        return answer.body.decode("utf-8", "replace")

    def release_record(self, ref: ReleaseRef) -> Signed:
        """``release.json`` in its envelope, not yet verified (purpose ``release``)."""
        return Signed.from_json(self._session.call("GET", release_path(ref, "release.json")).json())

    def public_key(self) -> bytes:
        """The catalog's raw public key as it says itself: compare its fingerprint before you believe it."""
        try:
            key = base64.b64decode(self._session.call("GET", "/v1/key").json()["key"], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise BadAnswer(self._session.url, "no public key") from error
        if len(key) != 32:
            raise BadAnswer(self._session.url, "no Ed25519 public key")
        return key

    def feed_head(self) -> Signed:
        """The signed head of the feed, not yet verified (purpose ``feed-head``)."""
        return Signed.from_json(self._session.call("GET", "/v1/feed/head").json())

    def feed_events(self, after: int, wait_s: float = 0, limit: int = 1000) -> list[Signed]:
        """Up to ``limit`` events after the serial number ``after``, not yet verified (purpose ``feed-event``).

        With ``wait_s`` the catalog holds its answer that long while there is none.
        """
        answer = self._session.call(
            "GET",
            "/v1/feed",
            query={"after": after, "wait": wait_s, "limit": limit},
            timeout_s=self._session.timeout_s + wait_s,
        )
        return [Signed.from_json(item) for item in answer.items("events")]

    def feed_snapshot(self) -> Signed:
        """Everything published and tagged at one serial number, not yet verified (purpose ``feed-snapshot``)."""
        return Signed.from_json(self._session.call("GET", "/v1/feed/snapshot").json())
