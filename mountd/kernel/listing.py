"""What READDIR and READDIRPLUS answer: bytes built for many entries together, of which each answer is a slice.

A directory above releases is small, and built from its nodes. One inside a release may hold ten million names: it is
built from the manifest's columns, some thousand entries at a time, and only the pieces asked for last are kept. An
entry's cookie names the place after it in the directory, so that any worker can go on from it.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from mountd.interfaces import ROOT_ID, Node, Run, Tree
from mountd.kernel.attributes import DIRENT_TYPES, heads
from mountd.kernel.protocol import DIRENT, ENTRY_BYTES

KEPT_BYTES = 16 << 20
KEPT_PIECES = 256
"""Bounds of the pieces that are kept, all directories together."""

_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
_NO_ENTRY = bytes(ENTRY_BYTES)
"""A READDIRPLUS entry with nodeid 0: the kernel takes the name alone, and looks it up when somebody asks."""
_DOTS = 2
"""Cookies 1 and 2 stand after ``.`` and ``..``; others have a position in the directory and these two."""


class Form(Enum):
    """How a directory is listed."""

    NAMES = "READDIR"
    BARE = "READDIRPLUS, names alone"
    WHOLE = "READDIRPLUS, with what a lookup would say"


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole entries of a directory: those whose cookies lie above ``after``, up to ``cookies[-1]``.

    Entry ``i`` lies in ``data[starts[i] : starts[i + 1]]``; ``cookies[i]``, ascending, names the place after it.
    """

    after: int
    data: memoryview
    starts: array[int]
    cookies: array[int]

    def __len__(self) -> int:
        return len(self.data) + 8 * (len(self.starts) + len(self.cookies))

    def slice(self, cookie: int, size: int) -> memoryview:
        """Whole entries from the one after ``cookie`` on, at most ``size`` bytes; empty at the end."""
        first = bisect_right(self.cookies, cookie)
        start = self.starts[first]
        return self.data[start : self.starts[bisect_right(self.starts, start + size) - 1]]

    def joined(self, other: Piece) -> Piece:
        """This piece and the one that follows it."""
        starts = self.starts + array("q", [len(self.data) + start for start in other.starts[1:]])
        return Piece(self.after, memoryview(bytes(self.data) + other.data), starts, self.cookies + other.cookies)


def piece_of(names: Iterable[tuple[bytes, int, str, bytes]]) -> Piece:
    """A directory from its beginning, of (name, ino, kind, entry bytes: empty for READDIR)."""
    parts: list[bytes] = []
    starts, cookies = array("q", [0]), array("q")
    for cookie, (name, ino, kind, entry) in enumerate(names, 1):
        part = entry + DIRENT.pack(ino, cookie, len(name), DIRENT_TYPES[kind]) + name + _PADDING[len(name) % 8]
        parts.append(part)
        starts.append(starts[-1] + len(part))
        cookies.append(cookie)
    return Piece(0, memoryview(b"".join(parts)), starts, cookies)


def handed_out(run: Run, siblings: Mapping[int, int]) -> npt.NDArray[np.int64]:
    """The ids under which a run's nodes are handed out: their own, but for those that have a sibling at present."""
    nodeids = run.nodeids
    for nodeid, sibling in siblings.items():
        nodeids = np.where(nodeids == nodeid, sibling, nodeids)
    return nodeids


def piece_of_run(after: int, run: Run, siblings: Mapping[int, int], form: Form) -> Piece:
    """The entries of ``run``, which follow the cookie ``after``. ``siblings``: other ids to hand out for nodes."""
    cookies = run.following + _DOTS
    nodeids = handed_out(run, siblings) if form is Form.WHOLE else None
    head = heads(run, nodeids, cookies, plus=form is not Form.NAMES)
    words = head.shape[1] // 8
    ends = np.cumsum(words + (run.lengths + 7) // 8)
    begins = np.concatenate(([0], ends))
    data = np.zeros(int(ends[-1]), np.uint64)
    data[begins[:-1, None] + np.arange(words)] = head.view(np.uint64)
    # Every byte of every name: where it goes to is where it comes from, shifted by the same amount for one name.
    name_ends = np.cumsum(run.lengths)
    inside = np.arange(int(name_ends[-1])) - np.repeat(name_ends - run.lengths, run.lengths)
    bytes_of = data.view(np.uint8)
    target = np.repeat((begins[:-1] + words) * 8, run.lengths) + inside
    bytes_of[target] = run.text[np.repeat(run.starts, run.lengths) + inside]
    return Piece(after, bytes_of.data, array("q", (begins * 8).tobytes()), array("q", cookies.tobytes()))


class Listings:
    """Answers by directory. ``siblings`` are nodes to be handed out under other ids at present."""

    def __init__(
        self, tree: Tree, entry_bytes: Callable[[Node], bytes], siblings: Callable[[], Mapping[int, int]]
    ) -> None:
        self._tree = tree
        self._entry_bytes = entry_bytes
        self._siblings = siblings
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, Form, int], Piece] = OrderedDict()
        self._kept_bytes = 0
        self._changes = 0

    def answer(self, directory: Node, cookie: int, size: int, form: Form) -> memoryview:
        """Entries after ``cookie`` (0: from the beginning), at most ``size`` bytes."""
        with self._lock:
            for (nodeid, kept_form, after), piece in reversed(self._kept.items()):
                if nodeid == directory.nodeid and kept_form is form and after <= cookie < piece.cookies[-1]:
                    self._kept.move_to_end((nodeid, form, after))
                    return piece.slice(cookie, size)
            changes = self._changes
        piece = self._build(directory, cookie, form)
        if not piece.cookies:
            return piece.data
        with self._lock:
            # A name that changed while the bytes were built may be missing in them: use them once, keep them not.
            if changes == self._changes:
                self._keep((directory.nodeid, form, piece.after), piece)
        return piece.slice(cookie, size)

    def _keep(self, key: tuple[int, Form, int], piece: Piece) -> None:
        before = self._kept.pop(key, None)
        self._kept_bytes += len(piece) - (len(before) if before else 0)
        self._kept[key] = piece
        while (self._kept_bytes > KEPT_BYTES or len(self._kept) > KEPT_PIECES) and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def forget(self, nodeid: int) -> None:
        """Drop what is kept of a directory whose names have changed."""
        with self._lock:
            self._changes += 1
            for key in [key for key in self._kept if key[0] == nodeid]:
                self._kept_bytes -= len(self._kept.pop(key))

    def _build(self, directory: Node, cookie: int, form: Form) -> Piece:
        run = self._tree.run(directory.nodeid, max(0, cookie - _DOTS))
        if cookie >= _DOTS and run is not None:
            if not len(run):
                return Piece(cookie, memoryview(b""), array("q", [0]), array("q"))
            return piece_of_run(cookie, run, self._siblings(), form)
        whole = piece_of(self._names(directory, form, with_entries=run is None))
        if run is None or not len(run):
            return whole
        return whole.joined(piece_of_run(_DOTS, run, self._siblings(), form))

    def _names(self, directory: Node, form: Form, *, with_entries: bool) -> Iterable[tuple[bytes, int, str, bytes]]:
        place = self._tree.place(directory.nodeid)
        parent = self._tree.node(place[0] if place else ROOT_ID) or directory
        none = b"" if form is Form.NAMES else _NO_ENTRY
        yield b".", directory.ino, "dir", none
        yield b"..", parent.ino, "dir", none
        if with_entries:
            for name, node in self._tree.children(directory.nodeid):
                yield name, node.ino, node.kind, self._entry_bytes(node) if form is Form.WHOLE else none
