"""A node's attributes as the kernel wants them: one node, or many by columns."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from mountd.interfaces import Node, Run
from mountd.kernel.protocol import ATTR, DIRENT, ENTRY_OUT

TYPE_BITS = {"dir": 0o040000, "file": 0o100000, "link": 0o120000}
DIRENT_TYPES = {"dir": 4, "file": 8, "link": 10}
"""``DT_*`` of dirent.h."""
BLOCK_BYTES = 4096
_SECTOR_BYTES = 512
"""The unit of ``st_blocks``."""
_SECOND_NS = 1_000_000_000

_ENTRY_NAMES = ("nodeid", "generation", "entry_valid", "attr_valid", "entry_valid_nsec", "attr_valid_nsec")
_ATTR_NAMES = (
    "ino", "size", "blocks", "atime", "mtime", "ctime", "atimensec", "mtimensec", "ctimensec", "mode", "nlink", "uid",
    "gid", "rdev", "blksize", "flags",
)  # fmt: skip
_DIRENT_NAMES = ("dirent_ino", "off", "namelen", "type")


def _record(*parts: tuple[Struct, tuple[str, ...]]) -> np.dtype[Any]:
    """The NumPy type of layouts one behind the other, with these names of their fields."""
    types = {"Q": "u8", "I": "u4"}
    return np.dtype(
        [
            (name, types[code])
            for layout, names in parts
            for name, code in zip(names, layout.format.removeprefix("="), strict=True)
        ]
    )


_WHOLE_ENTRY = Struct(ENTRY_OUT.format + ATTR.format.removeprefix("="))
_PLAIN = _record((DIRENT, _DIRENT_NAMES))
_PLUS = _record((ENTRY_OUT, _ENTRY_NAMES), (ATTR, _ATTR_NAMES), (DIRENT, _DIRENT_NAMES))


@lru_cache(maxsize=64)
def validity(ttl_s: float) -> tuple[int, int]:
    """How long an entry may be kept, as the protocol has it: seconds and nanoseconds."""
    seconds = int(ttl_s)
    return seconds, int((ttl_s - seconds) * _SECOND_NS)


@lru_cache(maxsize=1024)
def time_of(mtime_ns: int) -> tuple[int, int]:
    """Seconds and nanoseconds; nearly all files of a release have the same time."""
    return divmod(mtime_ns, _SECOND_NS)


def attr_bytes(node: Node) -> bytes:
    """``fuse_attr`` of a node."""
    return entry_bytes(node, 0)[ENTRY_OUT.size :]


def entry_bytes(node: Node, nodeid: int) -> bytes:
    """``fuse_entry_out`` of a node that is handed out as ``nodeid``."""
    valid, valid_ns = validity(node.ttl_s)
    seconds, nanoseconds = time_of(node.mtime_ns)
    nlink = 2 if node.kind == "dir" and node.nlink < 2 else node.nlink
    return _WHOLE_ENTRY.pack(
        nodeid, 0, valid, valid, valid_ns, valid_ns,
        node.ino, node.size, (node.size + _SECTOR_BYTES - 1) // _SECTOR_BYTES, seconds, seconds, seconds,
        nanoseconds, nanoseconds, nanoseconds, TYPE_BITS[node.kind] | node.mode, nlink, 0, node.gid, 0,
        BLOCK_BYTES, 0,
    )  # fmt: skip


def heads(
    run: Run, nodeids: npt.NDArray[np.int64] | None, cookies: npt.NDArray[np.int64], *, plus: bool
) -> npt.NDArray[Any]:
    """What stands before the names of a run's entries, shape (entries, bytes): ``fuse_dirent``, for READDIRPLUS with
    ``fuse_entry_out`` before it. ``nodeids`` are those to be handed out, None: the entries stay empty; inode numbers
    are the run's own."""
    heads = np.zeros(len(run), _PLUS if plus else _PLAIN)
    heads["dirent_ino"], heads["off"], heads["namelen"] = run.nodeids, cookies, run.lengths
    heads["type"] = np.where(run.is_dir, DIRENT_TYPES["dir"], DIRENT_TYPES["file"])
    if plus and nodeids is not None:
        seconds, nanoseconds = np.divmod(run.mtimes_ns, _SECOND_NS)
        heads["nodeid"], heads["ino"] = nodeids, run.nodeids
        heads["entry_valid"], heads["entry_valid_nsec"] = validity(run.ttl_s)
        heads["attr_valid"], heads["attr_valid_nsec"] = validity(run.ttl_s)
        heads["size"], heads["blocks"] = run.sizes, (run.sizes + _SECTOR_BYTES - 1) // _SECTOR_BYTES
        for time in ("atime", "mtime", "ctime"):
            heads[time], heads[f"{time}nsec"] = seconds, nanoseconds
        heads["mode"] = run.modes | np.where(run.is_dir, TYPE_BITS["dir"], TYPE_BITS["file"]).astype(np.uint32)
        heads["nlink"] = np.where(run.is_dir, 2, 1)
        heads["gid"] = np.where(run.is_dir, run.gid, 0)
        heads["blksize"] = BLOCK_BYTES
    return heads.view(np.uint8).reshape(len(run), -1)
