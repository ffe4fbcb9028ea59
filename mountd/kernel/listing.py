"""What READDIR and READDIRPLUS answer: bytes built once per directory, of which each answer is a slice."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence

from mountd.interfaces import ROOT_ID, Node, Tree
from mountd.kernel.protocol import DIRENT, ENTRY_BYTES

KEPT_BYTES = 64 << 20
"""Directory bytes kept in memory, all directories together (one larger directory is kept alone)."""

_TYPES = {"dir": 4, "file": 8, "link": 10}
"""``DT_*`` of dirent.h."""
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
_NO_ENTRY = bytes(ENTRY_BYTES)
"""A READDIRPLUS entry with nodeid 0: the kernel then looks the name up by itself (``.`` and ``..``)."""

EntryBytes = Callable[[Node], bytes]


class Listing:
    """The whole answer for one directory; entry ``i`` begins at ``starts[i]``, and its cookie is ``i + 1``."""

    __slots__ = ("_data", "_starts")

    def __init__(self, names: Sequence[tuple[bytes, int, int, bytes]]) -> None:
        """From (name, ino, type, entry bytes: empty for READDIR)."""
        parts: list[bytes] = []
        starts = array("Q", [0])
        position = 0
        pack = DIRENT.pack
        for cookie, (name, ino, kind, entry) in enumerate(names, 1):
            part = entry + pack(ino, cookie, len(name), kind) + name + _PADDING[len(name) % 8]
            parts.append(part)
            position += len(part)
            starts.append(position)
        self._data = memoryview(b"".join(parts))
        self._starts = starts

    def __len__(self) -> int:
        return len(self._data) + 8 * len(self._starts)

    def slice(self, cookie: int, size: int) -> memoryview:
        """Whole entries from the one after ``cookie`` on, at most ``size`` bytes; empty at the end."""
        if cookie >= len(self._starts) - 1:
            return self._data[:0]
        start = self._starts[cookie]
        end = self._starts[bisect_right(self._starts, start + size) - 1]
        return self._data[start:end]


class Listings:
    """Listings by directory, the least recently used dropped first."""

    def __init__(self, tree: Tree, entry_bytes: EntryBytes) -> None:
        self._tree = tree
        self._entry_bytes = entry_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, bool], Listing] = OrderedDict()
        self._kept_bytes = 0
        self._changes = 0

    def get(self, directory: Node, *, plus: bool) -> Listing:
        """The listing of ``directory``; with entries when ``plus``."""
        key = (directory.nodeid, plus)
        with self._lock:
            listing = self._kept.get(key)
            if listing is not None:
                self._kept.move_to_end(key)
                return listing
            changes = self._changes
        listing = self._build(directory, plus=plus)
        with self._lock:
            # A name that changed while the bytes were built may be missing in them: use them once, keep them not.
            if changes == self._changes and key not in self._kept:
                self._kept[key] = listing
                self._kept_bytes += len(listing)
                while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                    self._kept_bytes -= len(self._kept.popitem(last=False)[1])
        return listing

    def forget(self, nodeid: int) -> None:
        """Drop what is kept of a directory whose names have changed."""
        with self._lock:
            self._changes += 1
            for key in ((nodeid, False), (nodeid, True)):
                listing = self._kept.pop(key, None)
                if listing is not None:
                    self._kept_bytes -= len(listing)

    def _build(self, directory: Node, *, plus: bool) -> Listing:
        place = self._tree.place(directory.nodeid)
        parent = self._tree.node(place[0] if place else ROOT_ID) or directory
        dot = _NO_ENTRY if plus else b""
        names = [(b".", directory.ino, _TYPES["dir"], dot), (b"..", parent.ino, _TYPES["dir"], dot)]
        entry_bytes = self._entry_bytes
        for name, node in self._tree.children(directory.nodeid):
            names.append((name, node.ino, _TYPES[node.kind], entry_bytes(node) if plus else b""))
        return Listing(names)
