"""Room in the cache: what is counted, what may stay, what goes when something new comes, and removing it."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator

from mountd.cache.index import Index, IndexRow
from mountd.cache.layout import Layout
from mountd.cache.partial import remove_partial
from mountd.cache.trouble import Trouble
from openshelf.units import format_size

log = logging.getLogger("openshelf.mount.cache")

LOW_WATER = 0.9
"""Eviction goes on until this share of the limit is in use."""
EVICTION_PAGE = 256


class Room:
    """The account of one cache. ``lock`` guards it together with the index's rows and the files' names."""

    def __init__(self, layout: Layout, index: Index, trouble: Trouble, limit_bytes: int) -> None:
        self.lock = threading.RLock()
        self.limit_bytes = limit_bytes
        self.partial_bytes: dict[bytes, int] = {}
        """What each partial file takes, with its map."""
        self.unsettled: dict[bytes, object] = {}
        """Small files with their sealed name, or about to get it, whose bytes may not be on the disk: a token each."""
        self.evictions = 0
        self.total_bytes = 0
        self._layout = layout
        self._index = index
        self._trouble = trouble
        self._held: dict[bytes, int] = {}

    def hold(self, sha256: bytes) -> None:
        """Keep a file from eviction until as many calls of :meth:`unhold`."""
        with self.lock:
            self._held[sha256] = self._held.get(sha256, 0) + 1

    def unhold(self, sha256: bytes) -> None:
        """Undo one :meth:`hold`."""
        with self.lock:
            left = self._held[sha256] - 1
            if left:
                self._held[sha256] = left
            else:
                del self._held[sha256]

    def reserve(self, needed: int) -> bool:
        """Count ``needed`` bytes more, evicting for them; False when they do not fit, and says so."""
        with self.lock:
            if self.total_bytes + needed > self.limit_bytes and not self._evict(needed):
                self._trouble.say(f"the cache's {format_size(self.limit_bytes)} are taken by files in use")
                return False
            self.total_bytes += needed
            return True

    def give_back(self, sha256: bytes, unused: int) -> None:
        """Count ``unused`` bytes of a partial file no longer: they could not be written."""
        with self.lock:
            if sha256 in self.partial_bytes:
                self.partial_bytes[sha256] -= unused
                self.total_bytes -= unused

    def _evict(self, needed: int) -> bool:
        """Remove least recently used files until ``needed`` fits under the low-water mark; whether it fits at all."""
        target = int(self.limit_bytes * LOW_WATER) - needed
        try:
            self._index.flush()
            for row in self.by_last_use():
                if self.total_bytes <= target:
                    break
                if row.sha256 not in self._held:
                    self.remove(row)
                    self.evictions += 1
        except (OSError, sqlite3.Error) as error:
            self._trouble.note(error)
        return self.total_bytes + needed <= self.limit_bytes

    def by_last_use(self) -> Iterator[IndexRow]:
        """All rows of the index, least recently used first."""
        place = (-1, b"")
        while page := self._index.oldest(EVICTION_PAGE, place):
            for use, row in page:
                place = (use, row.sha256)
                yield row

    def remove(self, row: IndexRow) -> None:
        """Remove a file and its row. The lock is held. Raises OSError, sqlite3.Error."""
        if (self.unsettled.pop(row.sha256, None) is not None) or row.sealed:
            freed = row.disk_bytes
            self._layout.object_path(row.sha256).unlink(missing_ok=True)
        else:
            remove_partial(self._layout.partial_path(row.sha256))
            freed = self.partial_bytes.pop(row.sha256, 0)
        self._index.remove(row.sha256)
        self.total_bytes -= freed

    def discard(self, sha256: bytes) -> None:
        """Remove a file whatever holds it."""
        try:
            with self.lock:
                row = self._index.get(sha256)
                if row is not None:
                    self.remove(row)
        except (OSError, sqlite3.Error) as error:
            self._trouble.note(error)

    def forget_if_gone(self, sha256: bytes) -> None:
        """Drop the row of a sealed file that somebody removed from the disk."""
        try:
            with self.lock:
                row = self._index.get(sha256)
                if row is not None and row.sealed and not self._layout.object_path(sha256).exists():
                    log.warning("The cached file %s is gone from the disk; it will be fetched again.", sha256.hex())
                    self._index.remove(sha256)
                    self.total_bytes -= row.disk_bytes
        except sqlite3.Error as error:
            self._trouble.note(error)
