"""The ledger: who did what, and that a change of it shows."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.catalog_api import Api, People, release_path
from tests.support.catalog_server import running_catalog

REF = "datasets/ledger/corpus@1.0"


def test_every_change_has_its_entry_with_person_and_reason(people: People, ref: str) -> None:
    before = people.bob.ok("GET", "/v1/ledger?limit=10000")["entries"]
    people.publish(ref, {"a": b"ledger"})
    people.bob.ok("POST", release_path(ref, "withdraw"), {"reason_code": "licence", "note": "asked by the author"})
    entries = people.bob.ok("GET", f"/v1/ledger?after={len(before)}")["entries"]
    told = [(item["entry"]["event"], item["entry"]["actor"], item["entry"]["role"]) for item in entries]
    assert told == [
        ("collection.created", "alice", "curator"),
        ("release.begun", "alice", "curator"),
        ("release.sealed", "alice", "curator"),
        ("release.submitted", "alice", "curator"),
        ("release.approved", "bob", "auditor"),
        ("release.published", "alice", "curator"),
        ("release.withdrawn", "bob", "auditor"),
    ]
    assert entries[-1]["entry"]["details"]["note"] == "asked by the author"
    assert {item["entry"]["subject"] for item in entries[1:]} == {ref}
    people.administrator.ok("GET", "/v1/ledger")
    for api in (people.alice, people.reader, people.node):
        api.refused("GET", "/v1/ledger", 403, "forbidden")


def test_a_refused_step_has_no_entry(people: People, ref: str) -> None:
    people.alice.draft(ref, {"a": b"ledger"})
    before = len(people.bob.ok("GET", "/v1/ledger?limit=10000")["entries"])
    people.alice.refused("POST", release_path(ref, "publish"), 409, "wrong_state")
    people.bob.refused("POST", release_path(ref, "approve"), 404, "no_release")
    assert len(people.bob.ok("GET", "/v1/ledger?limit=10000")["entries"]) == before


def test_the_chain_is_the_documented_one(people: People) -> None:
    people.administrator.ok("POST", "/v1/tokens", {"name": "chain", "role": "reader"})
    previous = bytes(32)
    for number, item in enumerate(people.bob.ok("GET", "/v1/ledger?limit=10000")["entries"], 1):
        assert item["sequence"] == item["entry"]["sequence"] == number
        assert item["previous"] == previous.hex()
        # RFC 8785 for what an entry holds: sorted keys, no spaces, UTF-8.
        text = json.dumps(item["entry"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        previous = hashlib.sha256(b"openshelf/v1/ledger-entry\n" + previous + text.encode()).digest()
        assert item["hash"] == previous.hex()
    state = people.bob.ok("GET", "/v1/ledger/verification")
    assert (state["intact"], state["head"]) == (True, previous.hex())


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    with running_catalog(tmp_path / "data") as catalog:
        for number in range(5):
            catalog.token(f"person-{number}", "reader")
    yield tmp_path / "data"


UNGUARDED = "DROP TRIGGER ledger_refuses_update; DROP TRIGGER ledger_refuses_delete;"


@pytest.mark.parametrize(
    ("tampering", "sequence"),
    [
        ("UPDATE ledger SET entry = replace(entry, 'person-1', 'person-9') WHERE sequence = 3", 3),
        ("UPDATE ledger SET hash = zeroblob(32) WHERE sequence = 4", 4),
        ("DELETE FROM ledger WHERE sequence = 2", 2),
        ("DELETE FROM ledger WHERE sequence = 6", 6),
        # The head is adapted too: only the signed checkpoint outside the database tells.
        (
            "DELETE FROM ledger WHERE sequence = 6;"
            "UPDATE ledger_head SET sequence = 5, hash = (SELECT hash FROM ledger WHERE sequence = 5)",
            6,
        ),
    ],
)
def test_tampering_with_the_database_shows(written: Path, tampering: str, sequence: int) -> None:
    database = sqlite3.connect(written / "catalog.db")
    database.executescript(UNGUARDED + tampering)
    database.close()
    for _start in range(2):  # a restart does not heal it
        with running_catalog(written) as catalog, Api(catalog.url, catalog.admin_token) as api:
            state = api.ok("GET", "/v1/ledger/verification")
        assert state["intact"] is False
        assert f"entry {sequence}" in state["detail"]


def test_the_database_itself_refuses_to_change_an_entry(written: Path) -> None:
    database = sqlite3.connect(written / "catalog.db")
    for statement in ("UPDATE ledger SET entry = ''", "DELETE FROM ledger", "DELETE FROM feed_events"):
        if "feed" in statement:
            database.execute(
                "INSERT INTO feed_events (serial, epoch, collection_id, audience, also_for, event, hidden)"
                " VALUES (1, 1, 1, 'readers', '[]', '{}', '{}')"
            )
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
    database.close()
