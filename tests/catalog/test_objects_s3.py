"""The object store in S3 against a real server: signed addresses, aborts, wrong settings, a dying store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3

from catalog.objects import ObjectStore, StoreUnavailable, open_store, s3
from openshelf.errors import OpenshelfError
from tests.support.s3_server import BUCKET, S3Server, free_ports

MIB = 1 << 20


@pytest.fixture
def environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture
def store(environment: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectStore]:
    opened = open_store(f"s3://{BUCKET}/{tmp_path.name}", tmp_path)
    yield opened
    opened.close()


def get(url: str, **headers: str) -> tuple[int, bytes]:
    with urllib3.PoolManager(retries=False) as pool:
        answer = pool.request("GET", url, headers=headers, timeout=10)
        return answer.status, answer.data


def test_a_presigned_address_reads_ranges_without_keys(store: ObjectStore) -> None:
    digest = store.put([bytes(range(256)) * 10_000], None, None).sha256
    url = store.presign(digest)
    assert url is not None
    assert get(url, Range="bytes=1000-1009") == (206, bytes(range(232, 242)))
    assert urlsplit(url).netloc in store.hosts()
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in url


def test_expired_tampered_and_anonymous_addresses_are_refused(store: ObjectStore) -> None:
    digest = store.put([b"for members only"], None, None).sha256
    other = store.put([b"another object"], None, None).sha256
    url = store.presign(digest, ttl_s=1)
    valid = store.presign(digest)
    assert url is not None
    assert valid is not None
    assert get(url)[0] == 200
    assert get(valid.partition("?")[0])[0] == 403
    assert (
        get(valid.replace(digest, other).replace(f"/{digest[:2]}/{digest[2:4]}/", f"/{other[:2]}/{other[2:4]}/"))[0]
        == 403
    )
    assert get(valid.replace("X-Amz-Expires=60", "X-Amz-Expires=6000"))[0] == 403
    flipped = "0" if valid[-1] != "0" else "1"
    assert get(valid[:-1] + flipped)[0] == 403
    time.sleep(2.1)
    status, body = get(url)
    assert status == 403
    assert b"members" not in body


def test_a_part_damaged_on_the_way_is_refused_by_the_store(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_base64", lambda digest: "A" * 43 + "=")
    content = hashlib.shake_128(b"parts").digest(9 * MIB)
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(StoreUnavailable, match="BadDigest"):
        store.put([content], len(content), digest)
    assert store.size(digest) is None


def test_an_abandoned_upload_is_swept_at_the_next_start_and_a_fresh_one_is_not(
    store: ObjectStore, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = s3_server.client()
    key = f"{tmp_path.name}/sha256/ab/cd/{'ab' * 32}"
    client.create_multipart_upload(Bucket=BUCKET, Key=key)

    def uploads() -> int:
        return len(client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{tmp_path.name}/").get("Uploads", []))

    open_store(f"s3://{BUCKET}/{tmp_path.name}", tmp_path).close()
    assert uploads() == 1

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=1, minutes=1)

    monkeypatch.setattr(s3, "datetime", Tomorrow)
    open_store(f"s3://{BUCKET}/{tmp_path.name}", tmp_path).close()
    assert uploads() == 0
    client.close()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "not-the-key"}, "store_forbidden"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "store_forbidden"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no_store_keys"),
        ({"AWS_ENDPOINT_URL_S3": "not an address"}, "bad_store_settings"),
    ],
)
def test_wrong_settings_are_one_clear_line_at_the_start(
    environment: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, str], code: str
) -> None:
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    environment.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name, value in settings.items():
        if value:
            environment.setenv(name, value)
        else:
            environment.delenv(name)
    with pytest.raises(OpenshelfError) as caught:
        open_store(f"s3://{BUCKET}/x", tmp_path)
    assert caught.value.code == code
    assert "\n" not in caught.value.line()
    assert "not-the-key" not in caught.value.line()


def test_a_missing_bucket_is_one_clear_line_at_the_start(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(OpenshelfError, match="no bucket 'nowhere'"):
        open_store("s3://nowhere/x", tmp_path)


def test_a_store_that_is_not_there_is_said_within_seconds(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_ports(1)[0]}")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        open_store(f"s3://{BUCKET}/x", tmp_path)
    assert time.monotonic() - began < 20


def test_a_store_that_dies_is_unavailable_for_every_call_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Server.start(tmp_path / "server") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}/x", tmp_path)
        digest = store.put([b"there"], None, None).sha256
        server.process.kill()
        server.process.wait()
        for call in (
            lambda: store.size(digest),
            lambda: list(store.open(digest)),
            lambda: store.put([b"new"], None, None),
            lambda: store.put([b"x" * 9 * MIB], 9 * MIB, "ab" * 32),
            lambda: store.delete(digest),
            lambda: store.check(),
        ):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                call()
            assert time.monotonic() - began < 20
        store.close()
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize(
    ("size", "part"), [(1, 8 * MIB), (80_000 * MIB, 8 * MIB), (80_000 * MIB + 1, 9 * MIB), (5 << 40, 525 * MIB)]
)
def test_parts_are_never_more_than_ten_thousand(size: int, part: int) -> None:
    assert s3.part_bytes(size) == part
    assert -(-size // part) <= 10_000
