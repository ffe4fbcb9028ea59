"""The pieces of fetching by themselves: addresses, breaker, bandwidth, percentiles, buffers, kept addresses."""

from __future__ import annotations

import mmap
from datetime import UTC, datetime

import pytest

from catalog.client.redirect import Targets
from catalog.manifest import CHUNK_BYTES
from mountd.fetch.breaker import PROBE_S, Breaker
from mountd.fetch.buffers import ChunkBuffers
from mountd.fetch.latency import Latency, histogram
from mountd.fetch.limits import Bandwidth, Paused
from mountd.fetch.memory import ChunkMemory
from mountd.fetch.proxies import Proxies, parse
from openshelf.errors import UsageError
from openshelf.units import MIB


class Clock:
    """A clock that moves when it is told to, or when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_site_caches_are_written_as_cvmfs_users_know_them() -> None:
    assert parse("") == parse("DIRECT") == Proxies()
    assert parse("http://a:3128|http://b:3128;DIRECT") == Proxies((("http://a:3128", "http://b:3128"),), direct=True)
    assert parse(" http://a:3128 ; https://far/ ") == Proxies((("http://a:3128",), ("https://far",)), direct=False)


@pytest.mark.parametrize(
    "text",
    [
        "a:3128",
        "ftp://a:3128",
        "http://",
        "http://a:0",
        "http://a:99999",
        "http://a:3128/path",
        "http://a:3128?x",
        "http://user:secretword@a:3128",
        "DIRECT;http://a:3128",
        "http://a:3128|DIRECT",
        "http://a:3128;;DIRECT",
        ";",
    ],
)
def test_a_wrong_part_is_named_without_showing_a_password(text: str) -> None:
    with pytest.raises(UsageError, match="site caches") as caught:
        parse(text)
    assert "secretword" not in caught.value.line()


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through_after_growing_pauses() -> None:
    clock = Clock()
    breaker = Breaker(3, 1.0, 3.0, clock)
    assert [breaker.failed() for _ in range(3)] == [False, False, True]
    for pause_s in (1.0, 2.0, 3.0, 3.0):
        assert not breaker.allows()
        clock.now += pause_s - 0.01
        assert not breaker.may_allow()
        clock.now += 0.02
        assert breaker.may_allow()
        assert breaker.allows(), "the probe"
        assert not breaker.allows(), "one at a time"
        assert breaker.failed()
    clock.now += 3.01
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.allows() and breaker.allows()
    assert not breaker.failed(), "it counts from the beginning again"


def test_a_probe_of_which_nothing_is_heard_does_not_block_for_ever() -> None:
    clock = Clock()
    breaker = Breaker(1, 1.0, 1.0, clock)
    breaker.failed()
    clock.now += 1.1
    assert breaker.allows()
    clock.now += PROBE_S + 0.1
    assert breaker.allows()


@pytest.mark.parametrize("rate", [100_000, 10 * MIB])
def test_what_is_taken_keeps_to_the_rate(rate: int) -> None:
    clock = Clock()
    bandwidth = Bandwidth(lambda: rate, clock, clock.sleep)
    started, taken = clock.now, 0
    while clock.now - started < 20:
        bandwidth.take(rate // 7)
        taken += rate // 7
    assert rate * 19 <= taken <= rate * 21


def test_one_take_larger_than_the_bucket_passes_and_is_paid_for_afterwards() -> None:
    clock = Clock()
    bandwidth = Bandwidth(lambda: 1000, clock, clock.sleep)
    bandwidth.take(10_000)
    before = clock.now
    bandwidth.take(1)
    assert 9 <= clock.now - before <= 11


def test_a_rate_that_changes_holds_at_once() -> None:
    clock = Clock()
    rates: list[int | None] = [1000]

    def sleep(seconds: float) -> None:
        clock.now += seconds
        rates[0] = None

    bandwidth = Bandwidth(lambda: rates[0], clock, sleep)
    bandwidth.take(1_000_000)
    before = clock.now
    bandwidth.take(1_000_000)
    assert clock.now - before < 1
    rates[0] = 0
    with pytest.raises(Paused):
        bandwidth.take(1)


def test_what_a_reader_waits_for_goes_before_what_nobody_waits_for() -> None:
    clock = Clock()
    order: list[str] = []
    bandwidth = Bandwidth(lambda: 1000, clock, lambda seconds: sleep(seconds))

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if not order:
            order.append("asked")
            bandwidth.take(500, lambda: True)
            order.append("reader")

    bandwidth.take(1000, lambda: False)
    bandwidth.take(1000, lambda: False)
    order.append("background")
    assert order == ["asked", "reader", "background"]


def test_a_percentile_needs_enough_observations() -> None:
    latency = Latency()
    for _ in range(19):
        latency.add(0.1)
    assert latency.p99() is None
    latency.add(5.0)
    assert latency.p99() == 5.0
    for _ in range(480):
        latency.add(0.1)
    assert latency.p99() == 0.1


def test_a_bucket_counts_all_that_took_no_longer() -> None:
    counted = dict(histogram(0.2))
    assert counted["chunk_latency_le_250"] == counted["chunk_latency_le_30000"] == 1
    assert "chunk_latency_le_100" not in counted
    assert (counted["chunk_latency_count"], counted["chunk_latency_ms"]) == (1, 200)
    assert [name for name, _ in histogram(100.0)] == ["chunk_latency_count", "chunk_latency_ms"]


def test_a_buffer_is_used_again_when_nobody_holds_a_view_of_it() -> None:
    buffers = ChunkBuffers()
    first = buffers.take()
    assert len(first) == CHUNK_BYTES
    first[:5] = b"bytes"
    part = first[1:3]
    del first
    second = buffers.take()
    second[:5] = b"other"
    assert bytes(part) == b"yt", "still held by a part of it"
    assert buffers.in_use == 2
    del part
    assert buffers.in_use == 1
    third = buffers.take()
    assert bytes(third[:5]) == b"bytes", "the same pages"
    del second, third
    assert buffers.in_use == 0


def test_no_more_free_buffers_are_kept_than_wanted() -> None:
    buffers = ChunkBuffers(spare=2)
    held = [buffers.take() for _ in range(5)]
    del held
    assert len(buffers._free) == 2
    buffers.shrink()
    assert len(buffers._free) == 0


def test_memory_is_bounded_and_lets_go_what_was_read() -> None:
    memory = ChunkMemory(10 * CHUNK_BYTES)
    pages = mmap.mmap(-1, CHUNK_BYTES)
    for index in range(100):
        memory.put((b"file", index), memoryview(pages))
    kept = [index for index in range(100) if memory.get((b"file", index)) is not None]
    assert kept == list(range(90, 100))
    memory.was_read((b"file", 95), CHUNK_BYTES - 1, stored=True)
    assert memory.get((b"file", 95)) is not None
    memory.was_read((b"file", 95), 1, stored=False)
    assert memory.get((b"file", 95)) is not None, "nowhere else"
    memory.was_read((b"file", 95), 0, stored=True)
    assert memory.get((b"file", 95)) is None
    memory.forget(b"file", lambda index: index < 95)
    assert [index for index in range(100) if memory.get((b"file", index)) is not None] == [96, 97, 98, 99]


def test_an_address_is_kept_until_shortly_before_it_expires() -> None:
    clock = Clock()
    wall = datetime(2026, 11, 30, 12, 0, 20, tzinfo=UTC).timestamp()
    targets = Targets(clock, lambda: wall)
    targets.keep("/a", "http://s/b?X-Amz-Date=20261130T120000Z&X-Amz-Expires=60&X-Amz-Signature=x")
    targets.keep("/b", "http://s/b")
    targets.keep("/old", "http://s/b?X-Amz-Date=20261130T115900Z&X-Amz-Expires=60")
    assert targets.get("/old") is None
    clock.now += 29
    assert targets.get("/a") is not None
    clock.now += 2
    assert targets.get("/a") is None, "signed 20 s ago, valid for 60 s, 10 s of margin"
    clock.now += 18
    assert targets.get("/b") is not None
    clock.now += 2
    assert targets.get("/b") is None


def test_a_clock_that_is_behind_does_not_lengthen_an_address() -> None:
    clock = Clock()
    targets = Targets(clock, lambda: 0.0)
    targets.keep("/a", "http://s/b?X-Amz-Date=20261130T120000Z&X-Amz-Expires=60")
    clock.now += 50.1
    assert targets.get("/a") is None
