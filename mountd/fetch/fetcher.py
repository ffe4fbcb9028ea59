"""One range of one object from the store, with retries up to a deadline; and what was counted on the way."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from catalog.client.body import Body
from catalog.client.errors import Forbidden, InvalidRequest, NotFound, ReadFailed, RedirectRefused, Unauthorised
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.fetch")

DEADLINE_S = 30.0
FAIL_AGAIN_S = 5.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_FINAL = (Unauthorised, Forbidden, NotFound, InvalidRequest, RedirectRefused)
"""Answers that another attempt will not change."""


class ObjectSource(Protocol):
    """Where objects are read: :class:`catalog.client.Client`."""

    def open_object(self, sha256: str, start: int, length: int, timeout_s: float | None = None) -> Body:
        """``length`` bytes from byte ``start`` of the object, still to be read. OpenshelfError if not."""


class FetchFailed(OpenshelfError):
    """Bytes could not be had in time, or not unchanged."""


class Counters:
    """Named running totals. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Add to one total."""
        with self._lock:
            self._values[name] += amount

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._values[name]

    def items(self) -> tuple[tuple[str, int], ...]:
        """All totals by name, sorted."""
        with self._lock:
            return tuple(sorted(self._values.items()))


class Fetcher:
    """Reads ranges of objects, again and again until ``deadline_s`` after the first attempt.

    ``fail_again_s``: for this long after a chunk did not come, whoever asks for it is refused at once. (The kernel asks
    for each page of a failed request anew, and a program that reads on would wait the whole time again.)
    """

    def __init__(
        self,
        source: ObjectSource,
        counters: Counters,
        deadline_s: float = DEADLINE_S,
        fail_again_s: float = FAIL_AGAIN_S,
    ) -> None:
        self.counters = counters
        self.deadline_s = deadline_s
        self.fail_again_s = fail_again_s
        self._source = source
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Begin no further attempt."""
        self._stopped.set()

    def read(self, stored: bytes, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``start`` of the object with digest ``stored``; :class:`FetchFailed` if not."""
        for _ in self.parts(stored, start, len(buffer), buffer):
            pass

    def parts(
        self, stored: bytes, start: int, length: int, buffer: memoryview | Callable[[], memoryview]
    ) -> Iterator[memoryview]:
        """``length`` bytes from byte ``start`` of the object, in parts of the size of ``buffer`` (the last is shorter).

        Each part lies in ``buffer`` until the next is asked for, or in one of its own when ``buffer`` gives buffers;
        the deadline is counted anew from each part on. Raises :class:`FetchFailed`.
        """
        take = buffer if callable(buffer) else lambda: buffer
        stop = start + length
        attempt, end = 0, time.monotonic() + self.deadline_s
        while start < stop:
            self.counters.add("fetch_requests")
            try:
                body = self._source.open_object(stored.hex(), start, stop - start)
                try:
                    while start < stop:
                        part = take()[: stop - start]
                        if body.read_into(part) < len(part):
                            raise ReadFailed(stored.hex(), body.trouble)
                        start += len(part)
                        self.counters.add("bytes_fetched", len(part))
                        yield part
                        attempt, end = 0, time.monotonic() + self.deadline_s
                finally:
                    body.close()
            except OpenshelfError as error:
                pause = random.uniform(0.5, 1.0) * min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)  # noqa: S311
                final = isinstance(error, _FINAL)
                if final or time.monotonic() + pause > end or self._stopped.wait(pause):
                    raise FetchFailed(
                        "fetch_failed",
                        f"Object {stored.hex()} could not be read from byte {start} on ({stop - start} bytes): "
                        f"{error.message}",
                    ) from None
                attempt += 1
                self.counters.add("fetch_retries")
