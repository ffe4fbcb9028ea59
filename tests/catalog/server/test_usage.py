"""Usage: what nodes report is counted once, strictly checked, and seen by those whom it concerns; confirmations."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.catalog_api import Api, People, release_path

FILES = {"a": b"usage"}
JOB = {"kind": "slurm", "name": "4711.0", "container": None, "claimed": {"SLURM_JOB_ID": "4711"}}


def use_of(ref: str, record: str | None = None, **changed: Any) -> dict[str, Any]:
    return {
        "record": record or secrets.token_hex(16),
        "release": ref,
        "job": JOB,
        "uid": 1000,
        "first": "2026-03-01T10:00:00Z",
        "last": "2026-03-01T11:00:00Z",
        "opens": 10,
        "files": 3,
        "bytes_declared": 3_000_000_000_000,
        "exact": True,
        **changed,
    }


def report_of(*uses: dict[str, Any], node: str = "gpu-1", **changed: Any) -> dict[str, Any]:
    return {"node": node, "feed_serial": 0, "unrecorded": 0, "records": list(uses), **changed}


def report(api: Api, *uses: dict[str, Any], **changed: Any) -> None:
    assert api.ok("POST", "/v1/usage", report_of(*uses, **changed)) == {"received": len(uses)}


def records(api: Api, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.ok("GET", f"/v1/usage?{query}")["records"]
    return found


@pytest.fixture
def published(people: People, ref: str) -> str:
    people.publish(ref, FILES)
    return ref


def test_a_report_is_seen_as_it_was_sent(people: People, published: str) -> None:
    sent = use_of(published)
    report(people.node, sent)
    [seen] = records(people.bob, f"release={published}")
    assert {key: seen[key] for key in sent if key != "record"} == {key: sent[key] for key in sent if key != "record"}
    assert (seen["node"], seen["principal"]) == ("gpu-1", "node-1")


def test_sent_again_or_late_it_counts_once(people: People, published: str) -> None:
    record = secrets.token_hex(16)
    first = use_of(published, record)
    later = use_of(published, record, opens=25, files=7, bytes_declared=7, last="2026-03-01T12:00:00Z")
    for use in (first, first, later, first, later):
        report(people.node, use)
    report(people.node, first, later, first)
    [seen] = records(people.bob, f"release={published}")
    assert (seen["opens"], seen["files"], seen["last"]) == (25, 7, "2026-03-01T12:00:00Z")
    assert seen["bytes_declared"] == first["bytes_declared"]


def test_two_nodes_of_one_token_are_two_and_a_record_is_its_own_nodes(people: People, published: str) -> None:
    record = secrets.token_hex(16)
    report(people.node, use_of(published, record))
    report(people.node, use_of(published, record, opens=99), node="gpu-2")
    other = people.named("node-2", "node")
    with other:
        report(other, use_of(published, record, opens=77))
    seen = {(each["principal"], each["node"]): each["opens"] for each in records(people.bob, f"release={published}")}
    assert seen == {("node-1", "gpu-1"): 10, ("node-1", "gpu-2"): 99, ("node-2", "gpu-1"): 77}


def test_a_record_never_moves_to_another_release(people: People, new_ref: Callable[[], str]) -> None:
    one, two = new_ref(), new_ref()
    people.publish(one, FILES)
    people.publish(two, FILES)
    record = secrets.token_hex(16)
    report(people.node, use_of(one, record))
    report(people.node, use_of(two, record, opens=50))
    assert [each["opens"] for each in records(people.bob, f"release={one}")] == [10]
    assert records(people.bob, f"release={two}") == []


def test_what_is_no_published_release_is_left_out_in_silence(people: People, published: str) -> None:
    people.alice.draft("datasets/usage/draft@1.0", FILES)
    report(
        people.node,
        use_of("datasets/nobody/nothing@1.0"),
        use_of("datasets/usage/draft@1.0"),
        use_of(published, opens=1),
    )
    assert [each["opens"] for each in records(people.bob, f"release={published}")] == [1]
    assert records(people.bob, "collection=datasets/usage/draft") == []


def test_filters_and_pages(people: People, new_ref: Callable[[], str]) -> None:
    one, two = new_ref(), new_ref()
    for ref in (one, two):
        people.publish(ref, FILES)
    unit = {**JOB, "kind": "systemd", "name": "train-7.service"}
    report(people.node, *(use_of(one, uid=1000 + number) for number in range(5)))
    report(people.node, use_of(two, job=unit, first="2026-05-01T00:00:00Z", last="2026-05-02T00:00:00Z"))
    collection = one.partition("@")[0]
    assert len(records(people.bob, f"collection={collection}")) == 5
    assert [each["uid"] for each in records(people.bob, f"release={one}&uid=1003")] == [1003]
    assert [each["release"] for each in records(people.bob, "job=train-7.service")] == [two]
    assert [each["release"] for each in records(people.bob, f"release={two}&since=2026-05-02T00:00:00Z")] == [two]
    assert records(people.bob, f"release={two}&since=2026-05-02T00:00:01Z") == []
    assert records(people.bob, f"release={two}&until=2026-04-30T23:59:59Z") == []
    seen: list[int] = []
    path = f"/v1/usage?release={one}&limit=2"
    while path:
        answer = people.bob.get(path)
        page = answer.json()
        seen += [each["uid"] for each in page["records"]]
        link = answer.headers.get("Link", "")
        path = link[1 : link.index(">")] if link else ""
        assert bool(path) == (page["next"] is not None)
    assert seen == [1004, 1003, 1002, 1001, 1000]


def test_groups_add_up(people: People, published: str) -> None:
    other = {**JOB, "kind": "kubernetes", "name": "0b5c2d0e-0000-4000-8000-000000000001"}
    report(people.node, use_of(published), use_of(published, uid=1001, exact=False), unrecorded=0)
    report(people.node, use_of(published, job=other, opens=1, last="2026-03-09T00:00:00Z"), node="gpu-2", unrecorded=3)
    asked = f"/v1/usage/groups?release={published}&by="
    by_job = people.bob.ok("GET", asked + "job")
    assert [(each["key"], each["opens"], each["uids"], each["exact"]) for each in by_job["groups"]] == [
        ("kubernetes:0b5c2d0e-0000-4000-8000-000000000001", 1, 1, True),
        ("slurm:4711.0", 20, 2, False),
    ]
    assert (by_job["more"], by_job["unrecorded"]) == (False, 3)
    by_user = people.bob.ok("GET", asked + "user")["groups"]
    assert {each["key"]: each["nodes"] for each in by_user} == {"1000": 2, "1001": 1}
    assert [each["key"] for each in people.bob.ok("GET", asked + "node")["groups"]] == ["gpu-2", "gpu-1"]
    [whole] = people.bob.ok("GET", asked + "release")["groups"]
    assert (whole["key"], whole["opens"], whole["bytes_declared"]) == (published, 21, 9_000_000_000_000)
    assert people.bob.ok("GET", asked + "job&limit=1")["more"] is True


def test_owners_see_their_collections_auditors_all_and_others_nothing(people: People, published: str) -> None:
    report(people.node, use_of(published))
    asked = f"release={published}"
    for api in (people.alice, people.bob, people.administrator):
        assert len(records(api, asked)) == 1
        assert len(api.ok("GET", f"/v1/usage/groups?{asked}")["groups"]) == 1
    assert records(people.carol, asked) == []
    for api in (people.reader, people.node):
        api.refused("GET", f"/v1/usage?{asked}", 403, "forbidden")
        api.refused("GET", f"/v1/usage/groups?{asked}", 403, "forbidden")
    for api in (people.reader, people.alice, people.bob, people.administrator):
        api.refused("POST", "/v1/usage", 403, "forbidden", report_of(use_of(published)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"record": "zz"},
        {"release": "datasets/belle"},
        {"release": "datasets/belle/chat@" + "9" * 300},
        {"uid": -1},
        {"uid": 2**32},
        {"uid": "1000"},
        {"opens": -1},
        {"opens": 2**62},
        {"opens": 1.5},
        {"exact": "yes"},
        {"first": "yesterday"},
        {"first": "2026-13-01T00:00:00Z"},
        {"first": "2026-03-02T00:00:00Z"},
        {"job": {**JOB, "kind": "astrology"}},
        {"job": {**JOB, "name": "x" * 257}},
        {"job": {**JOB, "name": "a\x1b[2Jb"}},
        {"job": {**JOB, "claimed": {"path": "x"}}},
        {"job": {**JOB, "claimed": {"A": "b\n"}}},
        {"job": {**JOB, "claimed": {f"A{number}": "b" for number in range(9)}}},
        {"job": {**JOB, "command": "python train.py"}},
        {"path": "secret.txt"},
    ],
)
def test_a_malformed_record_is_refused_and_nothing_of_its_report_is_kept(
    people: People, published: str, wrong: dict[str, Any]
) -> None:
    people.node.refused(
        "POST", "/v1/usage", 422, "invalid_request", report_of(use_of(published), use_of(published, **wrong))
    )
    assert records(people.bob, f"release={published}") == []


def test_a_report_has_limits(people: People, published: str) -> None:
    too_many = report_of(*(use_of(published) for _ in range(1001)))
    people.node.refused("POST", "/v1/usage", 422, "invalid_request", too_many)
    for node in ("", "n" * 256, "a\x00b", "a\x1bb"):
        people.node.refused("POST", "/v1/usage", 422, "invalid_request", report_of(node=node))
    people.node.refused("POST", "/v1/usage", 422, "invalid_request", report_of(feed_serial=-1))
    report(people.node, *(use_of(published) for _ in range(1000)))
    assert len(people.bob.ok("GET", f"/v1/usage?release={published}&limit=1000")["records"]) == 1000


def test_wrong_questions_are_refused(people: People) -> None:
    people.bob.refused("GET", "/v1/usage?release=nonsense", 400, "bad_release")
    people.bob.refused("GET", "/v1/usage?collection=nonsense", 400, "bad_collection")
    people.bob.refused("GET", "/v1/usage?since=today", 422, "invalid_request")
    people.bob.refused("GET", "/v1/usage?cursor=nonsense", 400, "bad_cursor")
    people.bob.refused("GET", "/v1/usage/groups?by=moon", 422, "invalid_request")


# Confirmations


HOLDER = {"pid": 4242, "uid": 1000, "job": JOB, "files": 2}


def confirmation_of(ref: str, **changed: Any) -> dict[str, Any]:
    return {
        "node": "gpu-1",
        "release": ref,
        "policy": "drain",
        "done": "2026-03-01T10:00:01Z",
        "objects_removed": 5,
        "bytes_removed": 500,
        "open_files": 2,
        "holders": [HOLDER],
        **changed,
    }


def withdraw(people: People, ref: str, **why: Any) -> None:
    people.bob.ok("POST", release_path(ref, "withdraw"), {"reason_code": "takedown", **why})


def confirmations(api: Api, ref: str) -> dict[str, Any]:
    found: dict[str, Any] = api.ok("GET", release_path(ref, "confirmations"))
    return found


def names(found: list[dict[str, Any]]) -> set[str]:
    """The nodes of the token ``node-1``."""
    return {each["node"] for each in found if each["principal"] == "node-1"}


def test_confirmations_name_holders_until_the_last_is_gone(people: People, published: str) -> None:
    for node in ("gpu-1", "gpu-2"):
        report(people.node, node=node)
    withdraw(people, published)
    before = confirmations(people.alice, published)
    assert before["confirmations"] == []
    assert {"gpu-1", "gpu-2"} <= names(before["outstanding"])
    people.node.ok("POST", "/v1/nodes/confirmations", confirmation_of(published))
    [seen] = confirmations(people.bob, published)["confirmations"]
    assert (seen["holders"], seen["open_files"], seen["released"]) == ([HOLDER], 2, None)
    assert "gpu-1" not in names(confirmations(people.bob, published)["outstanding"])
    gone = confirmation_of(published, open_files=0, holders=[], objects_removed=0)
    people.node.ok("POST", "/v1/nodes/confirmations", gone)
    [seen] = confirmations(people.bob, published)["confirmations"]
    assert (seen["holders"], seen["open_files"], seen["objects_removed"]) == ([], 0, 5)
    assert seen["released"] is not None


def test_a_node_that_has_carried_out_the_event_is_not_waited_for(people: People, published: str) -> None:
    report(people.node, node="fresh-cache")
    withdraw(people, published)
    assert "fresh-cache" in names(confirmations(people.bob, published)["outstanding"])
    serial = people.node.ok("GET", "/v1/feed/head")["document"]["serial"]
    report(people.node, node="fresh-cache", feed_serial=serial)
    report(people.node, node="born-later", feed_serial=serial)
    assert not {"fresh-cache", "born-later"} & names(confirmations(people.bob, published)["outstanding"])


def test_a_node_whose_mount_ended_is_not_taken_to_live(people: People, published: str) -> None:
    report(people.node, use_of(published), node="unmounted")
    report(people.node, node="unmounted", ends=True)
    withdraw(people, published)
    found = {each["node"]: each for each in confirmations(people.bob, published)["outstanding"]}
    assert (found["unmounted"]["lives"], found["unmounted"]["used"]) == (False, True)
    report(people.node, node="unmounted")
    found = {each["node"]: each for each in confirmations(people.bob, published)["outstanding"]}
    assert found["unmounted"]["lives"] is True


def test_nodes_that_may_not_read_a_restricted_collection_are_not_waited_for(people: People, published: str) -> None:
    report(people.node, node="outside")
    collection = published.partition("@")[0]
    people.alice.ok("PUT", f"/v1/collections/{collection}/access", {"access": "restricted", "readers": []})
    withdraw(people, published)
    assert "outside" not in names(confirmations(people.bob, published)["outstanding"])
    people.node.refused("POST", "/v1/nodes/confirmations", 404, "no_release", confirmation_of(published))


def test_only_a_withdrawal_can_be_confirmed_and_only_by_nodes(people: People, published: str) -> None:
    path = "/v1/nodes/confirmations"
    people.node.refused("POST", path, 409, "not_withdrawn", confirmation_of(published))
    people.bob.refused("GET", release_path(published, "confirmations"), 409, "not_withdrawn")
    withdraw(people, published)
    people.bob.refused("POST", path, 403, "forbidden", confirmation_of(published))
    for wrong in (
        {"holders": [{**HOLDER, "pid": 0}]},
        {"holders": [{**HOLDER, "path": "/a"}]},
        {"holders": [HOLDER] * 257},
        {"policy": "perhaps"},
        {"open_files": -1},
    ):
        people.node.refused("POST", path, 422, "invalid_request", confirmation_of(published, **wrong))
    people.carol.refused("GET", release_path(published, "confirmations"), 403, "usage_closed")
    people.node.refused("GET", release_path(published, "confirmations"), 403, "forbidden")


def test_a_withdrawal_may_demand_that_open_files_end(people: People, new_ref: Callable[[], str]) -> None:
    events = {}
    for policy in (None, "revoke"):
        ref = new_ref()
        people.publish(ref, FILES)
        withdraw(people, ref, **({"policy": policy} if policy else {}))
        serial = people.node.ok("GET", "/v1/feed/head")["document"]["serial"]
        [signed] = people.node.ok("GET", f"/v1/feed?after={serial - 1}")["events"]
        events[policy] = signed["document"]
    assert events["revoke"]["policy"] == "revoke"
    assert "policy" not in events[None]
    ref = new_ref()
    people.publish(ref, FILES)
    refused = {"reason_code": "takedown", "policy": "drain"}
    people.bob.refused("POST", release_path(ref, "withdraw"), 422, "invalid_request", refused)
