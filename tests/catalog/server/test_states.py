"""The state machine: every state, every step, every role."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.catalog_api import Api, People, about_of, release_path

FILES = {"data/a.txt": b"a line of made-up text\n"}
STATES = ("draft", "sealed", "submitted", "approved", "published", "rejected", "withdrawn")
STEPS: dict[str, dict[str, str] | None] = {
    "submit": None,
    "approve": None,
    "reject": {"reason": "the rows are cut"},
    "return": {"reason": "name the source"},
    "publish": None,
    "withdraw": {"reason_code": "licence"},
}
ROLES = ("owner", "other_curator", "auditor", "reader", "node", "administrator", "nobody")
STAFF = {"owner", "other_curator", "auditor", "administrator"}

# (state, step) → the state after it, and who may take it: written down from the design, not from the code.
ALLOWED: dict[tuple[str, str], tuple[str, set[str]]] = {
    ("sealed", "submit"): ("submitted", {"owner", "other_curator", "administrator"}),
    ("submitted", "approve"): ("approved", {"auditor", "administrator"}),
    ("submitted", "reject"): ("rejected", {"auditor", "administrator"}),
    ("submitted", "return"): ("draft", {"owner", "auditor", "administrator"}),
    ("approved", "return"): ("draft", {"owner", "auditor", "administrator"}),
    ("approved", "publish"): ("published", STAFF),
    ("published", "withdraw"): ("withdrawn", {"owner", "auditor", "administrator"}),
}


def caller(people: People, role: str) -> Api:
    return {
        "owner": people.alice,
        "other_curator": people.carol,
        "auditor": people.bob,
        "reader": people.reader,
        "node": people.node,
        "administrator": people.administrator,
        "nobody": people.nobody,
    }[role]


def bring_to(people: People, ref: str, state: str) -> None:
    if state == "draft":
        people.alice.ok("PUT", release_path(ref), about_of())
        return
    people.alice.draft(ref, FILES)
    path: dict[str, list[tuple[Api, str]]] = {
        "sealed": [],
        "submitted": [(people.alice, "submit")],
        "approved": [(people.alice, "submit"), (people.bob, "approve")],
        "rejected": [(people.alice, "submit"), (people.bob, "reject")],
        "published": [(people.alice, "submit"), (people.bob, "approve"), (people.bob, "publish")],
        "withdrawn": [
            (people.alice, "submit"),
            (people.bob, "approve"),
            (people.bob, "publish"),
            (people.bob, "withdraw"),
        ],
    }
    for api, step in path[state]:
        api.ok("POST", release_path(ref, step), STEPS[step] or {})


@pytest.mark.parametrize("state", STATES)
def test_a_step_is_taken_only_from_its_states_and_by_its_roles(
    people: People, new_ref: Callable[[], str], state: str
) -> None:
    refused = new_ref()
    bring_to(people, refused, state)
    for step, role in itertools.product(STEPS, ROLES):
        after, allowed = ALLOWED.get((state, step), (state, set()))
        ref = refused
        if role in allowed:
            ref = new_ref()
            bring_to(people, ref, state)
        answer = caller(people, role).request("POST", release_path(ref, step), json_body=STEPS[step] or {})
        shown = people.administrator.ok("GET", release_path(ref))
        if role in allowed:
            assert (answer.status, shown["state"]) == (200, after), (state, step, role, answer.data)
        else:
            assert answer.status in (401, 403, 404, 409), (state, step, role, answer.data)
            assert (answer.status == 401) == (role == "nobody")
            assert shown["state"] == state, (state, step, role)


@pytest.mark.parametrize("state", STATES)
def test_a_version_is_begun_again_only_while_nobody_relies_on_it(
    people: People, new_ref: Callable[[], str], state: str
) -> None:
    own = {"draft": "draft", "sealed": "draft", "rejected": "draft"}
    ref = new_ref()
    bring_to(people, ref, state)
    answer = people.alice.request("PUT", release_path(ref), json_body=about_of(rows=7, licence_expression="MIT"))
    if state in own:
        assert (answer.status, answer.json()["state"], answer.json()["rows"]) == (200, "draft", 7)
    else:
        assert (answer.status, answer.json()["code"]) == (
            409,
            "version_withdrawn" if state == "withdrawn" else "version_exists",
        )
    other = new_ref()
    bring_to(people, other, state)
    answer = people.carol.request("PUT", release_path(other), json_body=about_of(licence_expression="MIT"))
    assert answer.status == (200 if state == "rejected" else 409), answer.data
    for role in ("reader", "node", "auditor"):
        assert caller(people, role).request("PUT", release_path(other), json_body=about_of()).status == 403


def test_a_licence_is_required_before_submission(people: People, ref: str) -> None:
    people.alice.draft(ref, FILES, licence_expression=None)
    problem = people.alice.refused("POST", release_path(ref, "submit"), 422, "no_licence")
    assert "--licence" in problem["hint"]


def test_an_unknown_licence_is_refused_when_the_draft_is_begun(people: People, ref: str) -> None:
    people.alice.refused(
        "PUT", release_path(ref), 422, "bad_licence", about_of(licence_expression="Apache-2.0 AND Nonsense-9")
    )


def test_one_person_with_two_tokens_cannot_approve_himself(people: People, ref: str) -> None:
    people.alice.draft(ref, FILES)
    people.alice.ok("POST", release_path(ref, "submit"))
    with people.named("alice", "auditor") as auditor, people.named("ALICE", "administrator") as administrator:
        auditor.refused("POST", release_path(ref, "approve"), 403, "self_approval")
        administrator.refused("POST", release_path(ref, "approve"), 403, "self_approval")
    assert people.bob.ok("POST", release_path(ref, "approve"))["approver"] == "bob"


def test_who_only_submitted_cannot_approve_either(people: People, ref: str) -> None:
    people.alice.draft(ref, FILES)
    people.administrator.ok("POST", release_path(ref, "submit"))
    people.administrator.refused("POST", release_path(ref, "approve"), 403, "self_approval")


def test_an_administrator_cannot_approve_what_he_uploaded(people: People, ref: str) -> None:
    people.administrator.draft(ref, FILES)
    people.alice.ok("POST", release_path(ref, "submit"))
    people.administrator.refused("POST", release_path(ref, "approve"), 403, "self_approval")


def test_an_approval_is_of_the_manifest_that_was_looked_at(people: People, ref: str) -> None:
    sealed = people.alice.draft(ref, FILES)
    people.alice.ok("POST", release_path(ref, "submit"))
    other = {"manifest_digest": "0" * 64}
    people.bob.refused("POST", release_path(ref, "approve"), 409, "other_manifest", other)
    seen = {"manifest_digest": sealed["manifest_digest"], "note": "looked at it"}
    assert people.bob.ok("POST", release_path(ref, "approve"), seen)["state"] == "approved"


def test_changes_asked_for_carry_their_reason_and_lose_the_approval(people: People, ref: str) -> None:
    bring_to(people, ref, "approved")
    returned = people.bob.ok("POST", release_path(ref, "return"), {"reason": "name the source"})
    assert returned["reason"] == "name the source"
    assert (returned["approver"], returned["submitter"], returned["manifest_digest"]) == (None, None, None)
    people.alice.draft(ref, {"data/a.txt": b"another line\n"})
    people.alice.refused("POST", release_path(ref, "publish"), 409, "wrong_state")


def test_an_identical_repetition_of_a_published_release_changes_nothing(people: People, ref: str) -> None:
    published = people.publish(ref, FILES)
    before = people.node.ok("GET", "/v1/feed/head")["document"]["serial"]
    assert people.alice.draft(ref, FILES) == published
    assert people.node.ok("GET", "/v1/feed/head")["document"]["serial"] == before
    answer = people.alice.seal(ref, {"data/other.txt": FILES["data/a.txt"]})
    assert (answer.status, answer.json()["code"]) == (409, "version_exists")
    assert "another version" in answer.json()["hint"]


def test_another_licence_is_not_an_identical_repetition(people: People, ref: str) -> None:
    people.publish(ref, FILES)
    people.alice.refused("PUT", release_path(ref), 409, "version_exists", about_of(licence_expression="MIT"))


def test_a_rejected_version_may_be_ingested_again_and_published(people: People, ref: str) -> None:
    bring_to(people, ref, "rejected")
    assert people.publish(ref, {"data/a.txt": b"better\n"})["state"] == "published"


def test_withdrawing_removes_the_tags_in_the_same_transaction(people: People, ref: str) -> None:
    people.publish(ref, {"data/only-here.txt": b"only here\n"})
    collection = release_path(ref).rsplit("/releases/", 1)[0]
    people.alice.ok("PUT", f"{collection}/tags/latest", {"version": "1.0"})
    before = people.node.ok("GET", "/v1/feed/head")["document"]["serial"]
    gone = people.bob.ok(
        "POST", release_path(ref, "withdraw"), {"reason_code": "court_order", "note": "n", "legal_basis": "b"}
    )
    assert (gone["state"], gone["tags"], gone["reason"]) == ("withdrawn", [], "court_order")
    events = people.node.ok("GET", f"/v1/feed?after={before}")["events"]
    assert [event["document"]["type"] for event in events] == ["untagged", "withdrawn"]
    assert events[1]["document"]["reason_code"] == "court_order"
    people.reader.refused("GET", f"{collection}/releases/latest", 404, "no_release")
    people.reader.refused("GET", release_path(ref, "files"), 410, "withdrawn")
    people.reader.refused("GET", release_path(ref, "release.json"), 410, "withdrawn")
    people.reader.refused("GET", f"/v1/manifests/{gone['manifest_digest']}", 410, "withdrawn")
    assert people.reader.ok("GET", release_path(ref))["state"] == "withdrawn"


def test_a_tag_may_not_equal_a_version_nor_a_version_a_tag(people: People, ref: str) -> None:
    people.publish(ref, FILES)
    collection = release_path(ref).rsplit("/releases/", 1)[0]
    people.alice.refused("PUT", f"{collection}/tags/1.0", 409, "tag_is_version", {"version": "1.0"})
    people.alice.ok("PUT", f"{collection}/tags/Stable", {"version": "1.0"})
    people.alice.refused("PUT", f"{collection}/tags/stable", 409, "tag_exists", {"version": "1.0"})
    people.alice.refused("PUT", f"{collection}/releases/stable", 409, "version_is_tag", about_of())
    assert people.reader.ok("GET", f"{collection}/releases/Stable")["version"] == "1.0"


def test_only_a_published_release_can_have_a_tag_and_it_can_be_moved_and_removed(people: People, ref: str) -> None:
    people.publish(ref, FILES)
    collection = release_path(ref).rsplit("/releases/", 1)[0]
    second = ref.replace("@1.0", "@2.0")
    people.alice.draft(second, {"data/a.txt": b"second\n"})
    people.alice.refused("PUT", f"{collection}/tags/latest", 409, "wrong_state", {"version": "2.0"})
    people.publish(second, {"data/a.txt": b"second\n"})
    people.alice.ok("PUT", f"{collection}/tags/latest", {"version": "1.0"})
    people.alice.ok("PUT", f"{collection}/tags/latest", {"version": "2.0"})
    assert people.reader.ok("GET", collection)["tags"] == {"latest": "2.0"}
    assert people.alice.request("DELETE", f"{collection}/tags/latest").status == 204
    people.alice.refused("DELETE", f"{collection}/tags/latest", 404, "no_tag")
    people.reader.refused("PUT", f"{collection}/tags/latest", 403, "forbidden", {"version": "2.0"})


@pytest.mark.parametrize(
    ("existing", "wanted", "code"),
    [
        ("datasets/Belle/chat@1.0", "datasets/belle/chat@1.0", "name_exists"),
        ("datasets/belle2/Chat@1.0", "datasets/belle2/chat@1.0", "name_exists"),
        ("datasets/belle3/chat@RC", "datasets/belle3/chat@rc", "version_exists"),
    ],
)
def test_names_that_differ_only_in_case_are_refused(people: People, existing: str, wanted: str, code: str) -> None:
    people.alice.ok("PUT", release_path(existing), about_of())
    people.alice.refused("PUT", release_path(wanted), 409, code, about_of())


def test_the_record_of_a_published_release_is_signed_and_says_what_was_approved(people: People, ref: str) -> None:
    published = people.publish(ref, FILES, rows=3, residency=["cn"], recipe_digest="ab" * 32)
    record: Any = people.reader.ok("GET", release_path(ref, "release.json"))["document"]
    assert record == {
        "collection": ref.partition("@")[0],
        "version": "1.0",
        "created": "2026-01-31T00:00:00Z",
        "manifest_digest": published["manifest_digest"],
        "licence": {"expression": "Apache-2.0", "use": "all", "attribution": True, "share_alike": False},
        "recipe_digest": "ab" * 32,
        "policy_digest": None,
        "residency": ["cn"],
        "totals": {"files": 1, "size_bytes": len(FILES["data/a.txt"]), "rows": 3},
    }
