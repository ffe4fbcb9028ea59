"""Opening the index of a cache folder: made anew when it is damaged, and brought in line with what a crash left."""

from __future__ import annotations

import logging
import sqlite3

from mountd.cache.index import Index
from mountd.cache.layout import Layout
from mountd.cache.partial import chunks_path, disk_bytes, remove_partial
from mountd.cache.writing import MAP_BYTES

log = logging.getLogger("openshelf.mount.cache")


def open_index(layout: Layout) -> Index:
    """The index of ``layout``; one that is missing or damaged is made anew from the files."""
    path = layout.index
    known = path.exists()
    try:
        index = Index(path)
    except sqlite3.DatabaseError as error:
        log.warning("The cache's index is damaged (%s) and is made anew from the files.", error)
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            name.unlink(missing_ok=True)
        index, known = Index(path), False
    if not known:
        _rebuild(layout, index)
    return index


def _rebuild(layout: Layout, index: Index) -> None:
    for path in layout.objects.glob("??/*"):
        index.put(bytes.fromhex(path.name), disk_bytes(path.stat().st_size), sealed=True)
    for path in layout.partial.iterdir():
        if path.suffix != ".chunks":
            index.put(bytes.fromhex(path.name), MAP_BYTES, sealed=False)


def recount_partials(layout: Layout, index: Index) -> dict[bytes, int]:
    """What each partial file takes on disk, in bytes with its map.

    Partial files grow without the index: what they take is read from the disk, and one sealed at the moment of a crash
    is found under its sealed name.
    """
    found: dict[bytes, int] = {}
    for row in index.partials():
        path = layout.partial_path(row.sha256)
        sealed = layout.object_path(row.sha256)
        if path.exists():
            taken = path.stat().st_blocks * 512 + MAP_BYTES
            index.put(row.sha256, taken, sealed=False)
            found[row.sha256] = taken
        elif sealed.exists():
            chunks_path(path).unlink(missing_ok=True)
            index.put(row.sha256, disk_bytes(sealed.stat().st_size), sealed=True)
        else:
            remove_partial(path)
            index.remove(row.sha256)
    return found
