"""Following a signed feed: what is shown, what is refused, what survives without the catalog."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from catalog.client.errors import CatalogUnreachable
from catalog.manifest import digest_stream
from catalog.names import parse_release
from catalog.signing import Signed, SigningKey
from catalog.trust import UntrustedKey
from mountd.cache.partial import FileSpec
from mountd.cache.store import Cache
from mountd.follow import Credentials, Follower
from mountd.inodes import InodeTable
from mountd.interfaces import ROOT_ID, Invalidation, Node
from mountd.tree import MountTree
from tests.support.releases import MadeRelease, make_release
from tests.support.signed_feed import SignedFeed

SHARED = b"in both releases"


class Following:
    """A follower of a feed over a cache folder."""

    def __init__(self, feed: SignedFeed, base: Path, catalog_key: str | None = None) -> None:
        self._closed = False
        self.cache = Cache.open(base / "cache", 1 << 40)
        self.table = InodeTable.open(self.cache.layout.inodes)
        self.tree = MountTree(self.table)
        self.told: list[Invalidation] = []
        self.tree.subscribe(self.told.append)
        self.follower = Follower(feed, Credentials(None, catalog_key), self.cache, self.tree, wait_s=0.2)

    def find(self, path: str) -> Node | None:
        node = self.tree.node(ROOT_ID)
        for name in path.split("/"):
            if node is None:
                return None
            node = self.tree.lookup(node.nodeid, name.encode())
        return node

    def wait_for(self, path: str, *, there: bool = True) -> None:
        self.wait_until(lambda: (self.find(path) is not None) is there)

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not true():
            assert time.monotonic() < deadline, "it did not come true"
            time.sleep(0.01)

    def close(self) -> None:
        """May be called twice: by a test that restarts the node, and at its end."""
        if self._closed:
            return
        self._closed = True
        self.follower.close()
        self.table.close()
        self.cache.close()


Follow = Callable[..., Following]


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey.load_or_create(tmp_path / "key.pem")


@pytest.fixture
def feed(key: SigningKey) -> SignedFeed:
    return SignedFeed(key)


@pytest.fixture
def first(tmp_path: Path) -> MadeRelease:
    return make_release(parse_release("datasets/belle/chat@1.0"), {"a.txt": b"only here", "b.txt": SHARED}, tmp_path)


@pytest.fixture
def second(tmp_path: Path) -> MadeRelease:
    return make_release(parse_release("datasets/belle/chat@2.0"), {"c.txt": SHARED}, tmp_path)


@pytest.fixture
def follow(feed: SignedFeed, tmp_path: Path) -> Iterator[Follow]:
    with ExitStack() as stack:

        def begin(catalog_key: str | None = None, *, resume: bool = False) -> Following:
            following = Following(feed, tmp_path, catalog_key)
            stack.callback(following.close)
            following.follower.start(resume=resume)
            return following

        yield begin


def put(cache: Cache, content: bytes) -> bytes:
    """Seal ``content`` in the cache; its SHA-256."""
    digest = digest_stream(io.BytesIO(content))
    partial = cache.open_partial(FileSpec(digest.sha256, digest.size, 0, digest.chunks))
    assert partial is not None
    assert cache.write_chunk(partial, 0, content)
    assert cache.seal(partial)
    partial.close()
    return digest.sha256


def test_a_new_node_starts_from_the_snapshot_and_follows_events(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease
) -> None:
    feed.publish(first)
    feed.tag(first, "latest")
    node = follow()
    assert node.find("datasets/belle/chat/1.0/a.txt") is not None
    assert node.find("datasets/belle/chat/latest") is not None
    feed.publish(second)
    node.wait_for("datasets/belle/chat/2.0/c.txt")
    feed.tag(second, "latest")
    chat = node.find("datasets/belle/chat")
    assert chat is not None
    node.wait_until(lambda: node.told[-1:] == [Invalidation(chat.nodeid, b"latest")])
    link = node.find("datasets/belle/chat/latest")
    assert link is not None and node.tree.readlink(link.nodeid) == b"2.0"
    feed.untag("datasets/belle/chat", "latest")
    node.wait_for("datasets/belle/chat/latest", there=False)
    assert feed.snapshots == 1
    assert node.follower.trust.serial == len(feed.events)


def test_the_record_shown_is_the_signed_one(feed: SignedFeed, follow: Follow, first: MadeRelease) -> None:
    feed.publish(first)
    node = follow()
    record = node.find("datasets/belle/chat/1.0/release.json")
    signature = node.find("datasets/belle/chat/1.0/release.json.sig")
    assert record is not None and record.content is not None and signature is not None and signature.content is not None
    signed = Signed.from_json({"document": json.loads(record.content), **json.loads(signature.content)})
    assert signed == feed.release_record(first.ref)
    assert node.tree.licence(first.ref) == "CC-BY-4.0"


def test_a_withdrawn_release_disappears_with_the_objects_that_no_other_needs(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease
) -> None:
    feed.publish(first)
    feed.publish(second)
    feed.tag(first, "old")
    node = follow()
    alone, shared = put(node.cache, b"only here"), put(node.cache, SHARED)
    feed.withdraw(first)
    node.wait_for("datasets/belle/chat/1.0", there=False)
    assert node.find("datasets/belle/chat/old") is None
    node.wait_until(lambda: not node.cache.is_sealed(alone))
    assert node.cache.is_sealed(shared)
    node.wait_until(lambda: not node.cache.layout.manifest_path(first.digest).exists())
    assert node.find("datasets/belle/chat/2.0/c.txt") is not None
    feed.withdraw(second)
    node.wait_for("datasets/belle", there=False)
    node.wait_until(lambda: not node.cache.is_sealed(shared))


def test_what_the_node_may_no_longer_read_disappears(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease
) -> None:
    feed.publish(first)
    feed.publish(second)
    node = follow()
    feed.hide()
    feed.forget_silently(first, event="access")
    node.wait_for("datasets/belle/chat/1.0", there=False)
    assert node.find("datasets/belle/chat/2.0/c.txt") is not None


def test_a_restart_without_the_catalog_shows_the_last_good_state(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease, caplog: pytest.LogCaptureFixture
) -> None:
    feed.publish(first)
    feed.tag(first, "latest")
    node = follow()
    before = node.find("datasets/belle/chat/1.0/a.txt")
    node.close()
    feed.reachable = False
    again = follow()
    assert again.find("datasets/belle/chat/1.0/a.txt") == before
    assert again.find("datasets/belle/chat/latest") is not None
    standing = again.follower.standing()
    assert not standing.online and "does not answer" in standing.reason
    assert "last good state" in caplog.text
    feed.publish(second)
    feed.reachable = True
    again.wait_for("datasets/belle/chat/2.0")
    again.wait_until(lambda: again.follower.standing().reason == "")


def test_a_worker_that_takes_over_serves_at_once_and_catches_up(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease
) -> None:
    feed.publish(first)
    follow().close()
    feed.publish(second)
    asked = feed.snapshots
    again = follow(resume=True)
    assert again.find("datasets/belle/chat/1.0/a.txt") is not None
    again.wait_for("datasets/belle/chat/2.0")
    assert feed.snapshots == asked


def test_a_new_node_without_a_catalog_has_nothing_to_serve(feed: SignedFeed, follow: Follow) -> None:
    feed.reachable = False
    with pytest.raises(CatalogUnreachable):
        follow()


def test_a_key_that_nothing_vouches_for_is_refused(feed: SignedFeed, follow: Follow) -> None:
    with pytest.raises(UntrustedKey):
        follow("ab" * 32)


def altered(change: Callable[[dict[str, object]], dict[str, object]]) -> Callable[[Signed], Signed]:
    return lambda signed: dataclasses.replace(signed, document=change(dict(signed.document)))


def test_a_tampered_event_is_refused_and_said_once(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease, caplog: pytest.LogCaptureFixture
) -> None:
    feed.publish(first)
    node = follow()
    feed.alter = altered(
        lambda document: {**document, "version": "9.9"} if document.get("type") == "published" else document
    )
    feed.publish(second)
    node.wait_until(lambda: "is wrong" in node.follower.standing().reason)
    time.sleep(1.5)
    assert node.find("datasets/belle/chat/9.9") is None and node.find("datasets/belle/chat/2.0") is None
    assert node.find("datasets/belle/chat/1.0/a.txt") is not None
    assert node.follower.is_stale()
    assert caplog.text.count("The feed cannot be followed") == 1
    feed.alter = lambda signed: signed
    node.wait_for("datasets/belle/chat/2.0")
    node.wait_until(lambda: not node.follower.is_stale())


def test_a_feed_signed_by_another_key_is_refused(
    feed: SignedFeed, follow: Follow, first: MadeRelease, tmp_path: Path
) -> None:
    feed.publish(first)
    node = follow()
    feed.key = SigningKey.load_or_create(tmp_path / "other.pem")
    feed.hide()
    node.wait_until(lambda: "another key" in node.follower.standing().reason)
    assert node.follower.trust.serial == 1


def test_an_older_feed_is_refused(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease, caplog: pytest.LogCaptureFixture
) -> None:
    feed.publish(first)
    feed.publish(second)
    node = follow()
    node.close()
    kept = feed.events.pop()
    again = follow()
    assert again.find("datasets/belle/chat/2.0") is not None
    assert "seen before were epoch 1, serial 2" in caplog.text
    assert again.follower.is_stale()
    feed.events.append(kept)
    again.wait_until(lambda: not again.follower.is_stale())


def test_a_raised_epoch_is_followed_by_a_snapshot(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease
) -> None:
    feed.publish(first)
    node = follow()
    feed.epoch = 2
    feed.events.clear()
    feed.publish(second)
    node.wait_for("datasets/belle/chat/2.0")
    assert node.follower.trust.epoch == 2


def test_an_expired_head_is_stale_and_no_error(feed: SignedFeed, follow: Follow, first: MadeRelease) -> None:
    feed.expires = "2020-01-01T00:00:00Z"
    feed.publish(first)
    node = follow()
    assert node.follower.is_stale()
    assert node.follower.standing() == type(node.follower.standing())(True, "the feed's head has expired")
    assert node.find("datasets/belle/chat/1.0/a.txt") is not None


def test_a_release_with_the_record_of_another_is_not_shown_until_it_is_right(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease
) -> None:
    feed.publish(first)
    feed.publish(second)
    wrong = feed.release_record(second.ref)
    feed.alter = lambda signed: (
        wrong if signed.document.get("version") == "1.0" and "totals" in signed.document else signed
    )
    node = follow()
    assert node.find("datasets/belle/chat/1.0") is None
    assert node.find("datasets/belle/chat/2.0") is not None
    assert "could not be fetched yet" in node.follower.standing().reason
    feed.alter = lambda signed: signed
    node.wait_for("datasets/belle/chat/1.0")


def test_releases_with_one_manifest_are_brought_at_the_same_time(
    feed: SignedFeed, follow: Follow, first: MadeRelease
) -> None:
    twin = dataclasses.replace(first, ref=parse_release("datasets/twin/chat@1.0"))
    feed.publish(first)
    feed.publish(twin)
    both_ready = threading.Barrier(2, timeout=10)
    download = feed.download_manifest

    def together(digest: str, destination: Path) -> None:
        download(digest, destination)
        both_ready.wait()

    feed.download_manifest = together  # type: ignore[method-assign]
    following = follow()
    assert following.find(f"{first.ref.collection}/1.0") is not None
    assert following.find("datasets/twin/chat/1.0") is not None
    assert following.cache.failure() == ""
    assert not list(following.cache.layout.manifests.glob("*.new"))


def test_a_damaged_record_on_disk_is_fetched_again(feed: SignedFeed, follow: Follow, first: MadeRelease) -> None:
    feed.publish(first)
    node = follow()
    node.close()
    [record] = node.cache.layout.records.rglob("1.0.json")
    record.write_text("{")
    assert follow().find("datasets/belle/chat/1.0/a.txt") is not None


def test_a_crash_between_trust_and_state_is_healed_by_a_snapshot(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease
) -> None:
    feed.publish(first)
    node = follow()
    node.close()
    feed.publish(second)
    node.follower.trust.accept_events(feed.events[1:])
    again = follow()
    assert again.find("datasets/belle/chat/2.0/c.txt") is not None


def test_a_damaged_state_is_taken_from_the_catalog_again(
    feed: SignedFeed, follow: Follow, first: MadeRelease, caplog: pytest.LogCaptureFixture
) -> None:
    feed.publish(first)
    node = follow()
    node.close()
    names = node.cache.layout.names
    node.wait_until(lambda: not names.with_name(names.name + "-wal").exists())  # what asked the catalog has ended too
    names.write_bytes(b"not a database" * 1000)
    assert follow().find("datasets/belle/chat/1.0/a.txt") is not None
    assert "damaged" in caplog.text


def test_a_withdrawal_cut_off_by_a_crash_is_finished_at_the_next_start(
    feed: SignedFeed, follow: Follow, first: MadeRelease, second: MadeRelease
) -> None:
    feed.publish(first)
    feed.publish(second)
    node = follow()
    alone, shared = put(node.cache, b"only here"), put(node.cache, SHARED)
    manifest = node.cache.layout.manifest_path(first.digest)
    kept = manifest.read_bytes()
    feed.withdraw(first)
    node.wait_for("datasets/belle/chat/1.0", there=False)
    node.wait_until(lambda: not manifest.exists())
    put(node.cache, b"only here")
    node.close()
    manifest.write_bytes(kept)
    again = follow()
    again.wait_until(lambda: not manifest.exists())
    assert not again.cache.is_sealed(alone) and again.cache.is_sealed(shared)
