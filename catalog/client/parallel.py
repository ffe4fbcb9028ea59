"""Work on many items with a few threads and a short queue, stopping at the first error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(threads: int, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """``work(item)`` for every item, in order, at most twice ``threads`` items ahead of what was taken.

    ``items`` is iterated in the caller's thread. At the first error what has not begun is dropped, what runs is
    awaited, and the error is raised.
    """
    flying: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                if len(flying) == 2 * threads:
                    yield flying.popleft().result()
                flying.append(pool.submit(work, item))
            while flying:
                yield flying.popleft().result()
        finally:
            for future in flying:
                future.cancel()
