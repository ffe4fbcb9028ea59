"""Reading bytes: ranges, conditions, and for whom."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import pytest

from openshelf.units import MIB
from tests.support.catalog_api import People, about_of, release_path

DATA = random.Random(5).randbytes(3 * MIB + 7)
DIGEST = hashlib.sha256(DATA).hexdigest()
SIZE = len(DATA)
EMPTY = hashlib.sha256(b"").hexdigest()
REF = "datasets/ranges/corpus@1.0"


@pytest.fixture(scope="module", autouse=True)
def _published(people: People) -> Iterator[None]:
    people.publish(REF, {"data.bin": DATA, "empty": b"", "small": b"small"})
    yield


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, SIZE),
        ("bytes=5-9", 5, 10),
        (f"bytes={SIZE - 1}-", SIZE - 1, SIZE),
        (f"bytes={SIZE - 1}-{SIZE + 50}", SIZE - 1, SIZE),
        ("bytes=-1", SIZE - 1, SIZE),
        (f"bytes=-{SIZE + 1}", 0, SIZE),
        (f"bytes={MIB - 1}-{MIB}", MIB - 1, MIB + 1),
        ("bytes= 1-2 ", 1, 3),
    ],
)
def test_one_range_is_answered_with_exactly_its_bytes(people: People, header: str, start: int, stop: int) -> None:
    answer = people.node.get(f"/v1/objects/{DIGEST}", Range=header)
    assert answer.status == 206
    assert answer.data == DATA[start:stop]
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{SIZE}"
    assert answer.headers["Content-Length"] == str(stop - start)
    assert answer.headers["ETag"] == f'"{DIGEST}"'


@pytest.mark.parametrize(
    "header",
    [
        "bytes=0-1,3-4",
        "bytes=9-5",
        "bytes=-",
        "bytes=a-b",
        "lines=0-5",
        "bytes",
        "bytes=" + "9" * 40 + "-",
        "bytes=" + "0-1," * 500 + "0-1",
    ],
)
def test_what_is_not_one_range_is_answered_with_everything(people: People, header: str) -> None:
    answer = people.node.get(f"/v1/objects/{DIGEST}", Range=header)
    assert (answer.status, answer.data) == (200, DATA)
    assert answer.headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(
    ("digest", "size", "header"),
    [(DIGEST, SIZE, f"bytes={SIZE}-"), (DIGEST, SIZE, "bytes=-0"), (EMPTY, 0, "bytes=0-"), (EMPTY, 0, "bytes=-5")],
)
def test_a_range_outside_says_how_long_the_object_is(people: People, digest: str, size: int, header: str) -> None:
    answer = people.node.get(f"/v1/objects/{digest}", Range=header)
    assert (answer.status, answer.json()["code"]) == (416, "range_unsatisfiable")
    assert answer.headers["Content-Range"] == f"bytes */{size}"


@pytest.mark.parametrize("header", [f'"{DIGEST}"', f'W/"{DIGEST}"', f'"x", "{DIGEST}"', "*"])
def test_what_the_caller_has_is_not_sent_again(people: People, header: str) -> None:
    for method in ("GET", "HEAD"):
        answer = people.node.request(method, f"/v1/objects/{DIGEST}", headers={"If-None-Match": header})
        assert (answer.status, answer.data, answer.headers["ETag"]) == (304, b"", f'"{DIGEST}"')
    other = people.node.get(f"/v1/objects/{DIGEST}", If_None_Match='"other"', Range="bytes=0-3")
    assert (other.status, other.data) == (206, DATA[:4])


def test_a_range_counts_only_if_it_is_of_the_same_object(people: People) -> None:
    same = people.node.get(f"/v1/objects/{DIGEST}", Range="bytes=0-3", If_Range=f'"{DIGEST}"')
    assert (same.status, same.data) == (206, DATA[:4])
    other = people.node.get(f"/v1/objects/{DIGEST}", Range="bytes=0-3", If_Range='"other"')
    assert (other.status, other.data) == (200, DATA)


def test_head_tells_the_size_without_the_bytes(people: People) -> None:
    answer = people.node.request("HEAD", f"/v1/objects/{DIGEST}", headers={"Range": "bytes=0-3"})
    assert (answer.status, answer.data, answer.headers["Content-Length"]) == (200, b"", str(SIZE))
    empty = people.node.get(f"/v1/objects/{EMPTY}")
    assert (empty.status, empty.data, empty.headers["Content-Length"]) == (200, b"", "0")


def test_a_manifest_has_ranges_and_an_etag_too(people: People) -> None:
    digest = people.reader.ok("GET", release_path(REF))["manifest_digest"]
    whole = people.node.get(f"/v1/manifests/{digest}")
    assert hashlib.sha256(whole.data).hexdigest() == digest
    assert whole.headers["ETag"] == f'"{digest}"'
    part = people.node.get(f"/v1/manifests/{digest}", Range="bytes=10-19")
    assert (part.status, part.data) == (206, whole.data[10:20])
    assert people.node.get(f"/v1/manifests/{digest}", If_None_Match=f'"{digest}"').status == 304
    assert people.node.get(f"/v1/objects/{digest}").status == 404


def test_an_object_needs_a_token_and_a_digest_for_a_name(people: People) -> None:
    assert people.nobody.get(f"/v1/objects/{DIGEST}").status == 401
    assert people.node.get(f"/v1/objects/{DIGEST.upper()}").status == 422
    assert people.node.get("/v1/objects/..%2f..%2fcatalog.key").status in (404, 422)
    assert people.node.get(f"/v1/objects/{'0' * 64}").status == 404


def test_a_withdrawn_releases_objects_are_read_by_nobody_but_the_reviewers(people: People, ref: str) -> None:
    data = b"only in the withdrawn one"
    digest = hashlib.sha256(data).hexdigest()
    people.publish(ref, {"a": data})
    assert people.node.get(f"/v1/objects/{digest}").data == data
    people.bob.ok("POST", release_path(ref, "withdraw"), {"reason_code": "personal_data"})
    for api in (people.node, people.reader, people.carol, people.alice):
        assert api.get(f"/v1/objects/{digest}").status == 404
    assert people.bob.get(f"/v1/objects/{digest}").data == data


def test_a_restricted_collection_is_open_to_its_owners_and_readers_only(people: People, ref: str) -> None:
    data = b"restricted bytes"
    digest = hashlib.sha256(data).hexdigest()
    people.publish(ref, {"a": data}, title="Restricted title", facets={"language": ["xq"]})
    collection = release_path(ref).rsplit("/releases/", 1)[0]
    people.carol.refused("PUT", f"{collection}/access", 403, "not_owner", {"access": "restricted"})
    people.alice.refused(
        "PUT", f"{collection}/access", 422, "no_principal", {"access": "restricted", "readers": ["stranger"]}
    )
    people.alice.ok("PUT", f"{collection}/access", {"access": "restricted", "readers": ["node-1"]})
    for api, opened in ((people.node, True), (people.alice, True), (people.reader, False), (people.carol, False)):
        status = 200 if opened else 404
        assert api.get(f"/v1/objects/{digest}").status == status
        assert api.get(release_path(ref)).status == status
        assert api.get(collection).status == status
        found = api.ok("GET", "/v1/search?q=restricted+title")
        assert len(found["collections"]) == opened
        assert found["facets"]["language"].get("xq", 0) == opened
        listed = [item["collection"] for item in api.ok("GET", "/v1/collections?limit=1000")["collections"]]
        assert (ref.partition("@")[0] in listed) == opened
    second = ref.replace("@1.0", "@2.0")
    people.carol.refused("PUT", release_path(second), 403, "collection_closed", about_of())
