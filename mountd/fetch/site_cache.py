"""A site cache: a server near the node that answers object reads as the catalog would, with the bytes themselves.

It is sent the node's token, as it has to ask the catalog with it whether the node may read the object.
"""

from __future__ import annotations

from catalog.client.body import BROKEN, Body, discard
from catalog.client.objects import problem_of
from catalog.client.session import Session, reason_of
from openshelf.errors import OpenshelfError


class SiteCacheFailed(OpenshelfError):
    """A site cache did not answer with the bytes that were asked for."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__("site_cache_failed", f"The site cache {url} failed: {reason}", "See OPENSHELF_PROXIES.")


class SiteCache:
    """Reads objects from the site cache at ``url`` as the holder of ``token``. Thread-safe."""

    kind = "site_cache"

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        self.url = url
        self._session = Session(url, token, timeout_s)

    def open_object(
        self, sha256: str, start: int, length: int, *, timeout_s: float | None = None, anew: bool = False
    ) -> Body:
        """See :class:`mountd.fetch.route.ObjectSource`. A redirect is a failure: the cache has to follow it itself."""
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        if anew:
            headers["Cache-Control"] = "no-cache"
        limit_s = min(timeout_s or self._session.timeout_s, self._session.timeout_s)
        try:
            answer = self._session.send("GET", f"/v1/objects/{sha256}", headers=headers, timeout_s=limit_s)
        except BROKEN as error:
            raise SiteCacheFailed(self.url, reason_of(error)) from None
        problem = f"HTTP status {answer.status}" if answer.status >= 300 else problem_of(answer, start, length)
        if problem is not None:
            discard(answer)
            raise SiteCacheFailed(self.url, problem)
        return Body(answer, length, self.kind, limit_s)

    def close(self) -> None:
        """Close every idle connection."""
        self._session.close()
