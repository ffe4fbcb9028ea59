"""Ranges of objects from the sources of the route, again and again up to a deadline."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator

from catalog.client.body import Body
from catalog.client.errors import ReadFailed
from mountd.fetch.counters import Counters
from mountd.fetch.latency import histogram
from mountd.fetch.limits import Bandwidth, Paused
from mountd.fetch.proxies import Proxies
from mountd.fetch.route import FINAL, ObjectSource, Route, Source
from mountd.fetch.site_cache import SiteCache
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.fetch")

DEADLINE_S = 30.0
FAIL_AGAIN_S = 5.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
MOST_REQUESTS = 16
"""Requests at once, of all files together."""
__all__ = ["Counters", "FetchFailed", "Fetcher", "ObjectSource"]


class FetchFailed(OpenshelfError):
    """Bytes could not be had in time, or not unchanged."""


class Fetcher:
    """Reads ranges of objects, until ``deadline_s`` after the first attempt.

    ``fail_again_s``: for this long after a chunk did not come, whoever asks for it is refused at once. (The kernel asks
    for each page of a failed request anew, and a program that reads on would wait the whole time again.)
    ``route``: where to ask; without one ``source`` alone. ``bandwidth``: what may be fetched in a second.
    """

    def __init__(
        self,
        source: ObjectSource,
        counters: Counters,
        deadline_s: float = DEADLINE_S,
        fail_again_s: float = FAIL_AGAIN_S,
        *,
        route: Route | None = None,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        self.counters = counters
        self.deadline_s = deadline_s
        self.fail_again_s = fail_again_s
        self._route = route or Route.plan(Proxies(), source, _no_cache, counters)
        self._bandwidth = bandwidth
        self._requests = threading.BoundedSemaphore(MOST_REQUESTS)
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Begin no further attempt."""
        self._stopped.set()

    def close(self) -> None:
        """Close the connections that are the fetcher's own."""
        self._route.close()

    def read(self, stored: bytes, start: int, buffer: memoryview, *, right: Callable[[], bool] | None = None) -> None:
        """Fill ``buffer`` from byte ``start`` of the object with digest ``stored``; :class:`FetchFailed` if not.

        ``right`` says whether the bytes in the buffer are the right ones: when they are not, the next source is asked,
        until each was.
        """
        skip: set[Source] = set()
        while True:
            last: list[Source] = []
            for _ in self._parts(
                stored, start, len(buffer), lambda: buffer, _always, skip, last, anew=right is not None
            ):
                pass
            if right is None or right():
                return
            self.counters.add("chunks_corrupt")
            wrong = FetchFailed("wrong_bytes", f"object {stored.hex()} came with wrong bytes")
            self._route.failed(last[-1], wrong)
            skip.add(last[-1])
            if not self._route.has_other(skip):
                raise wrong

    def parts(
        self,
        stored: bytes,
        start: int,
        length: int,
        buffer: memoryview | Callable[[], memoryview],
        urgent: Callable[[], bool] = lambda: True,
    ) -> Iterator[memoryview]:
        """``length`` bytes from byte ``start`` of the object, in parts of the size of ``buffer`` (the last is shorter).

        Each part lies in ``buffer`` until the next is asked for, or in one of its own when ``buffer`` gives buffers;
        the deadline is counted anew from each part on. ``urgent``: whether a reader waits for it, who goes first where
        bandwidth is limited. Raises :class:`FetchFailed`.
        """
        take = buffer if callable(buffer) else lambda: buffer
        return self._parts(stored, start, length, take, urgent, set(), [])

    def _parts(
        self,
        stored: bytes,
        start: int,
        length: int,
        take: Callable[[], memoryview],
        urgent: Callable[[], bool],
        skip: set[Source],
        last: list[Source],
        *,
        anew: bool = False,
    ) -> Iterator[memoryview]:
        """As :meth:`parts`; never from the sources to ``skip``. ``last`` gets the sources in the order they served."""
        stop = start + length
        attempt, end = 0, time.monotonic() + self.deadline_s
        tried: set[Source] = set()
        while start < stop:
            source, asked = self._route.choose(skip | tried), time.monotonic()
            try:
                if source is None:
                    raise ReadFailed(stored.hex(), "no source is to be asked at the moment")
                with self._requests:
                    within_s = max(end - time.monotonic(), 0.1)
                    source, body = self._route.open(
                        source, stored.hex(), start, stop - start, within_s=within_s, anew=anew
                    )
                    last.append(source)
                    for part in self._read(body, stored, stop - start, take, urgent, source, asked):
                        start += len(part)
                        yield part
                        attempt, end = 0, time.monotonic() + self.deadline_s
            except Paused as error:
                raise FetchFailed("fetch_failed", f"Object {stored.hex()} is not read: {error.message}") from None
            except OpenshelfError as error:
                if source is not None:
                    tried.add(source)
                final = isinstance(error, FINAL)
                pause = 0.0
                if final or not self._route.has_other(skip | tried):
                    # Each source had its turn: from the first again, after a pause.
                    tried.clear()
                    pause = random.uniform(0.5, 1.0) * min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)  # noqa: S311
                    attempt += 1
                if final or time.monotonic() + pause > end or self._stopped.wait(pause):
                    raise FetchFailed(
                        "fetch_failed",
                        f"Object {stored.hex()} could not be read from byte {start} on ({stop - start} bytes): "
                        f"{error.message}",
                    ) from None
                self.counters.add("fetch_retries")

    def _read(
        self,
        body: Body,
        stored: bytes,
        length: int,
        take: Callable[[], memoryview],
        urgent: Callable[[], bool],
        source: Source,
        asked: float,
    ) -> Iterator[memoryview]:
        """The parts of one answer, asked for at the time ``asked``. What the source does wrong is noted with it."""
        bandwidth = self._bandwidth
        before = None if bandwidth is None else lambda count: bandwidth.take(count, urgent)
        try:
            while length:
                part = take()[:length]
                if body.read_into(part, before) < len(part):
                    broken = ReadFailed(stored.hex(), body.trouble)
                    self._route.failed(source, broken)
                    raise broken
                length -= len(part)
                took_s = time.monotonic() - asked
                self.counters.add_all(
                    [
                        ("bytes_fetched", len(part)),
                        (f"bytes_from_{body.kind}", len(part)),
                        *histogram(took_s),
                    ]
                )
                source.breaker.succeeded()
                yield part
                asked = time.monotonic()
        finally:
            body.close()


def _always() -> bool:
    return True


def _no_cache(url: str) -> SiteCache:
    raise AssertionError(f"no site cache was wanted: {url}")
