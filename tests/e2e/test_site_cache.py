"""The shipped site-cache configuration in a real nginx, before a real catalog and S3 server."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from openshelf.units import MIB
from tests.support.catalog_api import Api, People, release_path
from tests.support.catalog_server import running_catalog
from tests.support.s3_server import BUCKET, S3Server
from tests.support.site_cache import SiteCache, site_cache

LARGE = random.Random(3).randbytes(9 * MIB + 17)
DIGEST = hashlib.sha256(LARGE).hexdigest()
REF = "datasets/site/corpus@1.0"


class Site:
    """A catalog over S3 with one release, and a site cache before both."""

    def __init__(self, people: People, cache: SiteCache, server: S3Server) -> None:
        self.people = people
        self.cache = cache
        self.server = server
        self.node = Api(cache.url, people.node._headers["Authorization"].removeprefix("Bearer "))

    def get(self, digest: str = DIGEST, **headers: str) -> tuple[int, bytes, str]:
        answer = self.node.get(f"/v1/objects/{digest}", **headers)
        return answer.status, answer.data, answer.headers.get("X-Openshelf-Cache", "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch, S3Server.start(folder / "s3") as server:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        with running_catalog(folder / "data", f"s3://{BUCKET}/o") as catalog:
            people = People(catalog)
            people.publish(REF, {"large.bin": LARGE})
            addresses = (catalog.url.removeprefix("http://"), server.endpoint.removeprefix("http://"))
            with site_cache(folder / "nginx", *addresses) as cache:
                yield Site(people, cache, server)
            people.close()


def test_it_follows_the_redirect_itself_and_keeps_slices(site: Site) -> None:
    start, stop = 3 * MIB, 8 * MIB + 5  # of three slices
    status, body, first = site.get(Range=f"bytes={start}-{stop - 1}")
    assert (status, first) == (206, "MISS")
    assert body == LARGE[start:stop]
    status, body, again = site.get(Range=f"bytes={start}-{stop - 1}")
    assert (status, body, again) == (206, LARGE[start:stop], "HIT")
    status, body, _ = site.get()
    assert (status, hashlib.sha256(body).hexdigest()) == (200, DIGEST)


def test_who_may_not_read_it_gets_nothing_of_what_is_kept(site: Site) -> None:
    assert site.get()[0] == 200
    path = f"/v1/objects/{DIGEST}"
    assert Api(site.cache.url).get(path).status == 401
    assert Api(site.cache.url, "osk_" + "A" * 22 + "_" + "B" * 43).get(path).status == 401
    stranger = site.people.carol
    assert stranger.get(f"/v1/access{path.removeprefix('/v1')}").status == 204
    assert site.get("0" * 64)[0] == 403
    for other in ("/v1/feed/head", "/", f"{path}/../../feed", "/_allowed"):
        assert site.node.get(other).status in (403, 404), other
    assert site.node.request("PUT", path, body=b"x").status == 403


def test_no_token_and_no_signed_address_lies_on_its_disk(site: Site) -> None:
    site.get()
    token = site.node._headers["Authorization"].removeprefix("Bearer ").encode()
    kept = [path for path in site.cache.objects.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        content = path.read_bytes()
        assert token not in content
        assert b"X-Amz-Signature" not in content


def test_what_is_asked_anew_replaces_what_is_kept(site: Site) -> None:
    site.get()
    damaged = next(path for path in site.cache.objects.rglob("*") if path.is_file() and path.stat().st_size > 3 * MIB)
    with damaged.open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"\0" * 500)
    assert hashlib.sha256(site.get()[1]).hexdigest() != DIGEST
    status, body, how = site.get(Cache_Control="no-cache")
    assert (status, how) == (200, "BYPASS")
    assert hashlib.sha256(body).hexdigest() == DIGEST
    assert hashlib.sha256(site.get()[1]).hexdigest() == DIGEST


def test_it_goes_on_without_the_store_and_withdrawn_objects_are_refused(site: Site) -> None:
    assert site.get()[0] == 200
    site.server.stop()
    status, body, how = site.get()
    assert (status, how, hashlib.sha256(body).hexdigest()) == (200, "HIT", DIGEST)
    site.people.alice.ok("POST", release_path(REF, "withdraw"), {"reason_code": "privacy", "note": "asked for"})
    fresh = site.people.catalog.token("another-node", "node")  # whose right was not asked for in the last minute
    assert Api(site.cache.url, fresh).get(f"/v1/objects/{DIGEST}").status == 403
