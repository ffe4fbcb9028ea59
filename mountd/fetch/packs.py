"""Small files of one pack: one request brings a window of neighbours, each file then takes its part from memory.

Every file is still checked, written and sealed by itself; a window is only bytes not asked for twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mountd.fetch.fetcher import Fetcher

WINDOWS_KEPT = 8
"""Windows of up to :data:`mountd.releases.PACK_WINDOW_BYTES` in memory."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file's bytes are in the store: from byte ``offset`` of the object with digest ``stored``.

    ``reach``, for a file of a pack, gives the byte of the pack up to which neighbours may be fetched with it.
    """

    stored: bytes
    offset: int
    reach: Callable[[], int] | None = None


@dataclass(frozen=True, slots=True)
class _Window:
    stored: bytes
    start: int
    stop: int

    def covers(self, stored: bytes, start: int, stop: int) -> bool:
        return self.stored == stored and self.start <= start and stop <= self.stop


class PackWindows:
    """The most recent windows. Thread-safe; each is fetched once however many files of it are waited for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._coming: set[_Window] = set()
        self._kept: deque[tuple[_Window, bytearray]] = deque(maxlen=WINDOWS_KEPT)

    def holds(self, place: Place, size: int) -> bool:
        """Whether ``size`` bytes from the place on are here now."""
        with self._changed:
            return any(window.covers(place.stored, place.offset, place.offset + size) for window, _ in self._kept)

    def read(self, fetcher: Fetcher, place: Place, buffer: memoryview) -> None:
        """Fill ``buffer`` from the place on. Raises :class:`mountd.fetch.fetcher.FetchFailed`."""
        assert place.reach is not None
        start, stop = place.offset, place.offset + len(buffer)
        with self._changed:
            while True:
                for window, data in self._kept:
                    if window.covers(place.stored, start, stop):
                        buffer[:] = memoryview(data)[start - window.start : stop - window.start]
                        return
                if not any(window.covers(place.stored, start, stop) for window in self._coming):
                    break
                self._changed.wait()
            wanted = _Window(place.stored, start, max(stop, place.reach()))
            self._coming.add(wanted)
        content = bytearray(wanted.stop - wanted.start)
        came = False
        try:
            fetcher.read(place.stored, start, memoryview(content))
            came = True
        finally:
            with self._changed:
                self._coming.discard(wanted)
                if came:
                    self._kept.append((wanted, content))
                self._changed.notify_all()
        buffer[:] = memoryview(content)[: len(buffer)]
