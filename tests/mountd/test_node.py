"""The data side against a real catalog: from published to read, withdrawn, offline, and a wrong token."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catalog.client import Unauthorised
from catalog.names import parse_release
from catalog.trust import UntrustedKey
from mountd.cache.layout import CacheError
from mountd.interfaces import ROOT_ID, MountConfig
from mountd.interfaces import Node as TreeNode
from mountd.node import Node, build
from tests.support.catalog_server import RunningCatalog, catalog_process, running_catalog
from tests.support.publishing import Publisher
from tests.support.releases import pattern

FILES = {
    "README.md": b"---\nlicense: cc-by-4.0\n---\n",
    "data/train-00000-of-00001.parquet": pattern(9 << 20, 5),
    **{f"images/{number:03d}.jpg": pattern(3000 + number, number) for number in range(40)},
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    with running_catalog(tmp_path_factory.mktemp("catalog")) as running:
        yield running


@pytest.fixture(scope="module")
def publisher(catalog: RunningCatalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    people = Publisher(catalog, tmp_path_factory.mktemp("uploads"))
    people.publish(parse_release("datasets/belle/chat@1.0"), FILES)
    people.curator.tag(parse_release("datasets/belle/chat@1.0"), "latest")
    yield people
    people.close()


def config(base: Path, url: str, token: str | None) -> MountConfig:
    return MountConfig(base / "mnt", base / "cache", 1 << 40, url, None, token)


def find(node: Node, path: str) -> TreeNode | None:
    found = node.tree.node(ROOT_ID)
    for name in path.split("/"):
        if found is None:
            return None
        found = node.tree.lookup(found.nodeid, name.encode())
    return found


def read(node: Node, path: str) -> bytes:
    found = find(node, path)
    assert found is not None, path
    handle = node.reader.open(found)
    try:
        return bytes(handle.read(0, found.size))
    finally:
        handle.close()


def wait_until(true: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


@pytest.mark.usefixtures("publisher")
def test_a_published_release_is_read_byte_for_byte(catalog: RunningCatalog, tmp_path: Path) -> None:
    node = build(config(tmp_path, catalog.url, catalog.token("node-1", "node")))
    try:
        node.start(resume=False)
        for path, content in FILES.items():
            assert read(node, f"datasets/belle/chat/1.0/{path}") == content
        link = find(node, "datasets/belle/chat/latest")
        assert link is not None and node.tree.readlink(link.nodeid) == b"1.0"
        record = json.loads(read(node, "datasets/belle/chat/1.0/release.json"))
        assert (record["collection"], record["version"]) == ("datasets/belle/chat", "1.0")
        facts = node.facts()
        assert facts.online and not facts.stale and facts.releases >= 1 and facts.reason == ""
        status = json.loads(read(node, ".openshelf/status.json"))
        assert status["feed_serial"] == facts.feed_serial
    finally:
        node.close()


def test_publishing_and_withdrawing_is_seen_within_two_seconds(
    catalog: RunningCatalog, publisher: Publisher, tmp_path: Path
) -> None:
    ref = parse_release("datasets/belle/passing@1.0")
    node = build(config(tmp_path, catalog.url, catalog.token("node-2", "node")))
    try:
        node.start(resume=False)
        publisher.publish(ref, {"only.bin": b"only here"})
        wait_until(lambda: find(node, "datasets/belle/passing/1.0/only.bin") is not None, 2)
        assert read(node, "datasets/belle/passing/1.0/only.bin") == b"only here"
        sealed = tmp_path / "cache" / "objects"
        name = hashlib.sha256(b"only here").hexdigest()
        wait_until(lambda: (sealed / name[:2] / name).exists())
        publisher.curator.withdraw(ref, "other", "no longer wanted")
        wait_until(lambda: find(node, "datasets/belle/passing") is None, 2)
        wait_until(lambda: not (sealed / name[:2] / name).exists())
    finally:
        node.close()


@pytest.mark.usefixtures("publisher")
def test_a_wrong_token_is_one_clear_error(catalog: RunningCatalog, tmp_path: Path) -> None:
    good = catalog.token("node-3", "node")
    for token, error in ((good[:-4] + "AAAA", Unauthorised), (good[:4] + "A" * 22 + good[26:], UntrustedKey)):
        node = build(config(tmp_path / error.__name__, catalog.url, token))
        try:
            with pytest.raises(error):
                node.start(resume=False)
        finally:
            node.close()


def test_everything_cached_is_read_while_the_catalog_is_down(tmp_path: Path) -> None:
    (tmp_path / "uploads").mkdir()
    ref = parse_release("datasets/belle/chat@1.0")
    with catalog_process(tmp_path / "data") as catalog:
        people = Publisher(catalog, tmp_path / "uploads")
        people.publish(ref, FILES)
        people.close()
        token = catalog.token("node-1", "node")
        node = build(config(tmp_path, catalog.url, token))
        node.start(resume=False)
        for path in FILES:
            read(node, f"datasets/belle/chat/1.0/{path}")
        wait_until(lambda: not list((tmp_path / "cache" / "partial").iterdir()))
        catalog.kill()
        assert read(node, "datasets/belle/chat/1.0/README.md") == FILES["README.md"]
        node.close()
        url = catalog.url
    again = build(config(tmp_path, url, token))
    try:
        again.start(resume=False)
        for path, content in FILES.items():
            assert read(again, f"datasets/belle/chat/1.0/{path}") == content
        facts = again.facts()
        assert not facts.online and "does not answer" in facts.reason
    finally:
        again.close()


def test_a_cache_inside_the_mount_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="inside the mount"):
        build(MountConfig(tmp_path, tmp_path / "cache", 1, "http://127.0.0.1:1", None, None))
