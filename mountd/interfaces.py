"""The border between the two halves of the mount: names and bytes (data side), the kernel (transports).

The data side implements :class:`Tree`, :class:`Reader`, :class:`Handle` and :class:`Node` users; the transports
(kernel channel, libfuse) call nothing else. All methods may be called from many threads at once.

Node ids. ``Node.nodeid`` is permanent: the same file or directory has the same id for the life of the *mount*,
across worker restarts too (derive it, or persist it in the cache folder; never count it up in memory). It is below
``MAX_NODEID``; ids are never given to another file. The data side does not change an id when a file becomes sealed:
the kernel channel adds a generation in the bits above by itself, only where handles of the old kind are still open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from mountd.options import Options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from catalog.manifest import FileEntry
    from catalog.names import ReleaseRef

ROOT_ID = 1
"""Node id of the mount's root directory (``FUSE_ROOT_ID``)."""

MAX_NODEID = 1 << 60
"""Node ids of the data side are below this."""

Kind = Literal["dir", "file", "link"]


class Node(NamedTuple):
    """One file, directory or symbolic link as the kernel sees it. Nothing in it ever changes for a given nodeid.

    A tuple because it is made a million times for a large directory, in a quarter of the time of a dataclass.
    ``mode`` holds permission bits only (0o555, 0o444, …); ``size`` is always the true size in bytes (for a link the
    length of its target, for a directory 0); ``ttl_s`` is how long the kernel may keep this entry and its attributes:
    hours for what is inside a release, about a second for tags and the folders above releases.
    A file has either ``entry`` (a manifest row, its bytes come from the cache) or ``content`` (bytes made by the
    mount itself: ``release.json``).
    """

    nodeid: int
    ino: int
    kind: Kind
    mode: int
    size: int
    mtime_ns: int
    ttl_s: float
    nlink: int = 1
    gid: int = 0
    entry: FileEntry | None = None
    content: bytes | None = None
    release: ReleaseRef | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one directory by columns, all of shape (entries,).

    The name of entry ``i`` is ``text[starts[i] : starts[i] + lengths[i]]``. All have the same ``ttl_s``; directories
    have the group ``gid``, files root's.
    """

    text: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    nodeids: npt.NDArray[np.int64]
    is_dir: npt.NDArray[np.bool_]
    modes: npt.NDArray[np.uint32]
    """Permission bits."""
    sizes: npt.NDArray[np.int64]
    mtimes_ns: npt.NDArray[np.int64]
    following: npt.NDArray[np.int64]
    """The position after each entry, ascending, from 1 on."""
    ttl_s: float
    gid: int

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class Totals:
    """What ``df`` shows: files and bytes of all releases that this mount lists."""

    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Invalidation:
    """The name ``name`` in the directory ``parent_id`` appeared, went away or points elsewhere."""

    parent_id: int
    name: bytes


class Tree(Protocol):
    """Names. Raises nothing for unknown ids: it answers None or an empty sequence."""

    def node(self, nodeid: int) -> Node | None:
        """The node with this id, also when no name was looked up before (a new worker has seen no LOOKUP)."""

    def lookup(self, parent_id: int, name: bytes) -> Node | None:
        """The child ``name`` of a directory (never ``.`` or ``..``)."""

    def glance(self, parent_id: int, name: bytes) -> Node | None:
        """As :meth:`lookup`, quicker: a file's node comes without its ``entry``."""

    def children(self, nodeid: int) -> Iterable[tuple[bytes, Node]]:
        """All entries of a directory in an order that stays, without ``.`` and ``..``; made while they are iterated.

        The nodes of files come without their ``entry``: :meth:`node` has it.
        """

    def run(self, nodeid: int, position: int) -> Run | None:
        """Some of a directory's entries by columns, in the order of :meth:`children`, from ``position`` on: 0, or what
        a run named as following one of its entries. An empty run is the end; None: this directory has no columns.

        Positions stay the same for every worker.
        """

    def is_fixed(self, nodeid: int) -> bool:
        """Whether this is a directory whose names never change: one of a listed release."""

    def following(self, parent_id: int, nodeid: int, most: int) -> Run | None:
        """Up to ``most`` entries that are listed after the file ``nodeid`` of a directory; None as for :meth:`run`."""

    def place(self, nodeid: int) -> tuple[int, bytes] | None:
        """The parent's id and the name of a node; None for the root and for unknown ids."""

    def readlink(self, nodeid: int) -> bytes | None:
        """The target of a symbolic link, or None when it is none."""

    def licence(self, release: ReleaseRef) -> str | None:
        """The SPDX expression of a listed release."""

    def totals(self) -> Totals:
        """Files and bytes of everything listed (kept, not counted at each call)."""

    def subscribe(self, callback: Callable[[Invalidation], None]) -> None:
        """Call ``callback`` after every change of a name (publish, withdraw, tag, untag), from the changing thread.

        The new state must already be visible through the tree. The callback only queues; it never blocks.
        """


class Handle(Protocol):
    """One open file. It keeps its object from eviction until :meth:`close`."""

    def sealed_fd(self) -> int | None:
        """A descriptor of the complete, verified cache file whose size equals ``node.size``, else None.

        It belongs to the handle and is closed with it. Never given for a partial file, nor for part of a pack.
        Asked again later it may have become available.
        """

    def locate(self, offset: int, length: int) -> tuple[int, int] | None:
        """Bring the range to the cache and say where it is: (descriptor, offset in that file).

        Waits for fetching and verifying what is missing. ``offset + length`` is never beyond the file's size. None when
        the bytes exist only in memory (content made by the mount, cache disk full): then :meth:`read` has them.
        Raises OSError (EIO) when the bytes cannot be had within the deadline.
        """

    def at_hand(self, offset: int, length: int) -> memoryview | None:
        """The bytes of the range (shorter only at the end of the file) when they are in memory and nothing else is to
        be done for whoever reads them: neither waits nor raises. None otherwise."""

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """The bytes of the range (shorter only at the end of the file); raises like :meth:`locate`."""

    def close(self) -> None:
        """Give back what the handle holds; called exactly once."""


class Reader(Protocol):
    """Bytes."""

    def open(self, node: Node) -> Handle:
        """A handle for a file node; quick: it fetches nothing. Raises OSError."""

    def cached_bytes(self, node: Node) -> int:
        """How many bytes of the file are in the cache, verified (``node.size`` when it is sealed)."""


@dataclass(frozen=True, slots=True)
class MountConfig:
    """What a mount is started with. ``token`` is never logged, never in an argument list or an environment."""

    mountpoint: Path
    cache: Path
    cache_size_bytes: int
    catalog: str
    catalog_key: str | None
    token: str | None
    options: Options = field(default_factory=Options)


Work = Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]
"""A command that the worker carries out for ``openshelf warm``, ``cache ls`` and the like: from the arguments to
objects that are sent as they come (progress), the last of which is the outcome. Raises OpenshelfError."""


class Opened(NamedTuple):
    """One open of a file, as the access ledger wants to know of it. ``pid`` is 0 when it cannot be seen from here."""

    node: Node
    pid: int
    uid: int
    tier: Literal["passthrough", "served", "materialised"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the data side reports for ``openshelf status``; all plain values."""

    cache_bytes: int
    cache_limit_bytes: int
    feed_epoch: int
    feed_serial: int
    stale: bool
    online: bool
    releases: int
    reason: str = ""
    """Why it is offline or stale, one line for people; empty when all is well."""
    more: tuple[tuple[str, int], ...] = ()
    """Further counters by name (bytes_fetched, chunks_corrupt, evictions, …)."""


class Kernel(Protocol):
    """What the kernel side knows of open files, and can do about them."""

    def open_files(self) -> Mapping[int, bool]:
        """Every node id with open handles (a generation may stand in the bits above), and whether the kernel reads the
        file itself."""

    def drop_pages(self, nodeids: Iterable[int]) -> None:
        """Let the kernel forget attributes and pages of open files, mapped ones too; only queues."""


class NoKernel:
    """A transport that knows nothing of open files (:class:`Kernel`)."""

    def open_files(self) -> Mapping[int, bool]:
        """None that it could tell."""
        return {}

    def drop_pages(self, nodeids: Iterable[int]) -> None:
        """It has no way to."""


class Stack(Protocol):
    """The data side of one mount, put together (``mountd.node.build``)."""

    tree: Tree
    reader: Reader

    def start(self, *, resume: bool) -> None:
        """Take the first feed position (or go offline with the last good state) and begin to follow the feed.

        ``resume``: an earlier worker of this mount was already serving, readers are waiting: serve the last good state
        at once and catch up in the background. Returns when names can be served. Raises OpenshelfError when there is
        nothing to serve: no state on disk and the catalog cannot be reached, the token is refused, the cache is locked
        or of a newer format.
        """

    def attach(self, kernel: Kernel) -> None:
        """Learn of the kernel side, once it is there."""

    def facts(self) -> Facts:
        """The present state; cheap, called about once a second."""

    def opened(self, opened: Opened) -> None:
        """Take note of an open. Called by the thread that answers it: quick, never raises, never blocks."""

    def work(self) -> Mapping[str, Work]:
        """What the worker does on command, by name."""

    def shrink(self) -> None:
        """Let go what is held in memory and can be made again; called when the worker comes near its limit."""

    def close(self) -> None:
        """Stop following and give the cache's lock back."""
