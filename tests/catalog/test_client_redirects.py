"""Where a read may be redirected to, what travels there, and what never gets into a log or an error."""

from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from catalog.client import Client, ReadFailed, RedirectRefused, redirect
from catalog.client.session import addresses_of
from tests.support.scripted_http import Asked, Reply, ScriptedServer, ranged

DIGEST = "ab" * 32
CONTENT = bytes(range(256)) * 64
SECRET = "X-Amz-Signature=thesecretsignature"
TOKEN = "osk_" + "t" * 22 + "_" + "t" * 43


class Pair:
    """A catalog that redirects to ``location``, and a store on another loopback address that holds the object."""

    def __init__(self) -> None:
        self.store = ScriptedServer(lambda asked: ranged(CONTENT, asked), host="127.0.0.2")
        self.location = f"http://{self.store.netloc}/bucket/{DIGEST}?{SECRET}"
        self.catalog = ScriptedServer(lambda _: Reply(307, {"Location": self.location, "Set-Cookie": "catalog=1"}))
        self.client = Client(self.catalog.url, TOKEN, timeout_s=5)
        self.client.object_hosts = frozenset({self.store.netloc})


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    with made.store, made.catalog, made.client:
        yield made


def test_a_redirect_to_a_listed_host_is_followed_without_anything_of_the_catalogs_request(pair: Pair) -> None:
    assert pair.client.read_object(DIGEST, 100, 50) == CONTENT[100:150]
    (asked,) = pair.catalog.asked
    assert asked.headers["authorization"] == f"Bearer {TOKEN}"
    (received,) = pair.store.asked
    assert received.headers["range"] == "bytes=100-149"
    assert set(received.headers) <= {"host", "range", "accept-encoding", "user-agent"}
    assert TOKEN not in str(received)


def test_no_cookie_of_the_catalog_reaches_the_store_on_the_next_read(pair: Pair) -> None:
    pair.client.read_object(DIGEST, 0, 1)
    pair.client.read_object(DIGEST, 1, 1)
    assert all("cookie" not in asked.headers for asked in pair.store.asked + pair.catalog.asked)


def test_a_host_that_the_head_does_not_list_gets_no_connection(pair: Pair) -> None:
    for hosts in (set(), {"127.0.0.2"}, {f"127.0.0.2:{pair.store.port + 1}"}, {f"127.0.0.1:{pair.store.port}"}):
        pair.client.object_hosts = frozenset(hosts)
        with pytest.raises(RedirectRefused):
            pair.client.read_object(DIGEST, 0, 10)
    assert pair.store.asked == []


@pytest.mark.parametrize(
    "location",
    [
        "http://user@{netloc}/x",
        "http://user:word@{netloc}/x",
        "ftp://{netloc}/x",
        "file:///etc/passwd",
        "http://{netloc}.evil.example/x",
        "http://evil.example#@{netloc}/x",
        "http://127.0.0.2:99999/x",
        "http://[::1/x",
        "",
    ],
)
def test_odd_addresses_are_refused(pair: Pair, location: str) -> None:
    pair.location = location.format(netloc=pair.store.netloc)
    with pytest.raises(RedirectRefused):
        pair.client.read_object(DIGEST, 0, 10)
    assert pair.store.asked == []


def test_a_second_redirect_is_not_followed(pair: Pair) -> None:
    with ScriptedServer(lambda asked: ranged(CONTENT, asked), host="127.0.0.3") as third:
        pair.client.object_hosts |= {third.netloc}
        pair.store.answer = lambda _: Reply(302, {"Location": f"{third.url}/x"})
        with pytest.raises(RedirectRefused, match="second redirect"):
            pair.client.read_object(DIGEST, 0, 10)
        assert third.asked == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_every_kind_of_redirect_has_the_same_rules(pair: Pair, status: int) -> None:
    pair.catalog.answer = lambda _: Reply(status, {"Location": pair.location})
    assert pair.client.read_object(DIGEST, 5, 5) == CONTENT[5:10]
    pair.client.object_hosts = frozenset()
    with pytest.raises(RedirectRefused):
        pair.client.read_object(DIGEST, 5, 5)


@pytest.mark.parametrize(
    "host", ["169.254.169.254:80", "169.254.0.1:9000", "[fe80::1]:80", "[::ffff:169.254.169.254]:80", "224.0.0.1:80"]
)
def test_link_local_addresses_are_never_connected_to_even_when_listed(
    pair: Pair, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[tuple[str, int]] = []
    real = redirect.connection.create_connection

    def connect(address: tuple[str, int], *args: Any, **more: Any) -> socket.socket:
        connected.append(address)
        return real(address, *args, **more)

    monkeypatch.setattr(redirect.connection, "create_connection", connect)
    pair.location = f"http://{host}/latest/meta-data?{SECRET}"
    pair.client.object_hosts = frozenset({host})
    with pytest.raises(RedirectRefused, match="link-local"):
        pair.client.read_object(DIGEST, 0, 10)
    assert connected == [(pair.catalog.host, pair.catalog.port)]


def test_a_name_is_judged_by_every_address_that_it_has(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolve(host: str, *args: object, **more: object) -> object:
        if host == "store.example":
            return [(2, 1, 6, "", ("127.0.0.2", 0)), (2, 1, 6, "", ("169.254.169.254", 0))]
        return real(host, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    pair.location = f"http://store.example:{pair.store.port}/x"
    pair.client.object_hosts = frozenset({f"store.example:{pair.store.port}"})
    with pytest.raises(RedirectRefused, match="link-local"):
        pair.client.read_object(DIGEST, 0, 10)
    assert pair.store.asked == []


def own_address() -> str:
    """An address of this machine that is not loopback (nothing is sent to find it)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_this_machine_is_no_store_of_a_catalog_that_is_elsewhere(name: str) -> None:
    address = own_address()
    assert not addresses_of(address)[0].is_loopback
    with ScriptedServer(lambda asked: ranged(CONTENT, asked)) as store:
        target = f"{name}:{store.port}"
        catalog = ScriptedServer(lambda _: Reply(307, {"Location": f"http://{target}/x"}), host=address)
        with catalog, Client(catalog.url, TOKEN, timeout_s=5) as client:
            client.object_hosts = frozenset({target})
            with pytest.raises(RedirectRefused, match="this machine"):
                client.read_object(DIGEST, 0, 10)
        assert store.asked == []


def test_a_store_that_refuses_is_asked_once_more_with_a_new_address(pair: Pair) -> None:
    answers = iter([Reply(403, {}, b"expired"), None])

    def answer(asked: Asked) -> Reply:
        return next(answers) or ranged(CONTENT, asked)

    pair.store.answer = answer
    assert pair.client.read_object(DIGEST, 0, 10) == CONTENT[:10]
    assert (len(pair.catalog.asked), len(pair.store.asked)) == (2, 2)


def test_a_store_that_refuses_twice_is_an_error(pair: Pair) -> None:
    pair.store.answer = lambda _: Reply(403)
    with pytest.raises(ReadFailed, match="403"):
        pair.client.read_object(DIGEST, 0, 10)
    assert len(pair.catalog.asked) == 2


@pytest.mark.parametrize("trouble", ["refused", "forbidden", "reset", "second", "unlisted", "short", "works"])
def test_the_address_is_in_no_error_and_no_log(pair: Pair, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    match trouble:
        case "refused":
            pair.location = f"http://127.0.0.2:1/bucket?{SECRET}"
            pair.client.object_hosts = frozenset({"127.0.0.2:1"})
        case "forbidden":
            pair.store.answer = lambda _: Reply(403, {}, SECRET.encode())
        case "reset":
            pair.store.answer = lambda asked: Reply(206, ranged(CONTENT, asked).headers, CONTENT[:100], cut_after=3)
        case "second":
            pair.store.answer = lambda _: Reply(302, {"Location": pair.location})
        case "unlisted":
            pair.client.object_hosts = frozenset()
        case "short":
            pair.store.answer = lambda _: Reply(404)
    if trouble == "works":
        pair.client.read_object(DIGEST, 0, 100)
    else:
        with pytest.raises((ReadFailed, RedirectRefused)) as caught:
            pair.client.read_object(DIGEST, 0, 100)
        shown = "".join(traceback.format_exception(caught.value)) + caught.value.line()
        assert "thesecretsignature" not in shown
    assert "thesecretsignature" not in caplog.text
    assert TOKEN not in caplog.text
