"""The catalog over a real S3 server: redirects to signed addresses, packs and manifests through the store."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3

from catalog.names import parse_release
from openshelf.units import MIB
from tests.support.catalog_api import People, about_of, release_path
from tests.support.catalog_server import RunningCatalog, running_catalog
from tests.support.releases import make_release
from tests.support.s3_server import BUCKET, S3Server

FILES = {"large.bin": random.Random(1).randbytes(9 * MIB), "small": b"small", "empty": b""}
REF = "datasets/remote/corpus@1.0"


@pytest.fixture(scope="module")
def catalog(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment().items():
            patch.setenv(name, value)
        folder: Path = tmp_path_factory.mktemp("catalog")
        with running_catalog(folder / "data", f"s3://{BUCKET}/{folder.name}") as running:
            yield running


@pytest.fixture(scope="module")
def published(people: People) -> dict[str, str]:
    people.publish(REF, FILES)
    items = people.reader.ok("GET", release_path(REF, "files"))["files"]
    return {item["path"]: item["sha256"] for item in items}


def fetch(url: str, **headers: str) -> urllib3.BaseHTTPResponse:
    with urllib3.PoolManager(retries=False) as pool:
        return pool.request("GET", url, headers=headers)


def test_an_object_is_a_redirect_to_a_signed_address_for_who_may_read_it(
    people: People, published: dict[str, str]
) -> None:
    path = f"/v1/objects/{published['large.bin']}"
    answer = people.node.get(path, Range="bytes=4-9")
    assert answer.status == 307
    assert answer.headers["Cache-Control"] == "no-store"
    location = answer.headers["Location"]
    assert urlsplit(location).netloc in people.node.ok("GET", "/v1/feed/head")["document"]["object_hosts"]
    part = fetch(location, Range="bytes=4-9")
    assert (part.status, part.data) == (206, FILES["large.bin"][4:10])
    assert fetch(location).data == FILES["large.bin"]
    assert fetch(location.partition("?")[0]).status == 403
    assert people.nobody.get(path).status == 401
    assert people.node.get(path, If_None_Match=f'"{published["large.bin"]}"').status == 304
    head = people.node.request("HEAD", path)
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(FILES["large.bin"])))


def test_the_manifest_is_the_same_as_over_a_folder_and_comes_back_from_the_store(
    people: People, catalog: RunningCatalog, published: dict[str, str], tmp_path: Path
) -> None:
    expected = make_release(parse_release(REF), FILES, tmp_path).digest
    assert people.reader.ok("GET", release_path(REF))["manifest_digest"] == expected
    shutil.rmtree(catalog.data / "manifests")
    (catalog.data / "manifests").mkdir()
    answer = people.node.get(f"/v1/manifests/{expected}")
    assert hashlib.sha256(answer.data).hexdigest() == expected
    assert len(published) == 3


def test_no_object_lies_in_the_data_folder_and_review_objects_are_streamed(
    people: People, catalog: RunningCatalog, ref: str
) -> None:
    people.alice.draft(ref, {"a": b"reviewed"})
    path = release_path(ref, "attachments/report.json")
    body = b'{"rows_in": 1}'
    headers = {"Content-Type": "application/json"}
    assert people.alice.request("PUT", path, body=body, headers=headers).status == 200
    answer = people.alice.get(path)
    assert (answer.status, answer.data, answer.headers["Content-Type"]) == (200, body, "application/json")
    assert not (catalog.data / "objects").exists()
    assert people.reader.get(f"/v1/objects/{hashlib.sha256(body).hexdigest()}").status == 404


def test_a_corrupted_body_leaves_nothing_in_the_store(people: People, s3_server: S3Server, ref: str) -> None:
    data = random.Random(2).randbytes(2 * MIB)
    digest = hashlib.sha256(data).hexdigest()
    people.alice.ok("PUT", release_path(ref), about_of())
    answer = people.alice.put_object(ref, data[:-1] + b"x", digest)
    assert (answer.status, answer.json()["code"]) == (422, "digest_mismatch")
    assert people.alice.ok("POST", release_path(ref, "missing"), {"digests": [digest]})["missing"] == [digest]
    assert people.alice.put_object(ref, data).status == 200
