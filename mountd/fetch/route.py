"""From which source a range is asked: site caches in their order, then the catalog; the slow and failing ones less."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from catalog.client.body import Body
from catalog.client.errors import Forbidden, InvalidRequest, NotFound, RedirectRefused, Unauthorised
from mountd.fetch.breaker import Breaker
from mountd.fetch.counters import Counters
from mountd.fetch.hedge import NoAnswer, Race
from mountd.fetch.latency import Latency
from mountd.fetch.proxies import Proxies
from mountd.fetch.site_cache import SiteCache
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.fetch")

LEAST_HEDGE_S = 0.3
UNKNOWN_HEDGE_S = 2.0
"""When the second request is sent while too little is known of the source."""
HEDGED_SHARE = 0.05
HEDGED_AT_LEAST = 2
STALL_FACTOR = 8
"""A source stalls when it is silent for this many times its usual slowest answer, within these bounds:"""
LEAST_STALL_S, MOST_STALL_S = 3.0, 15.0
FINAL = (Unauthorised, Forbidden, NotFound, InvalidRequest, RedirectRefused)
"""Answers of the catalog that another attempt will not change."""


class ObjectSource(Protocol):
    """Where objects are read: the catalog (:class:`catalog.client.Client`) or a site cache."""

    def open_object(
        self, sha256: str, start: int, length: int, *, timeout_s: float | None = None, anew: bool = False
    ) -> Body:
        """``length`` bytes from byte ``start`` of the object, still to be read; OpenshelfError if not.

        ``timeout_s``: how long it may be silent. ``anew``: not from a cache, whose bytes were wrong.
        """


@dataclass(slots=True, eq=False)
class Source:
    """A source and what is known of it."""

    reads: ObjectSource
    name: str
    breaker: Breaker
    latency: Latency = field(default_factory=Latency)

    def stall_s(self) -> float:
        """How long it may be silent."""
        slowest = self.latency.p99()
        return MOST_STALL_S if slowest is None else min(max(slowest * STALL_FACTOR, LEAST_STALL_S), MOST_STALL_S)

    def hedge_s(self) -> float:
        """After how long without an answer a second request is sent."""
        slowest = self.latency.p99()
        return UNKNOWN_HEDGE_S if slowest is None else max(slowest, LEAST_HEDGE_S)


class Route:
    """The sources of one node in their order. Thread-safe."""

    def __init__(self, sources: Sequence[Source], counters: Counters) -> None:
        self.counters = counters
        self._sources = tuple(sources)

    @classmethod
    def plan(
        cls,
        proxies: Proxies,
        catalog: ObjectSource,
        make_cache: Callable[[str], SiteCache],
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> Route:
        """The route that ``OPENSHELF_PROXIES`` describes. Each node begins at another member of a group."""
        caches: list[str] = []
        for group in proxies.groups:
            first = random.randrange(len(group))  # noqa: S311 (spreading load is no secret)
            caches += [*group[first:], *group[:first]]
        sources = [Source(make_cache(url), f"site cache {url}", Breaker(3, 2.0, 120.0, clock)) for url in caches]
        if proxies.direct:
            sources.append(Source(catalog, "the catalog", Breaker(8, 0.5, 5.0, clock)))
        else:  # nobody else can answer instead of the last one: it is never left alone for long
            sources[-1].breaker = Breaker(8, 0.5, 5.0, clock)
        return cls(sources, counters)

    def choose(self, skip: Collection[Source] = ()) -> Source | None:
        """The first source that may be asked now and is not to be skipped."""
        return next((each for each in self._sources if each not in skip and each.breaker.allows()), None)

    def has_other(self, skip: Collection[Source]) -> bool:
        """Whether there is a source that may be asked now beside those to skip."""
        return any(each not in skip and each.breaker.may_allow() for each in self._sources)

    def failed(self, source: Source, error: OpenshelfError) -> None:
        """A source did not answer, broke off or gave wrong bytes."""
        if isinstance(error, FINAL):
            return  # it is well: it has refused
        if source.breaker.failed():
            self.counters.add("breaker_open")
            log.warning("For a while %s is not asked: %s", source.name, error.message)

    def open(
        self, source: Source, sha256: str, start: int, length: int, *, within_s: float, anew: bool = False
    ) -> tuple[Source, Body]:
        """Ask ``source``, and a second time (the next source if there is one) when the answer is slow to begin.

        Raises the OpenshelfError of the source that failed first; failures are noted with their sources.
        """
        race, asked = Race(), [source]
        end = time.monotonic() + within_s

        def ask(other: Source) -> None:
            def attempt() -> Body:
                started = time.monotonic()
                limit_s = min(other.stall_s(), max(within_s, 0.1))
                body = other.reads.open_object(sha256, start, length, timeout_s=limit_s, anew=anew)
                other.latency.add(time.monotonic() - started)
                return body

            self.counters.add("fetch_requests")
            race.start(attempt)

        ask(source)
        won = race.wait(min(source.hedge_s(), within_s))
        if won is None and race.undecided and self._may_hedge():
            self.counters.add("fetch_hedged")
            asked.append(self.choose(skip=(source,)) or source)
            ask(asked[1])
        if won is None:
            won = race.wait(max(end - time.monotonic(), 0.0))
        race.end(won[1] if won else None)
        errors = race.errors()
        for number, error in errors:
            self.failed(asked[number], error)
        if won is None:
            if not errors:
                errors = [(0, NoAnswer(within_s))]
                self.failed(source, errors[0][1])
            raise errors[0][1]
        return asked[won[0]], won[1]

    def _may_hedge(self) -> bool:
        limit = HEDGED_AT_LEAST + HEDGED_SHARE * self.counters["fetch_requests"]
        return self.counters["fetch_hedged"] < limit

    def close(self) -> None:
        """Close the connections to site caches."""
        for source in self._sources:
            if isinstance(source.reads, SiteCache):
                source.reads.close()
