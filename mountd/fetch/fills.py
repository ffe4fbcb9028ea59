"""The files being filled: one :class:`Fill` per content, however many handles are open."""

from __future__ import annotations

import threading

from mountd.cache.partial import FileSpec
from mountd.fetch.fill import Fill, Supply
from mountd.fetch.packs import Place


class Fills:
    """Gives out fills and closes each when its last handle is closed and nothing of it is on its way."""

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._lock = threading.Lock()
        self._fills: dict[bytes, tuple[Fill, int]] = {}

    def acquire(self, spec: FileSpec, place: Place) -> Fill:
        """The fill of a file; give it back with :meth:`release`. The file is kept from eviction meanwhile."""
        with self._lock:
            fill, users = self._fills.get(spec.sha256) or (None, 0)
            if fill is None:
                fill = Fill(spec, place, self._supply, self._finished)
                self._supply.cache.hold(spec.sha256)
            self._fills[spec.sha256] = (fill, users + 1)
            return fill

    def peek(self, sha256: bytes) -> Fill | None:
        """The fill of a file if there is one now."""
        with self._lock:
            found = self._fills.get(sha256)
            return None if found is None else found[0]

    def release(self, fill: Fill) -> None:
        """Give back what :meth:`acquire` gave."""
        with self._lock:
            known, users = self._fills[fill.spec.sha256]
            assert known is fill and users > 0
            self._fills[fill.spec.sha256] = (fill, users - 1)
        self._finished(fill)

    def _finished(self, fill: Fill) -> None:
        with self._lock:
            known, users = self._fills.get(fill.spec.sha256, (None, 0))
            if known is not fill or users or fill.busy:
                return
            del self._fills[fill.spec.sha256]
        fill.close()
        self._supply.cache.unhold(fill.spec.sha256)

    def close(self) -> None:
        """Close every fill; the pool is closed before, so that nothing runs."""
        with self._lock:
            left = [fill for fill, _ in self._fills.values()]
            self._fills.clear()
        for fill in left:
            fill.close()
            self._supply.cache.unhold(fill.spec.sha256)
