"""A process that reads the first file of a release through a cache, and waits: to be killed while it unpacks."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from catalog.client import Client
from catalog.manifest import Manifest
from mountd.cache.partial import FileSpec
from mountd.cache.store import Cache
from mountd.fetch.fetcher import Counters, Fetcher
from mountd.fetch.memory import ChunkMemory
from mountd.fetch.packs import Packs, Place
from mountd.rows import Rows


def main(cache: str, manifest: str, url: str) -> None:
    fetcher = Fetcher(Client(url, None, timeout_s=60.0), Counters())
    packs = Packs(Cache.open(Path(cache), 1 << 40), fetcher, ChunkMemory())
    rows = Rows(Manifest.open(Path(manifest)))
    entry = rows.entry(0)
    spec = FileSpec(entry.sha256, entry.size, entry.mtime_ns, entry.chunks)
    print(packs.bring(Place(entry.object, entry.offset, lambda: rows.pack(0)), spec), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
