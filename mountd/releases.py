"""The inside of one release: nodes from its mapped manifest, found by path, by node id, and by folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from catalog.names import ReleaseRef
from mountd import inodes
from mountd.interfaces import Kind, Node, Run
from mountd.rows import AFTER_SLASH, PackedFile, Rows

CONTENT_TTL_S = 4 * 3600.0
"""Nothing inside a release changes."""
FOLDER_TTL_S = 1.0
"""Tags, the folders above releases, and the releases' own entries in them."""
FOLDER_MODE = 0o555
GROUP_MODE = 0o750
ROOT_MODE = 0o700
MADE_MODE = 0o444
RECORD_NAMES = (b"release.json", b"release.json.sig")
_MADE = inodes.FILE_BIT | inodes.MADE_BIT
KEPT_FILES = 256
KEPT_FOLDERS = 65_536
"""Bounds of folders that are remembered, per release."""


@dataclass(frozen=True, slots=True)
class ListedRelease:
    """A release that the mount shows: verified, with its manifest on disk.

    ``record`` and ``signature`` are the bytes of ``release.json`` and ``release.json.sig``; ``open_rows`` maps the
    manifest (called once, at the first name that is asked for). ``restricted``: only some may read the collection; on
    this node those of the group ``gid``, or root alone when it is 0.
    """

    ref: ReleaseRef
    manifest_digest: str
    files: int
    size_bytes: int
    created_ns: int
    licence: str | None
    record: bytes
    signature: bytes
    open_rows: Callable[[], Rows]
    restricted: bool = False
    gid: int = 0

    @property
    def folder_mode(self) -> int:
        """The permission bits of all its folders and of its collection's folder, on every tier."""
        if not self.restricted:
            return FOLDER_MODE
        return GROUP_MODE if self.gid else ROOT_MODE


@dataclass(frozen=True, slots=True)
class _Span:
    """A folder: its path with a ``/`` at the end (empty for the release's own), depth, and rows [low, high)."""

    prefix: bytes
    depth: int
    low: int
    high: int


class ReleaseTree:
    """The names and nodes of one release, whose own folder has node id ``base_id(slot)``. Thread-safe."""

    def __init__(self, slot: int, parent_id: int, listed: ListedRelease) -> None:
        self.slot = slot
        self.parent_id = parent_id
        self.listed = listed
        self.nodeid = inodes.base_id(slot)
        self._lock = threading.Lock()
        self._rows: Rows | None = None
        self._spans: dict[int, _Span] = {}
        self._files: dict[int, Node] = {}
        self._made = (listed.record, listed.signature)
        self._first_file = inodes.file_id(slot, 0)
        self._last_row = -1
        self.shown = False
        """Whether its names are in the tree; kept by the tree."""

    @property
    def name(self) -> bytes:
        """The version: the release's name in its collection's folder."""
        return self.listed.ref.version.encode()

    def root(self) -> Node:
        """The release's own folder."""
        return self.folder(self.nodeid, FOLDER_TTL_S)

    def node(self, nodeid: int) -> Node | None:
        """The node with this id, if it is one of the release's."""
        _, place = inodes.split(nodeid)
        if place == 0:
            return self.root()
        if place & inodes.FILE_BIT:
            if place & inodes.MADE_BIT:
                number = place & ~(inodes.FILE_BIT | inodes.MADE_BIT)
                return self.made_file(number) if number < len(self._made) else None
            row = place & ~inodes.FILE_BIT
            return self._whole_file(row) if row < len(self.rows()) else None
        return None if self._span(nodeid) is None else self.folder(nodeid, CONTENT_TTL_S)

    def lookup(self, parent_id: int, name: bytes, *, whole: bool = True) -> Node | None:
        """The entry ``name`` of one of the release's folders; a file with its ``entry`` when it is to be ``whole``."""
        span = self._spans.get(parent_id) or self._span(parent_id)
        if span is None or b"/" in name:
            return None
        if not span.prefix and name in RECORD_NAMES:
            return self.made_file(RECORD_NAMES.index(name))
        rows = self.rows()
        path = span.prefix + name
        row: int | None = self._last_row + 1  # names are mostly looked up in the order in which they are listed
        if row is None or not (span.low <= row < span.high and rows.path(row) == path):
            row = rows.find(path, span.low, span.high)
            if row is None:
                return self._folder_below(span, path)
        self._last_row = row
        return self._whole_file(row) if whole else self.file(row)

    def _folder_below(self, span: _Span, path: bytes) -> Node | None:
        """The folder ``path``, if there is one."""
        rows, below = self.rows(), path + b"/"
        row = rows.lower_bound(below, span.low, span.high)
        if row == span.high or not rows.path(row).startswith(below):
            return None
        return self.folder(inodes.folder_id(self.slot, span.depth + 1, row), CONTENT_TTL_S)

    def has_folder(self, nodeid: int) -> bool:
        """Whether this is the id of one of the release's folders."""
        return self._span(nodeid) is not None

    def children(self, nodeid: int) -> Iterator[tuple[bytes, Node]]:
        """The entries of one of the release's folders: what the mount adds, then the manifest's in order of paths."""
        position = 0
        while (run := self.run(nodeid, position)) is not None and len(run):
            text, listed = run.text.data, self.listed
            for start, length, child, is_dir, mode, size, mtime_ns in zip(
                *(column.tolist() for column in (run.starts, run.lengths, run.nodeids)),
                *(column.tolist() for column in (run.is_dir, run.modes, run.sizes, run.mtimes_ns)),
                strict=True,
            ):
                kind: Kind = "dir" if is_dir else "file"
                gid = run.gid if is_dir else 0
                node = Node(child, child, kind, mode, size, mtime_ns, run.ttl_s, 1, gid, release=listed.ref)
                if child & _MADE == _MADE:
                    node = self.made_file(child & 1)
                yield bytes(text[start : start + length]), node
            position = int(run.following[-1])

    def run(self, nodeid: int, position: int) -> Run | None:
        """See :meth:`mountd.interfaces.Tree.run`. Positions: the numbers of the files that the mount adds (only the
        release's own folder has them), then ``len(RECORD_NAMES)`` + the row at which an entry begins."""
        span = self._span(nodeid)
        if span is None:
            return None
        made = len(self._made)
        if position < made and not span.prefix:
            return self._made_run(position)
        row = max(span.low, position - made)
        return self._run_of(span, row, span.high)

    def following(self, parent_id: int, nodeid: int, most: int) -> Run | None:
        """See :meth:`mountd.interfaces.Tree.following`."""
        span, place = self._span(parent_id), inodes.split(nodeid)[1]
        if span is None or not place & inodes.FILE_BIT or place & inodes.MADE_BIT:
            return None
        row = (place & ~inodes.FILE_BIT) + 1
        return self._run_of(span, row, min(span.high, row + most))

    def _run_of(self, span: _Span, row: int, high: int) -> Run:
        """Entries of a folder from ``row`` on, which lie before ``high``."""
        if row >= high:
            return _end_of(self.listed)
        rows, listed, made = self.rows(), self.listed, len(self._made)
        found = rows.entries(len(span.prefix), row, high)
        sizes, modes, mtimes_ns = rows.attributes(found.rows)
        nodeids = found.rows + inodes.file_id(self.slot, 0)
        if found.is_folder.any():
            nodeids[found.is_folder] = found.rows[found.is_folder] + inodes.folder_id(self.slot, span.depth + 1, 0)
            modes[found.is_folder], sizes[found.is_folder] = listed.folder_mode, 0
            mtimes_ns[found.is_folder] = listed.created_ns
        return Run(
            found.text,
            found.starts,
            found.lengths,
            nodeids,
            found.is_folder,
            modes,
            sizes,
            mtimes_ns,
            found.following + made,
            CONTENT_TTL_S,
            listed.gid,
        )

    def _made_run(self, position: int) -> Run:
        """The files that the mount adds, from number ``position`` on."""
        numbers = range(position, len(self._made))
        nodes = [self.made_file(number) for number in numbers]
        lengths = np.array([len(RECORD_NAMES[number]) for number in numbers])
        return Run(
            np.frombuffer(b"".join(RECORD_NAMES[position:]), np.uint8),
            np.cumsum(lengths) - lengths,
            lengths,
            np.array([node.nodeid for node in nodes]),
            np.zeros(len(nodes), np.bool_),
            np.array([node.mode for node in nodes], np.uint32),
            np.array([node.size for node in nodes]),
            np.array([node.mtime_ns for node in nodes]),
            np.array(numbers) + 1,
            CONTENT_TTL_S,
            self.listed.gid,
        )

    def place(self, nodeid: int) -> tuple[int, bytes] | None:
        """The parent's node id and the name of a node of the release."""
        _, place = inodes.split(nodeid)
        if place == 0:
            return self.parent_id, self.name
        if place & inodes.MADE_BIT and place & inodes.FILE_BIT:
            return self.nodeid, RECORD_NAMES[place & 1]
        if place & inodes.FILE_BIT:
            row = place & ~inodes.FILE_BIT
            if row >= len(self.rows()):
                return None
            path = self.rows().path(row)
        else:
            span = self._span(nodeid)
            if span is None:
                return None
            path = span.prefix[:-1]
        folder, _, name = path.rpartition(b"/")
        return self._folder_at(folder), name

    def pack(self, nodeid: int) -> Sequence[PackedFile]:
        """The small files in the same pack as a packed file, in order of their place."""
        return self.rows().pack(inodes.split(nodeid)[1] & ~inodes.FILE_BIT)

    def rows(self) -> Rows:
        """The mapped manifest."""
        rows = self._rows
        if rows is None:
            with self._lock:
                rows = self._rows = self._rows or self.listed.open_rows()
        return rows

    def _whole_file(self, row: int) -> Node:
        """The node of a file with its entry; recent ones are kept, since a reader asks at every request."""
        node = self._files.get(row)
        if node is None:
            if len(self._files) >= KEPT_FILES:
                self._files = {}
            entry, nodeid = self.rows().entry(row), inodes.file_id(self.slot, row)
            node = self._files[row] = Node(
                nodeid, nodeid, "file", entry.mode, entry.size, entry.mtime_ns, CONTENT_TTL_S, 1, 0, entry, None,
                self.listed.ref,
            )  # fmt: skip
        return node

    def _folder_at(self, path: bytes) -> int:
        """The node id of the existing folder ``path``."""
        if not path:
            return self.nodeid
        rows = self.rows()
        first = rows.lower_bound(path + b"/", 0, len(rows))
        return inodes.folder_id(self.slot, path.count(b"/") + 1, first)

    def _span(self, nodeid: int) -> _Span | None:
        span = self._spans.get(nodeid)
        if span is None:
            depth, low = inodes.folder_place(inodes.split(nodeid)[1])
            span = self._make_span(depth, low)
            if span is not None:
                if len(self._spans) >= KEPT_FOLDERS:
                    self._spans = {}
                self._spans[nodeid] = span
        return span

    def _make_span(self, depth: int, low: int) -> _Span | None:
        rows = self.rows()
        if depth == 0:
            return _Span(b"", 0, 0, len(rows))
        if depth >= inodes.MAX_DEPTH or low >= len(rows):
            return None
        names = rows.path(low).split(b"/", depth)
        if len(names) <= depth:
            return None
        folder = b"/".join(names[:depth])
        if low and rows.path(low - 1).startswith(folder + b"/"):
            return None
        return _Span(folder + b"/", depth, low, rows.lower_bound(folder + AFTER_SLASH, low, len(rows)))

    def folder(self, nodeid: int, ttl_s: float) -> Node:
        """The node of an existing folder."""
        listed = self.listed
        return Node(
            nodeid, nodeid, "dir", listed.folder_mode, 0, listed.created_ns, ttl_s, gid=listed.gid, release=listed.ref
        )

    def file(self, row: int) -> Node:
        """The node of the file in a row, without its entry."""
        size, mode, mtime_ns = self.rows().file(row)
        nodeid = self._first_file | row
        return Node(nodeid, nodeid, "file", mode, size, mtime_ns, CONTENT_TTL_S, 1, 0, None, None, self.listed.ref)

    def made_file(self, number: int) -> Node:
        """The node of one of the files that the mount adds."""
        nodeid, content = inodes.made_id(self.slot, number), self._made[number]
        return Node(
            nodeid,
            nodeid,
            "file",
            MADE_MODE,
            len(content),
            self.listed.created_ns,
            CONTENT_TTL_S,
            content=content,
            release=self.listed.ref,
        )


def _end_of(listed: ListedRelease) -> Run:
    """No further entries."""
    none = np.empty(0, np.int64)
    modes = np.empty(0, np.uint32)
    nothing = np.empty(0, np.bool_)
    text = np.empty(0, np.uint8)
    return Run(text, none, none, none, nothing, modes, none, none, none, CONTENT_TTL_S, listed.gid)
