"""Fixtures of the data side: a cache, a faulty store, and a reader over both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from catalog.client import Client
from catalog.manifest import DEFAULT_MTIME_NS, Manifest
from catalog.names import parse_release
from mountd.cache.store import Cache
from mountd.fetch.fetcher import Counters, Fetcher
from mountd.fetch.fill import Supply
from mountd.fetch.pool import Pool
from mountd.fetch.proxies import Proxies
from mountd.fetch.route import Route
from mountd.fetch.site_cache import SiteCache
from mountd.inodes import InodeTable
from mountd.interfaces import ROOT_ID, Node
from mountd.reader import CacheReader
from mountd.releases import ListedRelease
from mountd.rows import Rows
from mountd.tree import CollectionState, MountTree
from openshelf.units import MIB
from tests.support.faulty_store import FaultyStore
from tests.support.releases import MadeRelease, make_release


class Bench:
    """A release of some files in a faulty store, and a reader of it over a cache."""

    def __init__(
        self,
        base: Path,
        files: Mapping[str, bytes],
        *,
        limit_bytes: int,
        eager: bool,
        deadline_s: float,
        fail_again_s: float,
        free_bytes: int = 0,
        more: Sequence[Path] = (),
    ) -> None:
        self.made: MadeRelease = make_release(parse_release("datasets/belle/chat@1.0"), files, base)
        self.store = FaultyStore(self.made.objects)
        self.cache = Cache.open(base / "cache", limit_bytes, free_bytes=free_bytes, more=more)
        self.client = Client(self.store.url, None, timeout_s=1.0)
        counters = Counters()
        self.route = Route.plan(Proxies(), self.client, lambda url: SiteCache(url, None, 1.0), counters)
        self.fetcher = Fetcher(self.client, counters, deadline_s, fail_again_s, route=self.route)
        self.pool = Pool()
        self.table = InodeTable.open(self.cache.layout.inodes)
        self.tree = MountTree(self.table)
        self._closed = False
        made = self.made
        listed = ListedRelease(
            made.ref,
            made.digest,
            len(made.entries),
            made.size_bytes,
            DEFAULT_MTIME_NS,
            None,
            b"{}",
            b"{}",
            lambda: Rows(Manifest.open(made.manifest)),
        )
        self.tree.update([CollectionState(made.ref.collection, [listed], {})])
        self.supply = Supply(self.cache, self.fetcher, self.pool)
        self.reader = CacheReader(self.tree, self.supply, eager=eager)

    def node(self, path: str) -> Node:
        node = self.tree.node(ROOT_ID)
        for name in ("datasets/belle/chat/1.0/" + path).split("/"):
            assert node is not None
            node = self.tree.lookup(node.nodeid, name.encode())
        assert node is not None
        return node

    def sha256(self, path: str) -> bytes:
        return self.made.entries[path].sha256

    def source_is_asked(self) -> bool:
        """Whether the store may be asked now, or is left alone because it failed often."""
        return self.route.has_other(())

    def read_all(self, path: str, portion: int = MIB) -> bytes:
        """The whole file through one handle, in portions."""
        node = self.node(path)
        handle = self.reader.open(node)
        try:
            return b"".join(bytes(handle.read(offset, portion)) for offset in range(0, node.size, portion))
        finally:
            handle.close()

    def wait_until(self, true: Callable[[], bool], timeout_s: float = 10.0) -> None:
        pause = threading.Event()
        for _ in range(int(timeout_s / 0.01)):
            if true():
                return
            pause.wait(0.01)
        raise AssertionError("it did not come true")

    def wait_sealed(self, path: str) -> None:
        self.wait_until(lambda: self.cache.is_sealed(self.sha256(path)))

    def close(self) -> None:
        """May be called twice: by a test that goes on with another bench, and at its end."""
        if self._closed:
            return
        self._closed = True
        self.fetcher.stop()
        self.store.__exit__()
        self.pool.close()
        self.reader.close()
        self.table.close()
        self.client.close()
        self.cache.close()


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    """Makes benches in ``base`` (default: a folder of the test's own) and closes them."""
    with ExitStack() as stack:

        def make(
            files: Mapping[str, bytes],
            *,
            base: Path = tmp_path,
            limit_bytes: int = 1 << 40,
            eager: bool = True,
            deadline_s: float = 10.0,
            fail_again_s: float = 0.0,
            free_bytes: int = 0,
            more: Sequence[Path] = (),
        ) -> Bench:
            bench = Bench(
                base,
                files,
                limit_bytes=limit_bytes,
                eager=eager,
                deadline_s=deadline_s,
                fail_again_s=fail_again_s,
                free_bytes=free_bytes,
                more=more,
            )
            stack.callback(bench.close)
            return bench

        yield make
