"""What each request means: opcodes over a :class:`Tree` and a :class:`Reader`. No threads, no device here."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from mountd.interfaces import Handle, Invalidation, Node, Opened, Reader, Tree
from mountd.kernel.ahead import Ahead
from mountd.kernel.answers import Buffer, FileRange
from mountd.kernel.attributes import BLOCK_BYTES, TYPE_BITS, attr_bytes, entry_bytes, time_of, validity
from mountd.kernel.listing import Form, Listings
from mountd.kernel.opens import OpenTable, base_id
from mountd.kernel.protocol import (
    ATTR_OUT,
    ENTRY_BYTES,
    ENTRY_OUT,
    GETXATTR_IN,
    GETXATTR_OUT,
    LSEEK_IN,
    LSEEK_OUT,
    OPEN_IN,
    OPEN_OUT,
    READ_IN,
    STATFS_OUT,
    STATX,
    STATX_BASIC_STATS,
    STATX_OUT,
    Opcode,
    OpenFlag,
)
from mountd.shared_state import Counter
from mountd.xattrs import absence, read_xattr, xattr_names
from openshelf.errors import OpenshelfError

_logger = logging.getLogger(__name__)

_NAME_MAX = 255
_PASSED = int(OpenFlag.PASSTHROUGH | OpenFlag.NOFLUSH)
_SERVED = int(OpenFlag.KEEP_CACHE | OpenFlag.NOFLUSH)
_NEGATIVE_TTL_S = 4 * 3600
"""How long the kernel may remember that a release has no such name."""

Answer = int | tuple[Buffer, ...] | FileRange | None
"""A positive errno, the parts of the answer's body, a range of a file, or None: no answer is expected."""


@dataclass(slots=True)
class Request:
    """One request as it came: header fields, and the body behind the header (valid until it is answered)."""

    opcode: int
    unique: int
    nodeid: int
    uid: int
    pid: int
    slot: int
    body: memoryview
    counters: memoryview


class Operations:
    """The file system: every opcode's handler. ``invalidate`` queues a name that the kernel should look up again;
    ``opened`` is told of every file that is opened."""

    def __init__(
        self,
        tree: Tree,
        reader: Reader,
        opens: OpenTable,
        invalidate: Callable[[Invalidation], None],
        opened: Callable[[Opened], None],
    ) -> None:
        self._tree = tree
        self._reader = reader
        self._opens = opens
        self._invalidate = invalidate
        self._opened = opened
        self._listings = Listings(tree, self._entry_bytes, opens.siblings)
        self._ahead = Ahead(tree, opens.siblings)
        self.handlers: dict[int, Callable[[Request], Answer]] = {
            int(opcode): handler for opcode, handler in self._handlers().items()
        }

    def _handlers(self) -> dict[Opcode, Callable[[Request], Answer]]:
        handlers: dict[Opcode, Callable[[Request], Answer]] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.FORGET: _no_answer,
            Opcode.BATCH_FORGET: _no_answer,
            Opcode.NOTIFY_REPLY: _no_answer,
            Opcode.GETATTR: self._getattr,
            Opcode.STATX: self._statx,
            Opcode.READLINK: self._readlink,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.RELEASE: self._release,
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIR: self._readdir,
            Opcode.READDIRPLUS: self._readdirplus,
            Opcode.RELEASEDIR: lambda _: (),
            Opcode.DESTROY: lambda _: (),
            Opcode.STATFS: self._statfs,
            Opcode.GETXATTR: self._getxattr,
            Opcode.LISTXATTR: self._listxattr,
            Opcode.LSEEK: self._lseek,
            Opcode.IOCTL: lambda _: errno.ENOTTY,
        }
        for opcode in (
            Opcode.SETATTR,
            Opcode.SYMLINK,
            Opcode.MKNOD,
            Opcode.MKDIR,
            Opcode.UNLINK,
            Opcode.RMDIR,
            Opcode.RENAME,
            Opcode.RENAME2,
            Opcode.LINK,
            Opcode.WRITE,
            Opcode.SETXATTR,
            Opcode.REMOVEXATTR,
            Opcode.CREATE,
            Opcode.FALLOCATE,
            Opcode.COPY_FILE_RANGE,
            Opcode.COPY_FILE_RANGE_64,
            Opcode.TMPFILE,
        ):
            handlers[opcode] = lambda _: errno.EROFS
        return handlers

    def name_changed(self, change: Invalidation) -> None:
        """A name was published, withdrawn or re-tagged: drop the directory's listing, let the kernel ask again."""
        self._listings.forget(change.parent_id)
        self._ahead.forget()
        self._invalidate(change)

    # Names and attributes

    def _node(self, nodeid: int) -> Node | None:
        return self._tree.node(base_id(nodeid))

    def _entry_bytes(self, node: Node) -> bytes:
        nodeid = self._opens.nodeid_for(node.nodeid) if node.kind == "file" else node.nodeid
        return entry_bytes(node, nodeid)

    def _lookup(self, request: Request) -> Answer:
        request.counters[Counter.LOOKUPS] += 1
        name = bytes(request.body[:-1])
        made = self._ahead.take(request.nodeid, name)
        if made is not None:
            return (made,)
        if len(name) > _NAME_MAX:
            return errno.ENAMETOOLONG
        node = self._special(request.nodeid, name) if name in (b".", b"..") else None
        if node is None:
            node = self._tree.glance(request.nodeid, name)
        if node is not None:
            if node.kind == "file":
                self._ahead.note(request.nodeid, node, request.pid)
            return (self._entry_bytes(node),)
        if not self._tree.is_fixed(request.nodeid):
            return errno.ENOENT
        # Nothing will ever appear in a release: nodeid 0 with a validity is a negative entry that the kernel keeps.
        return (ENTRY_OUT.pack(0, 0, _NEGATIVE_TTL_S, 0, 0, 0) + bytes(ENTRY_BYTES - ENTRY_OUT.size),)

    def _special(self, nodeid: int, name: bytes) -> Node | None:
        """``.`` and ``..``: looked up by NFS exports only."""
        place = self._tree.place(nodeid) if name == b".." else None
        return self._tree.node(place[0] if place else nodeid)

    def _getattr(self, request: Request) -> Answer:
        node = self._node(request.nodeid)
        if node is None:
            return errno.ESTALE
        seconds, nanoseconds = validity(node.ttl_s)
        return (ATTR_OUT.pack(seconds, nanoseconds, 0), attr_bytes(node))

    def _statx(self, request: Request) -> Answer:
        node = self._node(request.nodeid)
        if node is None:
            return errno.ESTALE
        seconds, nanoseconds = validity(node.ttl_s)
        time = time_of(node.mtime_ns)
        body = STATX.pack(
            STATX_BASIC_STATS, BLOCK_BYTES, 0, node.nlink, 0, node.gid, TYPE_BITS[node.kind] | node.mode,
            node.ino, node.size, (node.size + 511) // 512, 0, *time, 0, 0, *time, *time, 0, 0, 0, 0,
        )  # fmt: skip
        return (STATX_OUT.pack(seconds, nanoseconds, 0), body)

    def _readlink(self, request: Request) -> Answer:
        target = self._tree.readlink(request.nodeid)
        return errno.EINVAL if target is None else (target,)

    def _statfs(self, request: Request) -> Answer:
        totals = self._tree.totals()
        blocks = -(-totals.size_bytes // BLOCK_BYTES)
        return (STATFS_OUT.pack(blocks, 0, 0, totals.files, 0, BLOCK_BYTES, _NAME_MAX, BLOCK_BYTES),)

    # Directories

    def _opendir(self, request: Request) -> Answer:
        node = self._tree.node(request.nodeid)
        if node is None:
            return errno.ESTALE
        if node.kind != "dir":
            return errno.ENOTDIR
        flags = OpenFlag.CACHE_DIR | OpenFlag.KEEP_CACHE if self._tree.is_fixed(request.nodeid) else OpenFlag(0)
        return (OPEN_OUT.pack(0, flags, 0),)

    def _readdir(self, request: Request) -> Answer:
        return self._list(request, Form.NAMES)

    def _readdirplus(self, request: Request) -> Answer:
        # The kernel makes an inode of every entry that comes whole, which is wasted on who wants the names alone.
        _, cookie, _ = READ_IN.unpack_from(request.body)
        return self._list(request, Form.WHOLE if cookie == 0 or self._ahead.looks(request.pid) else Form.BARE)

    def _list(self, request: Request, form: Form) -> Answer:
        _, cookie, size = READ_IN.unpack_from(request.body)
        node = self._tree.node(request.nodeid)
        if node is None:
            return errno.ESTALE
        return (self._listings.answer(node, cookie, size, form),)

    # Files

    def _open(self, request: Request) -> Answer:
        flags, _ = OPEN_IN.unpack_from(request.body)
        if flags & (os.O_ACCMODE | os.O_TRUNC) != os.O_RDONLY:
            return errno.EROFS
        node = self._node(request.nodeid)
        if node is None:
            return errno.ESTALE
        entry = self._opens.join(request.nodeid, request.slot, request.unique)
        if entry is None:
            if node.kind != "file":
                return errno.EISDIR if node.kind == "dir" else errno.ELOOP
            handle = self._reader.open(node)
            kept = False
            try:
                entry, kept = self._opens.begin(request.nodeid, handle, request.slot, request.unique)
            finally:
                if not kept:
                    handle.close()
        elif self._opens.is_outdated(entry):
            # Sealed meanwhile: this open stays of the served kind, the next one is to come with another nodeid.
            place = self._tree.place(base_id(request.nodeid))
            if place is not None:
                self._invalidate(Invalidation(*place))
        # No file handle number: the nodeid says all, so that a handle outlives every worker.
        self._opened(Opened(node, request.pid, request.uid, "passthrough" if entry.passthrough else "served"))
        if entry.passthrough:
            request.counters[Counter.OPENS_PASSTHROUGH] += 1
            return (OPEN_OUT.pack(0, _PASSED, entry.backing_id),)
        request.counters[Counter.OPENS_SERVED] += 1
        return (OPEN_OUT.pack(0, _SERVED, 0),)

    def abandoned(self, request: Request) -> None:
        """Nobody took the answer to an OPEN: there will be no RELEASE for it."""
        self._close(self._opens.end(request.nodeid, request.slot, 0))

    def _release(self, request: Request) -> Answer:
        self._close(self._opens.end(request.nodeid, request.slot, request.unique))
        return ()

    def _close(self, handle: Handle | None) -> None:
        if handle is not None:
            handle.close()

    def at_hand(self, request: Request) -> Answer:
        """The answer to a READ whose bytes are in memory, which is made at once; else None."""
        if request.opcode != Opcode.READ:
            return None
        entry = self._opens.get(request.nodeid)
        if entry is None or entry.handle is None:
            return None
        _, offset, size = READ_IN.unpack_from(request.body)
        data = entry.handle.at_hand(offset, size)
        if data is None:
            return None
        request.counters[Counter.READS_SERVED] += 1
        request.counters[Counter.BYTES_SERVED] += len(data)
        return (data,)

    def _read(self, request: Request) -> Answer:
        request.counters[Counter.READS_SERVED] += 1
        _, offset, size = READ_IN.unpack_from(request.body)
        node = self._node(request.nodeid)
        if node is None:
            return errno.ESTALE
        size = min(size, node.size - offset)
        if size <= 0:
            return ()
        entry = self._opens.get(request.nodeid)
        if entry is None:
            return errno.EBADF
        handle = self._opens.handle(request.nodeid, entry, lambda: self._reader.open(node))
        try:
            found = handle.locate(offset, size)
            request.counters[Counter.BYTES_SERVED] += size
            return (
                (handle.read(offset, size),)
                if found is None
                else FileRange(*found, size, lambda: handle.read(offset, size))
            )
        except (OSError, OpenshelfError) as error:
            request.counters[Counter.READ_ERRORS] += 1
            _logger.error("a read of %s failed: %s", _described(node), error)
            return errno.EIO

    def _lseek(self, request: Request) -> Answer:
        _, offset, whence = LSEEK_IN.unpack_from(request.body)
        node = self._node(request.nodeid)
        if node is None:
            return errno.ESTALE
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            return errno.EINVAL
        if offset >= node.size:
            return errno.ENXIO
        return (LSEEK_OUT.pack(offset if whence == os.SEEK_DATA else node.size),)

    # Extended attributes

    def _getxattr(self, request: Request) -> Answer:
        (size,) = GETXATTR_IN.unpack_from(request.body)
        name = bytes(request.body[GETXATTR_IN.size : -1]).decode("utf-8", "replace")
        node = self._node(request.nodeid)
        if node is None:
            return errno.ESTALE
        value = read_xattr(self._tree, self._reader, node, name)
        return absence(name) if value is None else _sized(value.encode(), size)

    def _listxattr(self, request: Request) -> Answer:
        (size,) = GETXATTR_IN.unpack_from(request.body)
        node = self._node(request.nodeid)
        if node is None:
            return errno.ESTALE
        names = xattr_names(self._tree, self._reader, node)
        return _sized("".join(f"{name}\0" for name in names).encode(), size)


def _no_answer(_: Request) -> None:
    return None


def _sized(value: bytes, size: int) -> Answer:
    """An xattr answer: its length when asked with size 0, else the value, or ERANGE."""
    if size == 0:
        return (GETXATTR_OUT.pack(len(value)),)
    return errno.ERANGE if len(value) > size else (value,)


def _described(node: Node) -> str:
    """A file for the log: its digest, and the release it is read from (a path may hold what a log must not)."""
    digest = node.entry.sha256.hex() if node.entry is not None else f"node {node.nodeid}"
    return f"{digest} in {node.release}" if node.release is not None else digest
