"""The data side of one mount, put together."""

from __future__ import annotations

import logging
import resource
import socket
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from catalog.client import Client
from mountd.cache.layout import CacheError
from mountd.cache.orders import CacheOrders
from mountd.cache.store import Cache
from mountd.cache.upkeep import Upkeep
from mountd.fetch import proxies
from mountd.fetch.counters import Counters
from mountd.fetch.fetcher import Fetcher
from mountd.fetch.fill import Supply
from mountd.fetch.limits import Bandwidth
from mountd.fetch.memory import ChunkMemory
from mountd.fetch.pool import Pool
from mountd.fetch.route import Route
from mountd.fetch.site_cache import SiteCache
from mountd.follow import Credentials, Follower
from mountd.groups import Groups, read_groups
from mountd.inodes import InodeTable
from mountd.interfaces import Facts, Kernel, MountConfig, Opened, Reader, Tree, Work
from mountd.ledger.ledger import Ledger
from mountd.materialise.materialiser import Materialiser
from mountd.reader import CacheReader
from mountd.tree import MountTree
from mountd.warm import windows
from mountd.warm.commands import Warming
from mountd.warm.runner import Means
from mountd.withdrawals import Handling
from openshelf.errors import UsageError
from openshelf.units import MIB

log = logging.getLogger("openshelf.mount")

MOST_CHUNK_MEMORY_BYTES = 256 * MIB
"""Chunks kept in memory take a quarter of the worker's limit, but no more than this."""
STALL_S = 15.0
"""A source that sends nothing for this long is given up, and asked again."""


class Node:
    """Tree, reader and follower over one cache (:class:`mountd.interfaces.Stack`)."""

    def __init__(self, config: MountConfig) -> None:
        # Both are canonical; resolving the mount point here would ask a file system that nobody serves yet.
        if config.cache.is_relative_to(config.mountpoint):
            raise CacheError(
                "cache_in_mount", "The cache lies inside the mount point", "Choose a --cache folder outside of it."
            )
        self._config = config
        _permit_many_open_files()
        self._cache = Cache.open(
            config.cache,
            config.cache_size_bytes,
            files=config.options.cache_files,
            free_bytes=config.options.free_bytes,
            more=[Path(each) for each in config.options.more_caches],
        )
        self._upkeep = Upkeep(self._cache)
        self._table = InodeTable.open(self._cache.layout.inodes)
        self._client = Client(config.catalog, config.token, timeout_s=STALL_S)
        bandwidth = windows.parse(config.options.bandwidth)
        self._fetcher = _fetcher(config, self._client, bandwidth)
        self._pool = Pool()
        memory = ChunkMemory(min(MOST_CHUNK_MEMORY_BYTES, config.options.memory_bytes // 4) or MOST_CHUNK_MEMORY_BYTES)
        supply = Supply(self._cache, self._fetcher, self._pool, memory)
        self._tree = MountTree(self._table, self._status)
        self._reader = CacheReader(self._tree, supply, eager=config.options.fill == "eager")
        self.tree: Tree = self._tree
        self._warming = Warming(Means(self._tree, self._reader, self._cache, supply, bandwidth, online=self._is_online))
        self.reader: Reader = self._warming.watched(self._reader)
        self._materialiser = Materialiser(config.options, config.mountpoint, self._cache, self._tree, self.opened)
        self._cache.before_evict.append(self._materialiser.want_room)
        self._cache.before_removal.append(self._materialiser.undo)
        self._cache.damaged.append(self._materialiser.note_damage)
        self._ledger = Ledger(
            self._cache.layout.root / "spool",
            self._client,
            config.options.node or socket.gethostname(),
            lambda: self._follower.carried_out,
        )
        self._observers: tuple[Callable[[Opened], None], ...] = (
            self._ledger.opened,
            self._materialiser.note_open,
            self._warming.opened,
        )
        orders = CacheOrders(self._cache, self._tree, self._materialiser.tier_of)
        self._work: dict[str, Work] = {**self._warming.work(), **orders.work()}
        self._shrinkers: tuple[Callable[[], None], ...] = (supply.memory.clear, supply.buffers.shrink)
        self._handling = Handling(
            config.options.withdraw,
            config.mountpoint,
            self._ledger.confirm,
            self._ledger.processes.job,
            (self._materialiser.undo,),
        )
        credentials = Credentials(config.token, config.catalog_key)
        self._follower = Follower(self._client, credentials, self._cache, self._tree, handling=self._handling)

    def start(self, *, resume: bool) -> None:
        """See :meth:`mountd.interfaces.Stack.start`."""
        self._follower.groups = self._groups(resume=resume)
        self._follower.start(resume=resume)
        self._materialiser.start()
        self._warming.start()
        self._ledger.start()
        self._upkeep.start()

    def _is_online(self) -> bool:
        return self._follower.standing().online

    def attach(self, kernel: Kernel) -> None:
        """See :meth:`mountd.interfaces.Stack.attach`."""
        self._handling.kernel = kernel
        self._handling.attached.set()

    def facts(self) -> Facts:
        """See :meth:`mountd.interfaces.Stack.facts`."""
        standing = self._follower.standing()
        trouble = self._cache.failure()
        more = {**dict(self._fetcher.counters.items()), **self._upkeep.figures()}
        more.update(self._materialiser.figures())
        more.update(self._ledger.facts())
        return Facts(
            self._cache.used_bytes,
            self._cache.limit_bytes,
            self._follower.trust.epoch,
            self._follower.trust.serial,
            self._follower.is_stale(),
            standing.online,
            self._tree.releases(),
            "; ".join(filter(None, (standing.reason, trouble and f"served from the store: {trouble}"))),
            tuple(sorted(more.items())),
        )

    def opened(self, opened: Opened) -> None:
        """See :meth:`mountd.interfaces.Stack.opened`."""
        for observer in self._observers:
            observer(opened)

    def work(self) -> Mapping[str, Work]:
        """See :meth:`mountd.interfaces.Stack.work`."""
        return self._work

    def shrink(self) -> None:
        """See :meth:`mountd.interfaces.Stack.shrink`."""
        for let_go in self._shrinkers:
            let_go()

    def _groups(self, *, resume: bool) -> Groups:
        """Who may enter restricted collections. UsageError for a bad file, but a worker that takes over goes on: root
        alone then may."""
        try:
            return read_groups(self._config.options.groups)
        except UsageError as error:
            if not resume:
                raise
            log.error("%s Restricted collections are root's until the next mount.", error.line())
            return Groups()

    def _status(self) -> Mapping[str, object]:
        facts = self.facts()
        totals = self._tree.totals()
        return {
            "releases": facts.releases,
            "files": totals.files,
            "size_bytes": totals.size_bytes,
            "feed_epoch": facts.feed_epoch,
            "feed_serial": facts.feed_serial,
            "stale": facts.stale,
            "online": facts.online,
            "reason": facts.reason,
            "cache_bytes": facts.cache_bytes,
            "cache_limit_bytes": facts.cache_limit_bytes,
        }

    def close(self) -> None:
        """See :meth:`mountd.interfaces.Stack.close`."""
        self._follower.close()  # first: nothing of what happens from now on is for this mount to confirm
        self._warming.close()
        self._materialiser.close()
        self._ledger.close()
        self._fetcher.stop()
        self._pool.close()
        self._fetcher.close()
        self._reader.close()
        self._table.close()
        self._client.close()
        self._upkeep.close()
        self._cache.close()


def _fetcher(config: MountConfig, client: Client, bandwidth: windows.Bandwidth) -> Fetcher:
    """What reads objects from the site caches and the catalog of this mount."""
    counters = Counters()
    route = Route.plan(
        proxies.parse(config.options.proxies), client, lambda url: SiteCache(url, config.token, STALL_S), counters
    )
    limited = bandwidth != windows.Bandwidth()
    limit = Bandwidth(lambda: windows.rate_at(bandwidth, datetime.now())) if limited else None
    return Fetcher(client, counters, route=route, bandwidth=limit)


def _permit_many_open_files() -> None:
    """Raise the limit of descriptors to what is allowed: each open file takes one, each being filled two more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def build(config: MountConfig) -> Node:
    """The data side for ``config``, not yet started. OpenshelfError when the cache cannot be used."""
    return Node(config)
