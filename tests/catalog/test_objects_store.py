"""What every object store must do: the same tests on a local folder and on a real S3 server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from blake3 import blake3

from catalog.objects import DigestMismatch, ObjectMissing, ObjectStore, ShortBody, StoreUnavailable, open_store
from tests.support.s3_server import BUCKET, S3Server

MIB = 1 << 20


@dataclass(frozen=True)
class Place:
    """A store and where it keeps its things."""

    store: ObjectStore
    folder: Path
    server: S3Server | None

    def everything(self) -> list[str]:
        """Names of all that the store holds, half-written things included."""
        files = [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()]
        if self.server is None:
            return files
        client = self.server.client()
        objects = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.folder.name}/").get("Contents", [])
        uploads = client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{self.folder.name}/").get("Uploads", [])
        client.close()
        return files + [item["Key"] for item in objects] + [f"upload {item['Key']}" for item in uploads]


@pytest.fixture(scope="module", params=["local", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        server: S3Server | None = None
        if request.param == "s3":
            server = request.getfixturevalue("s3_server")
            assert server is not None
            for name, value in server.environment().items():
                patch.setenv(name, value)
        store = open_store(f"s3://{BUCKET}/{folder.name}" if server else None, folder)
        yield Place(store, folder, server)
        store.close()


@pytest.fixture
def place(opened: Place) -> Iterator[Place]:
    """The same store for all tests, empty for each."""
    yield opened
    for name in opened.everything():
        opened.store.delete(name.rpartition("/")[2])


@pytest.fixture
def store(place: Place) -> ObjectStore:
    return place.store


def pieces(content: bytes, size: int = 300_000) -> Iterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def noise(size: int, seed: bytes = b"seed") -> bytes:
    return hashlib.shake_128(seed).digest(size)


def test_what_is_put_comes_back_with_digests_of_every_chunk(store: ObjectStore) -> None:
    content = noise(9 * MIB + 17)
    stored = store.put(pieces(content), len(content), None)
    assert stored.sha256 == hashlib.sha256(content).hexdigest()
    assert stored.size == len(content)
    assert stored.chunks == tuple(blake3(content[at : at + 4 * MIB]).digest() for at in (0, 4 * MIB, 8 * MIB))
    assert b"".join(store.open(stored.sha256)) == content
    assert store.size(stored.sha256) == len(content)


def test_an_object_of_several_parts_is_put_to_its_announced_digest(store: ObjectStore) -> None:
    content = noise(27 * MIB + 5)
    digest = hashlib.sha256(content).hexdigest()
    assert store.put(pieces(content), len(content), digest).sha256 == digest
    assert hashlib.sha256(b"".join(store.open(digest))).hexdigest() == digest


@pytest.mark.parametrize("announced", [True, False])
def test_an_empty_object_is_an_object(store: ObjectStore, announced: bool) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    stored = store.put(iter(()), 0 if announced else None, digest if announced else None)
    assert (stored.sha256, stored.size, stored.chunks) == (digest, 0, ())
    assert store.size(digest) == 0
    assert b"".join(store.open(digest)) == b""


@pytest.mark.parametrize(("start", "length"), [(0, 1), (5, 10), (999_990, 10), (0, 1_000_000), (7, None), (12, 0)])
def test_a_range_is_exactly_the_bytes_asked_for(store: ObjectStore, start: int, length: int | None) -> None:
    content = noise(1_000_000)
    digest = store.put([content], None, None).sha256
    stop = len(content) if length is None else start + length
    assert b"".join(store.open(digest, start, length)) == content[start:stop]


@pytest.mark.parametrize(("start", "length"), [(90, 20), (100, 1), (500, 3)])
def test_a_range_past_the_end_is_an_error_and_not_fewer_bytes(store: ObjectStore, start: int, length: int) -> None:
    digest = store.put([noise(100)], None, None).sha256
    with pytest.raises(StoreUnavailable, match="early"):
        b"".join(store.open(digest, start, length))


@pytest.mark.parametrize("size", [1000, 20 * MIB])
def test_bytes_of_another_digest_are_refused_and_leave_nothing(store: ObjectStore, place: Place, size: int) -> None:
    content = noise(size)
    claimed = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(DigestMismatch):
        store.put(pieces(content), size, claimed)
    assert store.size(claimed) is None
    assert store.size(hashlib.sha256(content).hexdigest()) is None
    assert place.everything() == []


@pytest.mark.parametrize("announced", [19 * MIB, 21 * MIB])
def test_a_body_of_another_length_is_refused_and_leaves_nothing(
    store: ObjectStore, place: Place, announced: int
) -> None:
    content = noise(20 * MIB)
    with pytest.raises(ShortBody):
        store.put(pieces(content), announced, hashlib.sha256(content).hexdigest())
    assert place.everything() == []


@pytest.mark.parametrize("announced", [True, False])
def test_a_sender_that_breaks_off_leaves_nothing_and_its_own_error_is_seen(
    store: ObjectStore, place: Place, announced: bool
) -> None:
    def broken() -> Iterator[bytes]:
        yield noise(20 * MIB)
        raise ConnectionResetError("the sender went away")

    with pytest.raises(ConnectionResetError):
        store.put(broken(), 30 * MIB if announced else None, "ab" * 32 if announced else None)
    assert place.everything() == []


def test_the_same_object_twice_is_one_object(store: ObjectStore, place: Place) -> None:
    content = noise(10 * MIB)
    digest = hashlib.sha256(content).hexdigest()
    first = store.put(pieces(content), len(content), digest)
    assert store.put(pieces(content), len(content), digest) == first
    assert store.put(pieces(content), None, None) == first
    assert len(place.everything()) == 1


def test_claiming_an_object_that_is_there_without_having_it_fails(store: ObjectStore) -> None:
    content = noise(1000)
    digest = store.put([content], None, None).sha256
    with pytest.raises(DigestMismatch):
        store.put([noise(1000, b"other")], 1000, digest)
    assert b"".join(store.open(digest)) == content


def test_an_absent_object_has_no_size_and_cannot_be_read_nor_deleted_wrongly(store: ObjectStore) -> None:
    assert store.size("00" * 32) is None
    with pytest.raises(ObjectMissing):
        list(store.open("00" * 32))
    store.delete("00" * 32)


def test_a_deleted_object_is_gone(store: ObjectStore) -> None:
    digest = store.put([b"to be forgotten"], None, None).sha256
    store.delete(digest)
    assert store.size(digest) is None
