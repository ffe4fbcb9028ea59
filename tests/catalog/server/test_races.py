"""Several people at once: whatever the order, one outcome that the ledger, the feed and the rows agree on."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import urllib3

from catalog.names import parse_release
from tests.support.catalog_api import Api, People, about_of, listing_of, release_path
from tests.support.catalog_server import RunningCatalog


def at_once(*calls: Callable[[], urllib3.BaseHTTPResponse]) -> list[tuple[int, Any]]:
    """Status and JSON of requests that begin together."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], urllib3.BaseHTTPResponse]) -> tuple[int, Any]:
        barrier.wait()
        answer = call()
        return answer.status, answer.json() if answer.data else None

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def posting(api: Api, ref: str, step: str, body: object = None) -> Callable[[], urllib3.BaseHTTPResponse]:
    return lambda: api.request("POST", release_path(ref, step), json_body=body or {})


def entries_of(people: People, ref: str) -> list[str]:
    entries = people.administrator.ok("GET", "/v1/ledger?limit=10000")["entries"]
    return [item["entry"]["event"] for item in entries if item["entry"]["subject"] == ref]


@pytest.fixture(autouse=True, params=range(4))
def _consistent(people: People) -> Iterator[None]:
    """Every test four times: which caller comes first is not the test's to say."""
    yield
    assert people.administrator.ok("GET", "/v1/ledger/verification")["intact"] is True
    serial = people.node.ok("GET", "/v1/feed/head")["document"]["serial"]
    events = people.administrator.ok("GET", "/v1/feed?limit=10000")["events"]
    assert [event["document"]["serial"] for event in events] == list(range(1, serial + 1))


def test_two_curators_who_begin_the_same_version_do_not_share_it(people: People, ref: str) -> None:
    begun = [
        (lambda api=api: api.request("PUT", release_path(ref), json_body=about_of()))  # type: ignore[misc]
        for api in (people.alice, people.carol)
    ]
    outcomes = at_once(*begun)
    assert sorted(status for status, _ in outcomes) == [200, 409]
    owner = people.administrator.ok("GET", release_path(ref))["uploader"]
    assert owner == ("alice" if outcomes[0][0] == 200 else "carol")
    other = people.carol if owner == "alice" else people.alice
    assert other.put_object(ref, b"x").status == 403


def test_a_release_that_is_approved_while_it_is_taken_back_is_either(people: People, ref: str) -> None:
    sealed = people.alice.draft(ref, {"a": b"reviewed"})
    people.alice.ok("POST", release_path(ref, "submit"))
    seen = {"manifest_digest": sealed["manifest_digest"]}
    approved, returned = at_once(
        posting(people.bob, ref, "approve", seen), posting(people.alice, ref, "return", {"reason": "once more"})
    )
    now = people.administrator.ok("GET", release_path(ref))
    # An approved release can be taken back too, so that both may succeed; the approval then is gone with it.
    # An auditor does not see drafts.
    assert returned[0] == 200
    assert approved[0] in (200, 404, 409)
    assert (now["state"], now["approver"], now["manifest_digest"]) == ("draft", None, None)
    people.alice.draft(ref, {"a": b"something else"})
    people.alice.ok("POST", release_path(ref, "submit"))
    people.bob.refused("POST", release_path(ref, "approve"), 409, "other_manifest", seen)


def test_a_seal_that_meets_a_renewed_draft_seals_what_is_there(people: People, ref: str) -> None:
    files = {f"{number}": b"%d" % number for number in range(20)}
    people.alice.draft(ref, files)
    listing = listing_of(files)
    outcomes = at_once(
        lambda: people.alice.request("POST", release_path(ref, "seal"), body=listing),
        lambda: people.alice.request("PUT", release_path(ref), json_body=about_of(rows=9)),
    )
    assert [status for status, _ in outcomes] == [200, 200]
    now = people.alice.ok("GET", release_path(ref))
    assert now["rows"] == 9
    assert (now["state"] == "sealed") == (now["manifest_digest"] is not None) == (now["files"] == 20)


def test_a_release_is_published_once_and_withdrawn_once(people: People, ref: str) -> None:
    people.alice.draft(ref, {"a": ref.encode()})
    people.alice.ok("POST", release_path(ref, "submit"))
    people.bob.ok("POST", release_path(ref, "approve"))
    takedown = {"reason_code": "takedown"}
    outcomes = at_once(
        posting(people.alice, ref, "publish"),
        posting(people.bob, ref, "publish"),
        posting(people.alice, ref, "withdraw", takedown),
        posting(people.bob, ref, "withdraw", takedown),
    )
    assert sorted(status for status, _ in outcomes[:2]) == [200, 409]
    assert sum(status == 200 for status, _ in outcomes[2:]) <= 1
    events = entries_of(people, ref)
    assert events.count("release.published") == 1
    gone = people.administrator.ok("GET", release_path(ref))["state"] == "withdrawn"
    assert events.count("release.withdrawn") == gone
    listed = people.node.ok("GET", "/v1/feed/snapshot")["document"]["releases"]
    assert (str(parse_release(ref).collection) in {item["collection"] for item in listed}) != gone


def test_a_tag_never_names_a_release_that_is_withdrawn_meanwhile(people: People, ref: str) -> None:
    people.publish(ref, {"a": ref.encode()})
    collection = release_path(ref).rsplit("/releases/", 1)[0]
    tagging = [
        (lambda api=api: api.request("PUT", f"{collection}/tags/latest", json_body={"version": "1.0"}))  # type: ignore[misc]
        for api in (people.alice, people.bob)
    ]
    outcomes = at_once(*tagging, posting(people.bob, ref, "withdraw", {"reason_code": "takedown"}))
    assert outcomes[2][0] == 200
    assert people.alice.ok("GET", collection)["tags"] == {}
    tags = people.node.ok("GET", "/v1/feed/snapshot")["document"]["tags"]
    assert str(parse_release(ref).collection) not in {item["collection"] for item in tags}


def test_a_version_and_a_tag_of_one_name_do_not_both_come_to_be(people: People, ref: str) -> None:
    people.publish(ref, {"a": b"x"})
    collection = release_path(ref).rsplit("/releases/", 1)[0]
    outcomes = at_once(
        lambda: people.alice.request("PUT", f"{collection}/tags/next", json_body={"version": "1.0"}),
        lambda: people.alice.request("PUT", f"{collection}/releases/NEXT", json_body=about_of()),
    )
    assert sorted(status for status, _ in outcomes) == [200, 409]


def test_one_object_that_two_people_send_at_once_is_there_for_both(
    people: People, catalog: RunningCatalog, new_ref: Callable[[], str]
) -> None:
    body = secrets.token_bytes(300_000)
    first, second = new_ref(), new_ref()
    people.alice.ok("PUT", release_path(first), about_of())
    people.carol.ok("PUT", release_path(second), about_of())
    sent = at_once(lambda: people.alice.put_object(first, body), lambda: people.carol.put_object(second, body))
    assert [status for status, _ in sent] == [200, 200]
    assert people.alice.seal(first, {"a": body}).status == 200
    assert people.carol.seal(second, {"a": body}).status == 200
    digest = hashlib.sha256(body).hexdigest()
    assert len(list((catalog.data / "objects" / "sha256").rglob(digest))) == 1
    assert people.alice.get(f"/v1/objects/{digest}").data == body
