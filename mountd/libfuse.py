"""The second transport: fuse-python (libfuse 2), for hosts where ``/dev/fuse`` cannot be used directly.

Same tree, same reader; every read is answered by the daemon. libfuse speaks in paths, and its entries live as long for
tags as for files, so that every path is looked up again after a second.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import fuse

from mountd.interfaces import ROOT_ID, Handle, Node, Opened, Reader, Tree
from mountd.shared_state import Counter
from mountd.xattrs import absence, read_xattr, xattr_names
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.libfuse")

fuse.fuse_python_api = (0, 2)
TTL_S = 1
BLOCK_BYTES = 4096
NAME_MAX = 255
_TYPES = {"dir": stat.S_IFDIR, "file": stat.S_IFREG, "link": stat.S_IFLNK}
_OPTIONS = {"fsname": "openshelf", "subtype": "openshelf", "entry_timeout": str(TTL_S), "attr_timeout": str(TTL_S)}
_FLAGS = ("ro", "nosuid", "nodev", "use_ino", "default_permissions")

Result = TypeVar("Result")


def serve(mountpoint: Path, tree: Tree, reader: Reader, counters: memoryview, opened: Callable[[Opened], None]) -> None:
    """Mount and serve at ``mountpoint`` until it is unmounted, in this process; many requests at once.

    ``counters`` is a row of :class:`mountd.shared_state.Counter`; ``opened`` is told of every file that is opened.
    OpenshelfError when libfuse cannot mount.
    """
    args = fuse.FuseArgs()
    args.mountpoint = str(mountpoint)
    args.setmod("foreground")
    for flag in (*_FLAGS, *(("allow_other",) if os.geteuid() == 0 else ())):
        args.add(flag)
    for name, value in _OPTIONS.items():
        args.add(name, value)
    try:
        _FileSystem(tree, reader, _Counters(counters), opened).main(args.assemble())
    except fuse.FuseError as error:
        raise OpenshelfError(
            "libfuse_failed",
            f"libfuse cannot mount at {mountpoint}: {error}",
            "Check that /dev/fuse exists and that fusermount is installed.",
        ) from error


class _Counters:
    """A counter row that libfuse's threads share."""

    def __init__(self, row: memoryview) -> None:
        self._row = row
        self._lock = threading.Lock()

    def add(self, counter: Counter, amount: int = 1) -> None:
        with self._lock:
            self._row[counter] += amount


def _errors(call: Callable[[], Result], what: str) -> Result:
    """The result of ``call``, any error of ours as EIO with its reason in the log."""
    try:
        return call()
    except OpenshelfError as error:
        log.error("%s failed: %s", what, error.message)
        raise OSError(errno.EIO, error.message) from error


class _FileSystem(fuse.Fuse):  # type: ignore[misc]
    """libfuse's callbacks over a tree and a reader."""

    def __init__(self, tree: Tree, reader: Reader, counters: _Counters, opened: Callable[[Opened], None]) -> None:
        super().__init__(dash_s_do="undef")
        self._tree = tree
        self._reader = reader
        self._counters = counters
        self._opened = opened
        self._held_lock = threading.Lock()
        self._held: dict[str, tuple[Node, int]] = {}
        self.multithreaded = True

    def _node(self, path: str) -> Node:
        """The node at an absolute path; OSError (ENOENT) when there is none."""
        nodeid = ROOT_ID
        node = self._tree.node(nodeid)
        for name in os.fsencode(path).split(b"/"):
            if not name:
                continue
            if len(name) > NAME_MAX:
                raise OSError(errno.ENAMETOOLONG, "the name is too long")
            self._counters.add(Counter.LOOKUPS)
            node = self._lookup(nodeid, name)
            if node is None:
                break
            nodeid = node.nodeid
        if node is None:
            raise OSError(errno.ENOENT, "no such name")
        return node

    def _lookup(self, parent_id: int, name: bytes) -> Node | None:
        return _errors(lambda: self._tree.lookup(parent_id, name), "A lookup")

    # Callbacks; libfuse's names and signatures

    def getattr(self, path: str) -> Any:
        try:
            node = self._node(path)
        except FileNotFoundError:
            # libfuse asks by path for open files too: those of a withdrawn release go on being read.
            held = self._held.get(path)
            if held is None:
                raise
            node = held[0]
        seconds = node.mtime_ns / 1e9
        return fuse.Stat(
            st_mode=_TYPES[node.kind] | node.mode,
            st_ino=node.ino,
            st_nlink=node.nlink,
            st_gid=node.gid,
            st_size=node.size,
            st_atime=seconds,
            st_mtime=seconds,
            st_ctime=seconds,
        )

    def open(self, path: str, flags: int) -> _OpenFile:
        node = self._node(path)
        if node.kind != "file":
            raise OSError(errno.EISDIR, "not a file")
        handle = _errors(lambda: self._reader.open(node), "An open")
        self._counters.add(Counter.OPENS_SERVED)
        context = self.GetContext()
        self._opened(Opened(node, context["pid"], context["uid"], "served"))
        with self._held_lock:
            self._held[path] = node, self._held.get(path, (node, 0))[1] + 1
        return _OpenFile(node, handle)

    def read(self, path: str, length: int, offset: int, opened: _OpenFile) -> bytes:
        self._counters.add(Counter.READS_SERVED)
        length = min(length, opened.node.size - offset)
        if length <= 0:
            return b""
        if self._tree.node(opened.node.nodeid) is None:
            raise OSError(errno.ESTALE, "the release was withdrawn")
        try:
            data = _errors(lambda: opened.handle.read(offset, length), "A read")
        except OSError:
            self._counters.add(Counter.READ_ERRORS)
            raise
        self._counters.add(Counter.BYTES_SERVED, len(data))
        return bytes(data)

    def release(self, path: str, flags: int, opened: _OpenFile) -> None:
        opened.handle.close()
        with self._held_lock:
            node, handles = self._held.pop(path)
            if handles > 1:
                self._held[path] = node, handles - 1

    def readlink(self, path: str) -> str:
        target = self._tree.readlink(self._node(path).nodeid)
        if target is None:
            raise OSError(errno.EINVAL, "not a link")
        return os.fsdecode(target)

    def readdir(self, path: str, offset: int) -> Iterator[Any]:
        node = self._node(path)
        yield fuse.Direntry(".", type=stat.S_IFDIR, ino=node.ino)
        yield fuse.Direntry("..", type=stat.S_IFDIR)
        for name, child in self._tree.children(node.nodeid):
            yield fuse.Direntry(os.fsdecode(name), type=_TYPES[child.kind], ino=child.ino)

    def statfs(self) -> Any:
        totals = self._tree.totals()
        return fuse.StatVfs(
            f_bsize=BLOCK_BYTES,
            f_frsize=BLOCK_BYTES,
            f_blocks=-(-totals.size_bytes // BLOCK_BYTES),
            f_files=totals.files,
            f_namemax=NAME_MAX,
        )

    def getxattr(self, path: str, name: str, size: int) -> str | int:
        value = read_xattr(self._tree, self._reader, self._node(path), name)
        if value is None:
            raise OSError(absence(name), "no such attribute")
        return len(value.encode()) if size == 0 else value

    def listxattr(self, path: str, size: int) -> list[str] | int:
        names = xattr_names(self._tree, self._reader, self._node(path))
        return sum(len(name) + 1 for name in names) if size == 0 else names


class _OpenFile:
    """One open file; libfuse reads ``keep_cache`` and ``direct_io`` and hands it back at each read."""

    def __init__(self, node: Node, handle: Handle) -> None:
        self.node = node
        self.handle = handle
        self.keep_cache = node.entry is not None
        # Of status.json, whose path stays, the pages of an older content would be shown.
        self.direct_io = node.entry is None
