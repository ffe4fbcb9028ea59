"""Sources that are down, slow, wrong or silent: what a reader gets then, and what the node remembers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from catalog.client import Client
from catalog.client.body import Body
from mountd.fetch import route as routes
from mountd.fetch.counters import Counters
from mountd.fetch.fetcher import Fetcher, FetchFailed
from mountd.fetch.limits import Bandwidth
from mountd.fetch.proxies import Proxies, parse
from mountd.fetch.route import Route
from mountd.fetch.site_cache import SiteCache
from openshelf.units import KIB, MIB
from tests.support.faulty_store import FaultyStore
from tests.support.releases import pattern
from tests.support.s3_server import free_ports
from tests.support.scripted_http import Asked, Reply, ScriptedServer, ranged

CONTENT = pattern(300 * KIB, 7)
DIGEST = bytes(range(32))
TOKEN = "osk_" + "t" * 22 + "_" + "t" * 43
MakeFetcher = Callable[..., Fetcher]


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    with FaultyStore({DIGEST.hex(): CONTENT}) as made:
        yield made


@pytest.fixture
def make_fetcher(store: FaultyStore) -> Iterator[MakeFetcher]:
    """Makes fetchers by way of ``proxies`` from the store, as from a catalog that has the bytes itself."""
    with ExitStack() as stack:

        def make(proxies: str = "", *, timeout_s: float = 1.0, deadline_s: float = 5.0) -> Fetcher:
            client = stack.enter_context(Client(store.url, TOKEN, timeout_s=timeout_s))
            counters = Counters()
            route = Route.plan(parse(proxies), client, lambda url: SiteCache(url, TOKEN, timeout_s), counters)
            fetcher = Fetcher(client, counters, deadline_s, route=route)
            stack.callback(fetcher.close)
            stack.callback(fetcher.stop)
            return fetcher

        yield make


def read(fetcher: Fetcher, start: int = 0, length: int = len(CONTENT)) -> bytes:
    buffer = bytearray(length)
    fetcher.read(DIGEST, start, memoryview(buffer))
    return bytes(buffer)


@pytest.fixture
def quick_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source is stalled after a second."""
    monkeypatch.setattr(routes, "MOST_STALL_S", 1.0)


def dead_address() -> str:
    return f"http://127.0.0.1:{free_ports(1)[0]}"


@pytest.mark.parametrize("fault", ["error", "short", "silent"])
def test_a_source_that_fails_a_few_times_is_asked_again(
    store: FaultyStore, make_fetcher: MakeFetcher, fault: str
) -> None:
    store.faults.extend([fault, fault])  # type: ignore[list-item]
    fetcher = make_fetcher()
    assert read(fetcher, 100, 200_000) == CONTENT[100:200_100]
    counted = dict(fetcher.counters.items())
    assert counted["bytes_fetched"] == counted["bytes_from_catalog"] == 200_000
    assert counted["chunk_latency_count"] == 1
    assert counted["fetch_requests"] == len(store.requests)


@pytest.mark.usefixtures("quick_stall")
def test_a_source_that_drips_is_left_for_another_answer(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    store.faults.append("drip")
    fetcher = make_fetcher(timeout_s=10.0)
    started = time.monotonic()
    assert read(fetcher) == CONTENT
    assert time.monotonic() - started < 5, "at 10 bytes a second it would have taken hours"
    assert fetcher.counters["fetch_retries"] == 1


def test_a_broken_answer_is_continued_where_it_stopped(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    store.faults.append("short")
    parts = [bytes(part) for part in make_fetcher().parts(DIGEST, 0, len(CONTENT), memoryview(bytearray(64 * KIB)))]
    assert b"".join(parts) == CONTENT
    assert [start for _, start, _ in store.requests] == [0, 2 * 64 * KIB], "half of it came, in whole parts"


def test_a_deadline_ends_it_with_the_digest_and_the_reason(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    store.always = "error"
    fetcher = make_fetcher(deadline_s=0.5)
    started = time.monotonic()
    with pytest.raises(FetchFailed, match=DIGEST.hex()) as caught:
        read(fetcher)
    assert "500" in caught.value.message
    assert time.monotonic() - started < 2


def test_what_the_catalog_refuses_is_not_asked_again(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    store.always = "missing"
    with pytest.raises(FetchFailed, match="404"):
        read(make_fetcher())
    assert len(store.requests) == 1


def test_a_site_cache_is_asked_with_the_token_and_the_range_and_the_catalog_is_not(
    store: FaultyStore, make_fetcher: MakeFetcher
) -> None:
    with ScriptedServer(lambda asked: ranged(CONTENT, asked)) as cache:
        fetcher = make_fetcher(f"{cache.url};DIRECT")
        assert read(fetcher, 5, 1000) == CONTENT[5:1005]
        (asked,) = cache.asked
        assert (asked.method, asked.path) == ("GET", f"/v1/objects/{DIGEST.hex()}")
        assert (asked.headers["range"], asked.headers["authorization"]) == ("bytes=5-1004", f"Bearer {TOKEN}")
        assert "cache-control" not in asked.headers
    assert store.requests == []
    assert fetcher.counters["bytes_from_site_cache"] == 1000


@pytest.mark.parametrize(
    "reply",
    [Reply(302, {"Location": "http://127.0.0.1:1/x"}), Reply(403), Reply(404), Reply(500), Reply(200, {}, b"short")],
)
def test_whatever_a_site_cache_answers_but_the_bytes_the_catalog_is_asked_next(
    store: FaultyStore, make_fetcher: MakeFetcher, reply: Reply
) -> None:
    with ScriptedServer(lambda _: reply) as cache:
        assert read(make_fetcher(f"{cache.url};DIRECT")) == CONTENT
        assert (len(cache.asked), len(store.requests)) == (1, 1)


def test_a_site_cache_that_is_down_is_passed_over_and_then_left_alone(
    store: FaultyStore, make_fetcher: MakeFetcher, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with ScriptedServer(lambda asked: ranged(CONTENT, asked)) as second:
        fetcher = make_fetcher(f"{dead_address()};{second.url};DIRECT")
        for _ in range(6):
            assert read(fetcher) == CONTENT
        assert len(second.asked) == 6
        assert fetcher.counters["breaker_open"] == 1
        assert fetcher.counters["fetch_retries"] == 3, "then it was not asked any more"
    assert "is not asked" in caplog.text
    assert TOKEN not in caplog.text
    assert store.requests == []


def test_when_all_site_caches_are_down_the_catalog_is_read(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    assert read(make_fetcher(f"{dead_address()}|{dead_address()};{dead_address()};DIRECT")) == CONTENT
    assert len(store.requests) == 1


def test_without_direct_the_catalog_is_never_read(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    with pytest.raises(FetchFailed):
        read(make_fetcher(dead_address(), deadline_s=0.5))
    assert store.requests == []


def test_nodes_share_the_members_of_a_group_among_them(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    with ScriptedServer(lambda asked: ranged(CONTENT, asked)) as one, ScriptedServer(one.answer) as other:
        for _ in range(24):
            read(make_fetcher(f"{one.url}|{other.url};DIRECT"), 0, 10)
        assert one.asked and other.asked, "one in eight million runs would not"
        assert len(one.asked) + len(other.asked) == 24
    assert store.requests == []


def test_wrong_bytes_are_asked_anew_and_then_of_the_next_source(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    wrong = bytes(len(CONTENT))
    with ScriptedServer(lambda asked: ranged(wrong, asked)) as cache:
        fetcher = make_fetcher(f"{cache.url};DIRECT")
        buffer = bytearray(1000)
        fetcher.read(DIGEST, 0, memoryview(buffer), right=lambda: bytes(buffer) == CONTENT[:1000])
        assert [asked.headers.get("cache-control") for asked in cache.asked] == ["no-cache"]
    assert fetcher.counters["chunks_corrupt"] == 1
    assert len(store.requests) == 1


def test_wrong_bytes_of_every_source_are_an_error(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    with pytest.raises(FetchFailed, match="wrong bytes"):
        make_fetcher().read(DIGEST, 0, memoryview(bytearray(1000)), right=lambda: False)


def test_a_catalog_that_comes_back_is_read_again_soon(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    store.always = "error"
    fetcher = make_fetcher(deadline_s=2.0)
    with pytest.raises(FetchFailed):
        read(fetcher)
    store.always = None
    fetcher.deadline_s = 10.0
    started = time.monotonic()
    assert read(fetcher) == CONTENT
    assert time.monotonic() - started < 8


def test_a_second_request_wins_when_the_first_hangs(
    make_fetcher: MakeFetcher, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "UNKNOWN_HEDGE_S", 0.3)
    store.faults.append("silent")
    fetcher = make_fetcher(timeout_s=20.0, deadline_s=20.0)
    started = time.monotonic()
    assert read(fetcher) == CONTENT
    assert time.monotonic() - started < 10, "the first would have said nothing for 20 s"
    assert (fetcher.counters["fetch_hedged"], fetcher.counters["fetch_retries"]) == (1, 0)


def test_second_requests_are_few(
    make_fetcher: MakeFetcher, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "UNKNOWN_HEDGE_S", 0.0)
    store.delay_s = 0.02
    fetcher = make_fetcher()
    for _ in range(20):
        read(fetcher, 0, 10)
    assert fetcher.counters["fetch_hedged"] <= 4, "two, and one in twenty"


def test_no_thread_is_kept_by_a_source_that_never_answers(store: FaultyStore, make_fetcher: MakeFetcher) -> None:
    store.always = "silent"
    fetcher = make_fetcher(timeout_s=20.0, deadline_s=1.0)
    started = time.monotonic()
    with pytest.raises(FetchFailed):
        read(fetcher)
    assert time.monotonic() - started < 5


def test_bandwidth_is_taken_before_bytes_are_read(store: FaultyStore) -> None:
    taken: list[tuple[int, bool]] = []

    class Noting(Bandwidth):
        def take(self, count: int, urgent: Callable[[], bool] = lambda: True) -> None:
            taken.append((count, urgent()))

    with Client(store.url, TOKEN, timeout_s=1.0) as client:
        fetcher = Fetcher(client, Counters(), bandwidth=Noting(lambda: None))
        buffer = memoryview(bytearray(len(CONTENT)))
        assert b"".join(map(bytes, fetcher.parts(DIGEST, 0, len(CONTENT), buffer, lambda: False))) == CONTENT
    assert sum(count for count, _ in taken) == len(CONTENT)
    assert {urgent for _, urgent in taken} == {False}


def test_while_paused_a_read_fails_at_once_and_says_why(store: FaultyStore) -> None:
    with Client(store.url, TOKEN, timeout_s=1.0) as client:
        fetcher = Fetcher(client, Counters(), bandwidth=Bandwidth(lambda: 0))
        with pytest.raises(FetchFailed, match="paused"):
            read(fetcher)


def test_the_address_in_the_store_is_asked_once_for_many_ranges_and_again_when_it_is_refused() -> None:
    with ScriptedServer(lambda asked: ranged(CONTENT, asked), host="127.0.0.2") as s3:
        location = f"{s3.url}/bucket/x?X-Amz-Signature=secret"
        catalog = ScriptedServer(lambda _: Reply(307, {"Location": location}))
        with catalog, Client(catalog.url, TOKEN, timeout_s=2.0) as client:
            client.object_hosts = frozenset({s3.netloc})
            fetcher = Fetcher(client, Counters())
            for start in range(0, 50_000, 10_000):
                assert read(fetcher, start, 10_000) == CONTENT[start : start + 10_000]
            assert (len(catalog.asked), len(s3.asked)) == (1, 5)
            refused = threading.Event()

            def answer(asked: Asked) -> Reply:
                if refused.is_set():
                    return ranged(CONTENT, asked)
                refused.set()
                return Reply(403)

            s3.answer = answer
            assert read(fetcher, 7, 100) == CONTENT[7:107]
            assert len(catalog.asked) == 2
            assert fetcher.counters["bytes_from_store"] == 50_100


def test_one_connection_serves_many_ranges() -> None:
    ports: set[int] = set()
    content = pattern(2 * MIB, 3)
    server = ScriptedServer(lambda asked: ranged(content, asked))
    with server, Client(server.url, None, timeout_s=2.0) as client:
        buffer = memoryview(bytearray(MIB))
        for start in (0, MIB, 5):
            body: Body = client.open_object(DIGEST.hex(), start, MIB)
            ports.add(body._socket.getsockname()[1])  # type: ignore[union-attr]
            assert body.read_into(buffer[:1000]) == 1000
            assert body.read_into(buffer[1000:]) == MIB - 1000
            body.close()
            assert bytes(buffer) == content[start : start + MIB]
    assert len(ports) == 1


def test_a_route_without_site_caches_is_the_catalog_alone() -> None:
    class Nothing:
        def open_object(self, *_: object, **__: object) -> Body:
            raise AssertionError

    source = Nothing()
    route = Route.plan(Proxies(), source, lambda url: SiteCache(url, None, 1.0), Counters())
    chosen = route.choose()
    assert chosen is not None and chosen.reads is source
    assert not route.has_other({chosen})
