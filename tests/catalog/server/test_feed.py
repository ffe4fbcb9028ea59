"""The feed: an unbroken sequence of signed events, its head, its snapshot, and waiting for the next."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from catalog.signing import SignatureError, Signed, verify
from tests.support.catalog_api import Api, People, await_waiters, release_path

FILES = {"a": b"feed"}


def key_of(api: Api) -> bytes:
    return base64.b64decode(api.ok("GET", "/v1/key")["key"])


def events(api: Api, after: int = 0) -> list[dict[str, Any]]:
    key = key_of(api)
    found = api.ok("GET", f"/v1/feed?after={after}&limit=10000")["events"]
    return [verify("feed-event", Signed.from_json(item), key) for item in found]


def serial(api: Api) -> int:
    return int(api.ok("GET", "/v1/feed/head")["document"]["serial"])


def test_the_key_needs_no_token(people: People) -> None:
    answer = people.nobody.ok("GET", "/v1/key")
    assert len(base64.b64decode(answer["key"])) == 32
    assert people.nobody.get("/v1/feed/head").status == 401


def test_the_head_is_signed_and_says_until_when_it_counts(people: People) -> None:
    signed = Signed.from_json(people.node.ok("GET", "/v1/feed/head"))
    head = verify("feed-head", signed, key_of(people.node))
    assert set(head) == {"epoch", "serial", "issued", "expires", "object_hosts"}
    assert datetime.fromisoformat(head["expires"]) > datetime.fromisoformat(head["issued"])
    for purpose in ("feed-event", "feed-snapshot", "release"):
        with pytest.raises(SignatureError):
            verify(purpose, signed, key_of(people.node))


def test_serials_have_no_holes_and_every_event_is_signed(people: People, new_ref: Callable[[], str]) -> None:
    for _ in range(3):
        people.publish(new_ref(), FILES)
    found = events(people.node)
    assert [event["serial"] for event in found] == list(range(1, serial(people.node) + 1))


def test_a_refused_step_leaves_no_hole(people: People, new_ref: Callable[[], str]) -> None:
    ref = new_ref()
    people.publish(ref, FILES)
    before = serial(people.node)
    people.alice.refused("POST", release_path(ref, "publish"), 409, "wrong_state")
    people.publish(new_ref(), FILES)
    assert serial(people.node) == before + 1


def test_what_a_token_may_not_see_appears_as_hidden(people: People, new_ref: Callable[[], str]) -> None:
    ref = new_ref()
    start = serial(people.node)
    published = people.publish(ref, FILES)
    collection = release_path(ref).rsplit("/releases/", 1)[0]
    people.alice.ok("PUT", f"{collection}/access", {"access": "restricted", "readers": ["node-1"]})
    people.alice.ok("PUT", f"{collection}/tags/latest", {"version": "1.0"})
    seen = events(people.node, start)
    assert [event["type"] for event in seen] == ["published", "access", "tagged"]
    assert seen[0]["manifest_digest"] == published["manifest_digest"]
    hidden = events(people.reader, start)
    # The event that closed the collection is seen by those to whom it was open, so that their nodes drop it.
    assert [event["type"] for event in hidden] == ["hidden", "access", "hidden"]
    assert set(hidden[0]) == {"epoch", "serial", "type", "at"}
    assert [event["serial"] for event in hidden] == [event["serial"] for event in seen]
    people.alice.ok("PUT", f"{collection}/access", {"access": "restricted", "readers": []})
    assert events(people.node, serial(people.node) - 1)[0]["type"] == "access"
    assert events(people.reader, serial(people.reader) - 1)[0]["type"] == "hidden"
    assert events(people.node, start)[0]["type"] == "hidden"
    for api, there in ((people.alice, True), (people.node, False)):
        snapshot = verify("feed-snapshot", Signed.from_json(api.ok("GET", "/v1/feed/snapshot")), key_of(people.node))
        assert any(item["collection"] == ref.partition("@")[0] for item in snapshot["releases"]) == there
        assert any(item["collection"] == ref.partition("@")[0] for item in snapshot["tags"]) == there


def test_the_snapshot_is_where_the_events_lead(people: People, new_ref: Callable[[], str]) -> None:
    kept, gone = new_ref(), new_ref()
    published = people.publish(kept, FILES)
    people.publish(gone, FILES)
    people.bob.ok("POST", release_path(gone, "withdraw"), {"reason_code": "licence"})
    document = people.reader.ok("GET", "/v1/feed/snapshot")["document"]
    releases = {f"{item['collection']}@{item['version']}": item for item in document["releases"]}
    assert gone not in releases
    assert releases[kept]["manifest_digest"] == published["manifest_digest"]
    assert (releases[kept]["files"], releases[kept]["size_bytes"]) == (1, 4)
    assert document["serial"] == serial(people.reader)
    followed: set[str] = set()
    for event in events(people.reader):
        name = f"{event.get('collection')}@{event.get('version')}"
        if event["type"] == "published":
            followed.add(name)
        elif event["type"] == "withdrawn":
            followed.discard(name)
    assert set(releases) <= followed


def test_who_waits_is_answered_when_something_happens(people: People, new_ref: Callable[[], str]) -> None:
    ref = new_ref()
    people.alice.draft(ref, FILES)
    people.alice.ok("POST", release_path(ref, "submit"))
    people.bob.ok("POST", release_path(ref, "approve"))
    after = serial(people.node)
    answers: list[tuple[float, Any]] = []

    def wait() -> None:
        found = people.node.ok("GET", f"/v1/feed?after={after}&wait=30")
        answers.append((time.monotonic(), found["events"]))

    waiting = [threading.Thread(target=wait) for _ in range(60)]
    for thread in waiting:
        thread.start()
    await_waiters(people.nobody, 60)
    assert answers == []
    # More waiters than the server has threads: other requests are answered all the same.
    people.alice.ok("POST", release_path(ref, "publish"))
    published = time.monotonic()
    for thread in waiting:
        thread.join()
    assert len(answers) == 60
    assert max(moment for moment, _ in answers) - published < 10
    assert all(found[0]["document"]["type"] == "published" for _, found in answers)


def test_waiting_ends_without_an_event_and_is_limited(people: People) -> None:
    after = serial(people.node)
    began = time.monotonic()
    assert people.node.ok("GET", f"/v1/feed?after={after}&wait=0.6") == {"events": []}
    assert 0.5 < time.monotonic() - began < 8
    assert people.node.get(f"/v1/feed?after={after}&wait=nan").status == 422
    assert people.node.get("/v1/feed?after=-1").status == 422


def test_the_feed_is_read_a_page_at_a_time(people: People, new_ref: Callable[[], str]) -> None:
    people.publish(new_ref(), FILES)
    people.publish(new_ref(), FILES)
    first = people.node.ok("GET", "/v1/feed?limit=1")["events"]
    second = people.node.ok("GET", "/v1/feed?after=1&limit=1")["events"]
    assert [item["document"]["serial"] for item in first + second] == [1, 2]
