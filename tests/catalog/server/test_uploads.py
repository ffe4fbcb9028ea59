"""Objects in, sealed manifests out: what is there, whose it is, and what is refused."""

from __future__ import annotations

import hashlib
import io
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from catalog.manifest import Manifest
from catalog.names import parse_release
from openshelf.units import MIB
from tests.support.catalog_api import People, about_of, listing_of, release_path
from tests.support.catalog_server import RunningCatalog
from tests.support.releases import make_release


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def stored_files(catalog: RunningCatalog) -> set[str]:
    return {path.name for path in (catalog.data / "objects" / "sha256").rglob("*") if path.is_file()}


def test_the_sealed_manifest_is_the_one_computed_from_the_files_alone(people: People, ref: str, tmp_path: Path) -> None:
    files = {
        "README.md": b"# made up\n",
        "data/\u7532/a.txt": noise(10, 1),
        "data/\u7532/b.txt": noise(10, 1),
        "data/empty": b"",
        "data/large.bin": noise(9 * MIB + 5, 2),
        "data/mebibyte.bin": noise(MIB, 3),
    } | {f"small/{number:03d}": noise(900_000, number) for number in range(80)}
    sealed = people.alice.draft(ref, files)
    expected = make_release(parse_release(ref), files, tmp_path)
    assert sealed["manifest_digest"] == expected.digest
    assert (sealed["files"], sealed["size_bytes"]) == (len(files), sum(map(len, files.values())))
    answer = people.alice.get(f"/v1/manifests/{expected.digest}")
    (tmp_path / "files.arrow").write_bytes(answer.data)
    rows = list(Manifest.open(tmp_path / "files.arrow", bytes.fromhex(expected.digest)).rows())
    assert [row.path for row in rows] == sorted(files, key=str.encode)
    for row in rows:
        if not row.size:
            continue
        body = people.alice.get(
            f"/v1/objects/{row.object.hex()}", Range=f"bytes={row.offset}-{row.offset + row.size - 1}"
        )
        assert body.status == 206
        assert body.data == files[row.path]


def test_the_same_files_in_another_catalog_have_the_same_digest_whatever_their_order(
    people: People, new_ref: Callable[[], str]
) -> None:
    files = {"b": b"2", "a": b"1", "c/d": b"3"}
    first = people.alice.draft(new_ref(), files)
    second = people.carol.draft(new_ref(), dict(reversed(files.items())))
    assert first["manifest_digest"] == second["manifest_digest"]


def test_missing_counts_own_uploads_and_readable_releases_only(people: People, new_ref: Callable[[], str]) -> None:
    secret, published = noise(5000, 11), noise(5000, 12)
    people.alice.draft(new_ref(), {"secret": secret})
    people.publish(new_ref(), {"open": published})
    ref = new_ref()
    people.carol.ok("PUT", release_path(ref), about_of())
    asked = {"digests": [sha256(secret), sha256(published), "0" * 64]}
    assert people.carol.ok("POST", release_path(ref, "missing"), asked)["missing"] == [sha256(secret), "0" * 64]
    assert people.carol.put_object(ref, secret).status == 200
    assert people.carol.ok("POST", release_path(ref, "missing"), asked)["missing"] == ["0" * 64]


def test_nobody_reads_anothers_unpublished_object_by_claiming_its_digest(
    people: People, new_ref: Callable[[], str]
) -> None:
    secret = noise(MIB + 1, 13)
    hidden = new_ref()
    sealed = people.alice.draft(hidden, {"secret.bin": secret})
    claim = new_ref()
    people.carol.ok("PUT", release_path(claim), about_of())
    answer = people.carol.seal(claim, {"mine.bin": secret})
    assert (answer.status, answer.json()["code"]) == (422, "missing_objects")
    for api in (people.carol, people.reader, people.node, people.bob):
        assert api.get(f"/v1/objects/{sha256(secret)}").status == 404
        assert api.get(f"/v1/manifests/{sealed['manifest_digest']}").status == 404
        assert api.get(release_path(hidden, "files")).status in (403, 404)
    assert people.alice.get(f"/v1/objects/{sha256(secret)}").data == secret
    people.alice.ok("POST", release_path(hidden, "submit"))
    assert people.bob.get(f"/v1/objects/{sha256(secret)}").data == secret
    assert people.carol.get(f"/v1/objects/{sha256(secret)}").status == 404


def test_a_corrupted_body_stores_nothing(people: People, catalog: RunningCatalog, ref: str) -> None:
    data, damaged = noise(3 * MIB, 21), noise(3 * MIB, 22)
    people.alice.ok("PUT", release_path(ref), about_of())
    before = stored_files(catalog)
    answer = people.alice.put_object(ref, damaged, sha256(data))
    assert (answer.status, answer.json()["code"]) == (422, "digest_mismatch")
    assert stored_files(catalog) == before
    assert list((catalog.data / "objects" / "incoming").iterdir()) == []
    assert people.alice.ok("POST", release_path(ref, "missing"), {"digests": [sha256(data), sha256(damaged)]})[
        "missing"
    ] == [sha256(data), sha256(damaged)]


def test_a_body_that_breaks_off_stores_nothing(people: People, catalog: RunningCatalog, ref: str) -> None:
    data = noise(2 * MIB, 23)
    people.alice.ok("PUT", release_path(ref), about_of())
    before = stored_files(catalog)
    host, port = catalog.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = (
            f"PUT {release_path(ref)}/objects/{sha256(data)} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {catalog.token('alice', 'curator')}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        connection.sendall(head.encode() + data[: MIB + 17])
    assert people.alice.put_object(ref, b"after").status == 200
    assert sha256(data) not in stored_files(catalog) - before
    assert people.alice.put_object(ref, data).status == 200


def test_an_object_needs_its_length_announced(people: People, ref: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    path = f"{release_path(ref)}/objects/{sha256(b'ab')}"
    answer = people.alice.request("PUT", path, body=iter([b"a", b"b"]))
    assert (answer.status, answer.json()["code"]) == (411, "length_required")


def test_only_the_uploader_fills_his_draft(people: People, ref: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    for api, status in ((people.carol, 403), (people.administrator, 403), (people.bob, 403), (people.reader, 403)):
        assert api.put_object(ref, b"x").status == status
        assert api.seal(ref, {"x": b"x"}).status == status
        assert api.request("PUT", release_path(ref, "attachments/report.json"), body=b"{}").status == status


def test_uploads_at_once_of_the_same_and_of_other_objects_all_arrive(
    people: People, catalog: RunningCatalog, ref: str
) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    bodies = [noise(MIB // 2, number % 6) for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: people.alice.put_object(ref, body).status, bodies))
    assert answers == [200] * 24
    digests = [sha256(body) for body in bodies]
    assert people.alice.ok("POST", release_path(ref, "missing"), {"digests": digests})["missing"] == []
    assert set(digests) <= stored_files(catalog)


def test_slow_uploads_do_not_hold_up_readers(people: People, catalog: RunningCatalog, ref: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    token = catalog.token("alice", "curator")
    host, port = catalog.url.removeprefix("http://").split(":")
    connections = []
    for _ in range(60):
        connection = socket.create_connection((host, int(port)))
        head = (
            f"PUT {release_path(ref)}/objects/{'0' * 64} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: 1000000\r\n\r\n"
        )
        connection.sendall(head.encode() + b"x")
        connections.append(connection)
    try:
        assert people.reader.get("/v1/whoami").status == 200
        assert people.reader.get("/readyz").status == 200
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "../up",
        "/etc/passwd",
        "a/../b",
        "a//b",
        "a\\b",
        "a\x00b",
        "e\u0301.txt",
        "a\u202eb",
        "release.json",
        "x" * 181,
        "trailing. ",
        "",
    ],
)
def test_an_unsafe_path_is_refused_and_the_draft_stays(people: People, ref: str, path: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    people.alice.put_object(ref, b"x")
    answer = people.alice.seal(ref, {"x": b"x"}, paths=[path])
    assert (answer.status, answer.json()["code"]) == (422, "invalid_path")
    assert people.alice.ok("GET", release_path(ref))["state"] == "draft"
    assert people.alice.seal(ref, {"x": b"x"}).status == 200


def test_paths_that_collide_and_modes_of_links_are_refused(people: People, ref: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    people.alice.put_object(ref, b"x")
    digest = [hashlib.sha256(b"x").digest()] * 2
    for paths, code in ((["a", "A"], "invalid_path"), (["a", "a/b"], "invalid_path"), (["a", "a"], "double_path")):
        answer = people.alice.seal(ref, {}, paths=paths, digests=digest)
        assert (answer.status, answer.json()["code"]) == (422, code)
    for mode in (0o120777, 0o644, 0o4755, 0):
        answer = people.alice.seal(ref, {"a": b"x"}, modes=[mode])
        assert (answer.status, answer.json()["code"]) == (422, "bad_mode")
    assert people.alice.seal(ref, {"a": b"x"}, modes=[0o555]).status == 200
    assert people.alice.ok("GET", release_path(ref, "files"))["files"] == [
        {"path": "a", "size": 1, "sha256": sha256(b"x"), "mode": 0o555}
    ]


@pytest.mark.parametrize(
    "body", [b"", b"not arrow at all", listing_of({"a": b"x"})[:-40], listing_of({"a": b"x"})[40:]]
)
def test_a_list_that_is_no_arrow_stream_is_refused(people: People, ref: str, body: bytes) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    people.alice.put_object(ref, b"x")
    answer = people.alice.request("POST", release_path(ref, "seal"), body=body)
    assert answer.status in (411, 422), answer.data
    assert people.alice.ok("GET", release_path(ref))["state"] == "draft"


def test_digests_of_a_list_may_be_hexadecimal_and_paths_short_strings(people: People, ref: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    people.alice.put_object(ref, b"x")
    table = pa.table(
        {
            "path": pa.array(["a"]),
            "sha256": pa.array([sha256(b"x")]),
            "mode": pa.array([0o444], pa.int32()),
            "mtime_ns": pa.array([0], pa.int64()),
        }
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert people.alice.request("POST", release_path(ref, "seal"), body=sink.getvalue()).status == 200


def test_sealing_twice_at_once_seals_once(people: People, ref: str) -> None:
    files = {f"{number}.bin": noise(200_000, number) for number in range(30)}
    people.alice.ok("PUT", release_path(ref), about_of())
    for data in files.values():
        people.alice.put_object(ref, data)
    barrier = threading.Barrier(3)

    def seal() -> tuple[int, str]:
        barrier.wait()
        answer = people.alice.seal(ref, files)
        return answer.status, answer.json()["manifest_digest"]

    with ThreadPoolExecutor(3) as pool:
        outcomes = [pool.submit(seal) for _ in range(3)]
        assert len({outcome.result() for outcome in outcomes}) == 1
    entries = people.administrator.ok("GET", "/v1/ledger?limit=10000")["entries"]
    sealed = [
        item for item in entries if item["entry"]["event"] == "release.sealed" and item["entry"]["subject"] == ref
    ]
    assert len(sealed) == 1


def test_review_objects_are_for_the_uploader_and_the_reviewers_only(people: People, ref: str) -> None:
    rejects = b"a rejected line"
    people.alice.draft(ref, {"a": noise(100, 31)})
    path = release_path(ref, "attachments/rejects.parquet")
    answer = people.alice.request("PUT", path, body=rejects, headers={"Content-Type": "application/x-parquet"})
    assert answer.status == 200, answer.data
    people.alice.request(
        "PUT", release_path(ref, "attachments/report.json"), body=b"{}", headers={"Content-Type": "application/json"}
    )
    for api, status in (
        (people.alice, 200),
        (people.administrator, 200),
        (people.carol, 403),
        (people.bob, 404),
        (people.reader, 404),
        (people.node, 404),
    ):
        assert api.get(path).status == status
        assert api.get(release_path(ref, "attachments")).status == status
    people.alice.ok("POST", release_path(ref, "submit"))
    assert people.bob.get(path).data == rejects
    people.bob.ok("POST", release_path(ref, "approve"))
    people.bob.ok("POST", release_path(ref, "publish"))
    for api in (people.reader, people.node, people.carol):
        assert api.get(path).status == 403
        assert api.get(release_path(ref, "report")).data == b"{}"
        assert api.get(f"/v1/objects/{sha256(rejects)}").status == 404
    again = people.alice.request("PUT", path, body=rejects, headers={"Content-Type": "application/x-parquet"})
    assert again.status == 200
    changed = people.alice.request("PUT", path, body=b"other", headers={"Content-Type": "application/x-parquet"})
    assert (changed.status, changed.json()["code"]) == (409, "wrong_state")
    listed = [item["path"] for item in people.reader.ok("GET", release_path(ref, "files"))["files"]]
    assert listed == ["a"]


@pytest.mark.parametrize("name", ["..%2Fup", "%2e%2e", ".hidden", "a%0d%0aSet-Cookie:%20x", "a%00b", "x" * 200])
def test_a_review_object_has_a_plain_name(people: People, ref: str, name: str) -> None:
    people.alice.ok("PUT", release_path(ref), about_of())
    answer = people.alice.request("PUT", release_path(ref, f"attachments/{name}"), body=b"x")
    assert answer.status in (404, 405, 422), answer.data
    bad = {"Content-Type": "text/html\tx"}
    answer = people.alice.request("PUT", release_path(ref, "attachments/a.html"), body=b"x", headers=bad)
    assert (answer.status, answer.json()["code"]) == (400, "bad_media_type")


def test_files_are_listed_a_page_at_a_time(people: People, ref: str) -> None:
    files = {f"{number:02d}": noise(10, number) for number in range(7)}
    people.publish(ref, files)
    path, found = release_path(ref, "files?limit=3"), []
    while path:
        answer = people.reader.get(path)
        found += [item["path"] for item in answer.json()["files"]]
        link = answer.headers.get("Link")
        path = link.split(">")[0].removeprefix("<") if link else ""
    assert found == sorted(files)
    people.reader.refused("GET", release_path(ref, "files?cursor=nonsense"), 400, "bad_cursor")
