"""The inside of one release: nodes from its mapped manifest, found by path, by node id, and by folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from catalog.names import ReleaseRef
from mountd import inodes
from mountd.interfaces import Node
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

    def lookup(self, parent_id: int, name: bytes) -> Node | None:
        """The entry ``name`` of one of the release's folders."""
        span = self._span(parent_id)
        if span is None or b"/" in name:
            return None
        if not span.prefix and name in RECORD_NAMES:
            return self.made_file(RECORD_NAMES.index(name))
        rows = self.rows()
        path = span.prefix + name
        row = rows.lower_bound(path, span.low, span.high)
        if row < span.high and rows.path(row) == path:
            return self._whole_file(row)
        below = path + b"/"
        row = rows.lower_bound(below, row, span.high)
        if row < span.high and rows.path(row).startswith(below):
            return self.folder(inodes.folder_id(self.slot, span.depth + 1, row), CONTENT_TTL_S)
        return None

    def children(self, nodeid: int) -> Sequence[tuple[bytes, Node]]:
        """The entries of one of the release's folders, in order of name bytes."""
        span = self._span(nodeid)
        return () if span is None else ReleaseEntries(self, span)

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
            node = self._files[row] = self.file(row, whole=True)
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

    def file(self, row: int, *, whole: bool) -> Node:
        """The node of the file in a row, with its entry when it is to be ``whole``."""
        rows = self.rows()
        _, size, mode, mtime_ns = rows.file(row)
        nodeid = inodes.file_id(self.slot, row)
        entry = rows.entry(row) if whole else None
        return Node(nodeid, nodeid, "file", mode, size, mtime_ns, CONTENT_TTL_S, 1, 0, entry, None, self.listed.ref)

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


class ReleaseEntries(Sequence[tuple[bytes, Node]]):
    """The entries of one folder as numbers (8 bytes each); names and nodes are made when they are asked for."""

    def __init__(self, tree: ReleaseTree, span: _Span) -> None:
        self._tree = tree
        self._span = span
        self._rows = tree.rows()
        self._numbers = self._rows.entries(span.prefix, span.low, span.high)
        self._made: tuple[tuple[int, bytes], ...] = ()
        if not span.prefix:
            self._made = tuple((self._position(name), name) for name in RECORD_NAMES)

    def _position(self, name: bytes) -> int:
        """Before which of the manifest's entries a file that the mount makes stands."""
        low, high = 0, len(self._numbers)
        while low < high:
            middle = (low + high) >> 1
            if self._name(middle) < name:
                low = middle + 1
            else:
                high = middle
        return low

    def _name(self, at: int) -> bytes:
        number = int(self._numbers[at])
        path = self._rows.path(number if number >= 0 else ~number)
        start = len(self._span.prefix)
        return path[start:] if number >= 0 else path[start : path.index(b"/", start)]

    def __len__(self) -> int:
        return len(self._numbers) + len(self._made)

    def _manifest_entry(self, number: int) -> tuple[bytes, Node]:
        tree, start = self._tree, len(self._span.prefix)
        if number >= 0:
            return self._rows.path(number)[start:], tree.file(number, whole=False)
        path = self._rows.path(~number)
        nodeid = inodes.folder_id(tree.slot, self._span.depth + 1, ~number)
        return path[start : path.index(b"/", start)], tree.folder(nodeid, CONTENT_TTL_S)

    def _manifest_entries(self, first: int, last: int) -> Iterator[tuple[bytes, Node]]:
        """Entries ``first`` up to ``last``; runs of files take a short way, for a million of them matter."""
        rows, release, start = self._rows, self._tree.listed.ref, len(self._span.prefix)
        base = inodes.file_id(self._tree.slot, 0)
        for number in self._numbers[first:last].tolist():
            if number < 0:
                yield self._manifest_entry(number)
                continue
            path, size, mode, mtime_ns = rows.file(number)
            nodeid = base | number
            yield (
                path[start:],
                Node(nodeid, nodeid, "file", mode, size, mtime_ns, CONTENT_TTL_S, 1, 0, None, None, release),
            )

    def __iter__(self) -> Iterator[tuple[bytes, Node]]:
        start = 0
        for number, (position, name) in enumerate(self._made):
            yield from self._manifest_entries(start, position)
            start = position
            yield name, self._tree.made_file(number)
        yield from self._manifest_entries(start, len(self._numbers))

    @overload
    def __getitem__(self, at: int) -> tuple[bytes, Node]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[bytes, Node]]: ...
    def __getitem__(self, at: int | slice) -> tuple[bytes, Node] | Sequence[tuple[bytes, Node]]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        if at < 0:
            at += len(self)
        for number, (position, name) in enumerate(self._made):
            if at == position + number:
                return name, self._tree.made_file(number)
            if at < position + number:
                return self._manifest_entry(int(self._numbers[at - number]))
        return self._manifest_entry(int(self._numbers[at - len(self._made)]))
