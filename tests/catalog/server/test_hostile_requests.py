"""Requests that are meant to do harm: bodies without end, without a token or without a sender, and crafted contents."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import socket
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from catalog.uploads import bodies
from openshelf.units import KIB, MIB
from tests.support.catalog_api import People, about_of, listing_of, release_path
from tests.support.catalog_server import RunningCatalog

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/tokens",
        release_path("datasets/a/b@seal"),
        release_path("datasets/a/b@objects"),
        "/v1/collections/datasets/a/objects/access",
        "/v1/collections/datasets/a/b/tags/seal",
    ],
)
def test_a_json_body_of_a_stranger_is_not_read_to_its_end_whatever_is_called_seal(people: People, path: str) -> None:
    method = "POST" if path == "/v1/tokens" else "PUT"
    body = b'{"name": "' + b"x" * (17 * MIB)
    answer = people.nobody.request(method, path, body=body[:MIB], headers=JSON)
    assert (answer.status, answer.json()["code"]) == (401, "no_token")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    answer = people.administrator.request(method, path, body=body, headers=JSON)
    assert (answer.status, answer.json()["code"]) == (413, "body_too_large")


def test_a_long_body_counts_only_with_a_token_that_counts(people: People, catalog: RunningCatalog, ref: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    digests = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(2000)]
    missing = people.alice.ok("POST", release_path(ref, "missing"), {"digests": digests})["missing"]
    assert missing == digests
    made = people.administrator.ok("POST", "/v1/tokens", {"name": "gone", "role": "curator"})
    people.administrator.request("DELETE", f"/v1/tokens/{made['id']}")
    for header, code in ((f"Bearer {made['token']}", "revoked_token"), ("Basic eDp5", "no_token")):
        answer = people.nobody.request(
            "POST",
            release_path(ref, "missing"),
            json_body={"digests": digests},
            headers={"Authorization": header},
        )
        assert (answer.status, answer.json()["code"]) == (401, code)
    assert len(digests) * 68 > 64 * KIB


def test_a_sender_who_falls_silent_gives_his_place_back(
    people: People, catalog: RunningCatalog, ref: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "PORTION_S", 0.5)
    people.alice.ok("PUT", release_path(ref), about_of())
    token = catalog.token("alice", "curator")
    host, port = catalog.url.removeprefix("http://").split(":")
    connections = [socket.create_connection((host, int(port))) for _ in range(30)]
    try:
        for connection in connections:
            head = (
                f"PUT {release_path(ref)}/objects/{'0' * 64} HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {token}\r\nContent-Length: 1000000\r\n\r\n"
            )
            connection.sendall(head.encode() + b"x")
        # There are 24 places: this one waits for a silent sender's.
        assert people.alice.put_object(ref, b"in time").status == 200
        connections[0].settimeout(20)
        answer = b""
        while b"slow_body" not in answer:  # head and body may come apart
            portion = connections[0].recv(4096)
            assert portion, answer
            answer += portion
        assert answer.startswith(b"HTTP/1.1 408 ")
    finally:
        for connection in connections:
            connection.close()
    incoming = catalog.data / "objects" / "incoming"
    deadline = time.monotonic() + 20
    while list(incoming.iterdir()):
        assert time.monotonic() < deadline, "what silent senders began stays"
        time.sleep(0.05)


def test_a_crafted_list_of_files_is_refused_and_the_catalog_lives_on(people: People, ref: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    people.alice.put_object(ref, b"x")
    listing = listing_of({f"f{number:03d}": b"x" for number in range(40)})
    # The offsets of the paths are a row of growing numbers: let one of them point far outside, then any byte be wrong.
    offsets = b"".join((4 * number).to_bytes(8, "little") for number in range(10))
    at = listing.index(offsets) + 8 * 5
    far = listing[:at] + (1 << 40).to_bytes(8, "little") + listing[at + 8 :]
    dice = random.Random(7)
    crafted = [far]
    for _ in range(60):
        copy = bytearray(listing)
        for _ in range(dice.choice((1, 2, 4))):
            copy[dice.randrange(len(copy))] = dice.choice((0, 1, 128, 255))
        crafted.append(bytes(copy))
    for body in crafted:
        answer = people.alice.request("POST", release_path(ref, "seal"), body=body)
        assert answer.status in (200, 409, 422), answer.data
        if answer.status == 200:
            people.alice.ok("PUT", release_path(ref), about_of())
    answer = people.alice.request("POST", release_path(ref, "seal"), body=far)
    assert (answer.status, answer.json()["code"]) == (422, "bad_listing")


def test_a_column_that_stands_twice_is_refused(people: People, ref: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    people.alice.put_object(ref, b"x")
    digest = pa.array([hashlib.sha256(b"x").digest()], pa.binary(32))
    columns = [pa.array(["a"]), pa.array(["b"]), digest, pa.array([0o444]), pa.array([0])]
    table = pa.table(columns, names=["path", "path", "sha256", "mode", "mtime_ns"])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    answer = people.alice.request("POST", release_path(ref, "seal"), body=sink.getvalue())
    assert (answer.status, answer.json()["code"]) == (422, "bad_listing")


def test_texts_that_nest_or_lie_outside_of_time_are_refused(people: People) -> None:
    deep = base64.urlsafe_b64encode(b"[" * 1490).decode().rstrip("=")
    people.reader.refused("GET", f"/v1/collections?cursor={deep}", 400, "bad_cursor")
    for moment in ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"):
        wanted = {"name": "x", "role": "reader", "expires": moment}
        people.administrator.refused("POST", "/v1/tokens", 422, "bad_expiry", wanted)


def test_digests_of_packs_manifests_and_review_objects_cannot_be_claimed(
    people: People, new_ref: Callable[[], str]
) -> None:
    hidden = new_ref()
    sealed = people.alice.draft(hidden, {"a": b"small one", "b": b"small two"})
    people.alice.request("PUT", release_path(hidden, "attachments/rejects.parquet"), body=b"rejected rows")
    digests = {
        "file": hashlib.sha256(b"small one").digest(),
        "pack": hashlib.sha256(b"small onesmall two").digest(),
        "manifest": bytes.fromhex(sealed["manifest_digest"]),
        "review object": hashlib.sha256(b"rejected rows").digest(),
    }
    claim = new_ref()
    people.carol.ok("PUT", release_path(claim), about_of())
    asked = {"digests": [digest.hex() for digest in digests.values()]}
    assert people.carol.ok("POST", release_path(claim, "missing"), asked)["missing"] == asked["digests"]
    for what, digest in digests.items():
        answer = people.carol.seal(claim, {}, paths=["mine"], digests=[digest])
        assert (answer.status, answer.json()["code"]) == (422, "missing_objects"), what
        for api in (people.carol, people.bob, people.reader, people.node):
            assert api.get(f"/v1/objects/{digest.hex()}").status == 404, what
    assert people.alice.get(f"/v1/objects/{digests['pack'].hex()}").data == b"small onesmall two"
    assert people.administrator.get(f"/v1/objects/{digests['review object'].hex()}").status == 404


def test_a_tag_is_moved_by_the_collections_owners_and_by_auditors_only(people: People, ref: str) -> None:
    people.publish(ref, {"a": b"first"})
    collection = release_path(ref).rsplit("/releases/", 1)[0]
    people.carol.refused("PUT", f"{collection}/tags/latest", 403, "not_owner", {"version": "1.0"})
    people.bob.ok("PUT", f"{collection}/tags/latest", {"version": "1.0"})
    people.carol.refused("DELETE", f"{collection}/tags/latest", 403, "not_owner")
    assert people.alice.request("DELETE", f"{collection}/tags/latest").status == 204


def test_an_object_that_was_damaged_in_the_store_is_not_packed(
    people: People, catalog: RunningCatalog, ref: str
) -> None:
    body = b"as it was sent " * 50
    digest = hashlib.sha256(body).hexdigest()
    people.alice.ok("PUT", release_path(ref), about_of())
    assert people.alice.put_object(ref, body).status == 200
    stored = next((catalog.data / "objects" / "sha256").rglob(digest))
    stored.chmod(0o644)
    stored.write_bytes(body[:-1] + b"!")
    answer = people.alice.seal(ref, {"a": body})
    assert (answer.status, answer.json()["code"]) == (500, "object_damaged")
    assert people.alice.ok("GET", release_path(ref))["state"] == "draft"
    assert people.alice.put_object(ref, body).status == 200
    assert people.alice.seal(ref, {"a": body}).status == 200


def test_the_ledger_says_which_review_objects_were_submitted(people: People, ref: str) -> None:
    people.alice.draft(ref, {"a": b"x"})
    people.alice.request("PUT", release_path(ref, "attachments/report.json"), body=b'{"rows_in": 1}')
    people.alice.ok("POST", release_path(ref, "submit"))
    entries = people.bob.ok("GET", "/v1/ledger?limit=10000")["entries"]
    submitted = next(
        item["entry"]
        for item in entries
        if item["entry"]["subject"] == ref and item["entry"]["event"] == "release.submitted"
    )
    digest = hashlib.sha256(b'{"rows_in": 1}').hexdigest()
    assert submitted["details"]["review_objects"] == {"report.json": digest}


def test_what_others_on_the_machine_could_read_is_closed_to_them(catalog: RunningCatalog) -> None:
    for name in ("objects", "review", "manifests", "incoming"):
        assert (catalog.data / name).stat().st_mode & 0o077 == 0, name
    for path in catalog.data.glob("catalog.db*"):
        assert path.stat().st_mode & 0o077 == 0, path.name


def test_a_header_without_end_is_cut_off(catalog: RunningCatalog) -> None:
    host, port = catalog.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        sent = 0
        began = time.monotonic()
        with pytest.raises(OSError, match=r"reset|pipe"):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ")
            while sent < 64 * MIB and time.monotonic() - began < 20:
                connection.sendall(b"a" * 65536)
                sent += 65536
        assert sent < 32 * MIB
