"""The FUSE wire protocol, versions 7.31 to 7.45, as far as a read-only file system needs it.

Source of every layout and number: ``include/uapi/linux/fuse.h`` of Linux; the C name stands beside each one. All
integers are in the machine's own byte order (the protocol never leaves the machine), without padding beyond what the
header declares.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct

KERNEL_VERSION = 7
"""``FUSE_KERNEL_VERSION``."""
OLDEST_MINOR = 31
"""Linux 5.4, the oldest kernel served."""
NEWEST_MINOR = 45
"""The newest minor version whose layouts are known here."""

MIN_READ_BUFFER = 8192
"""``FUSE_MIN_READ_BUFFER``: the kernel refuses to hand a request to a smaller buffer."""
RESENT_BIT = 1 << 63
"""``FUSE_UNIQUE_RESEND``: set in ``unique`` of a request sent again after ``NOTIFY_RESEND``; the answer echoes it."""


class Opcode(IntEnum):
    """``enum fuse_opcode``, with what this file system does about each."""

    LOOKUP = 1  # a name in a directory → entry; a miss inside a release is a cached negative entry
    FORGET = 2  # the kernel drops a nodeid; ids are permanent here, nothing to do, no answer
    GETATTR = 3  # attributes of a nodeid
    SETATTR = 4  # EROFS
    READLINK = 5  # the target of a tag; the kernel caches it (CACHE_SYMLINKS)
    SYMLINK = 6  # EROFS
    MKNOD = 8  # EROFS
    MKDIR = 9  # EROFS
    UNLINK = 10  # EROFS
    RMDIR = 11  # EROFS
    RENAME = 12  # EROFS
    LINK = 13  # EROFS
    OPEN = 14  # O_RDONLY only; passthrough when the object is sealed
    READ = 15  # served from the cache file, after fetching what is missing
    WRITE = 16  # EROFS
    STATFS = 17  # the bytes and files of all listed releases, nothing free
    RELEASE = 18  # the last close of one open; the backing file goes with the last of its nodeid
    FSYNC = 20  # ENOSYS: the kernel then answers success by itself
    SETXATTR = 21  # EROFS
    GETXATTR = 22  # user.openshelf.*
    LISTXATTR = 23  # the names of those
    REMOVEXATTR = 24  # EROFS
    FLUSH = 25  # ENOSYS: never asked again, so that close() cannot hang on us
    INIT = 26  # answered once, by the supervisor
    OPENDIR = 27  # no state is kept; directories inside releases are cached by the kernel
    READDIR = 28  # slices of bytes built once per directory
    RELEASEDIR = 29  # nothing to do
    FSYNCDIR = 30  # ENOSYS
    GETLK = 31  # ENOSYS: locks are the kernel's own (POSIX_LOCKS and FLOCK_LOCKS are not negotiated)
    SETLK = 32  # ENOSYS
    SETLKW = 33  # ENOSYS
    ACCESS = 34  # ENOSYS: default_permissions lets the kernel decide from the mode
    CREATE = 35  # EROFS
    INTERRUPT = 36  # frees a reader that is being killed while its bytes are still being fetched
    BMAP = 37  # ENOSYS
    DESTROY = 38  # the end of the file system
    IOCTL = 39  # ENOTTY
    POLL = 40  # ENOSYS: the kernel then reports "always ready"
    NOTIFY_REPLY = 41  # never asked for, no answer
    BATCH_FORGET = 42  # as FORGET
    FALLOCATE = 43  # EROFS
    READDIRPLUS = 44  # READDIR with the entry of each name
    RENAME2 = 45  # EROFS
    LSEEK = 46  # SEEK_DATA, SEEK_HOLE: files have no holes
    COPY_FILE_RANGE = 47  # EROFS
    SETUPMAPPING = 48  # ENOSYS (DAX)
    REMOVEMAPPING = 49  # ENOSYS (DAX)
    SYNCFS = 50  # ENOSYS
    TMPFILE = 51  # EROFS
    STATX = 52  # GETATTR with more fields
    COPY_FILE_RANGE_64 = 53  # EROFS


class InitFlag(IntFlag):
    """``FUSE_INIT`` flags. Bits 32 and up travel in the second word, which counts only with ``INIT_EXT``."""

    ASYNC_READ = 1 << 0
    DO_READDIRPLUS = 1 << 13
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    INIT_EXT = 1 << 30
    PASSTHROUGH = 1 << 37
    HAS_RESEND = 1 << 39


class OpenFlag(IntFlag):
    """``FOPEN_*``: how the kernel treats one open."""

    KEEP_CACHE = 1 << 1
    CACHE_DIR = 1 << 3
    NOFLUSH = 1 << 5
    """No FLUSH at close (Linux 5.17): who closes a file never waits for a daemon, not even for one that is gone."""
    PASSTHROUGH = 1 << 7


class Notify(IntEnum):
    """``enum fuse_notify_code``: messages that we send without being asked (``unique`` 0, code in ``error``)."""

    INVAL_INODE = 2
    INVAL_ENTRY = 3
    RESEND = 7


IN_HEADER = Struct("=IIQQIIIHH")
"""``fuse_in_header``: len, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding."""
OUT_HEADER = Struct("=IiQ")
"""``fuse_out_header``: len, error (negative errno), unique."""

INIT_IN = Struct("=IIII")
"""``fuse_init_in`` up to 7.35: major, minor, max_readahead, flags."""
INIT_IN_FLAGS2 = Struct("=I")
"""``fuse_init_in.flags2``, directly behind :data:`INIT_IN` when flags has INIT_EXT."""
INIT_OUT = Struct("=IIIIHHIIHHIIH22x")
"""``fuse_init_out`` (64 bytes): major, minor, max_readahead, flags, max_background, congestion_threshold, max_write,
time_gran, max_pages, map_alignment, flags2, max_stack_depth, request_timeout."""

ATTR = Struct("=QQQQQQIIIIIIIIII")
"""``fuse_attr``: ino, size, blocks, atime, mtime, ctime, their nanoseconds, mode, nlink, uid, gid, rdev, blksize,
flags."""
ENTRY_OUT = Struct("=QQQQII")
"""``fuse_entry_out`` without its attr: nodeid, generation, entry_valid, attr_valid, and their nanoseconds."""
ENTRY_BYTES = ENTRY_OUT.size + ATTR.size
ATTR_OUT = Struct("=QII")
"""``fuse_attr_out`` without its attr: attr_valid, attr_valid_nsec, dummy."""

STATX_OUT = Struct("=QII16x")
"""``fuse_statx_out`` without its statx: attr_valid, attr_valid_nsec, flags."""
STATX = Struct("=IIQIIIH2xQQQQqI4xqI4xqI4xqI4xIIII112x")
"""``fuse_statx`` (256 bytes): mask, blksize, attributes, nlink, uid, gid, mode, ino, size, blocks, attributes_mask,
then atime, btime, ctime, mtime as (seconds, nanoseconds), rdev major and minor, dev major and minor."""
STATX_BASIC_STATS = 0x7FF

OPEN_IN = Struct("=II")
"""``fuse_open_in``: flags, open_flags."""
OPEN_OUT = Struct("=QIi")
"""``fuse_open_out``: fh, open_flags, backing_id."""
READ_IN = Struct("=QQI")
"""The beginning of ``fuse_read_in``: fh, offset, size."""
LSEEK_IN = Struct("=QQI4x")
"""``fuse_lseek_in``: fh, offset, whence."""
LSEEK_OUT = Struct("=Q")
"""``fuse_lseek_out``: offset."""
STATFS_OUT = Struct("=QQQQQIII28x")
"""``fuse_statfs_out``: blocks, bfree, bavail, files, ffree, bsize, namelen, frsize."""
GETXATTR_IN = Struct("=I4x")
"""``fuse_getxattr_in``: size; for GETXATTR the name follows."""
GETXATTR_OUT = Struct("=I4x")
"""``fuse_getxattr_out``: the size that would be needed, when asked with size 0."""
INTERRUPT_IN = Struct("=Q")
"""``fuse_interrupt_in``: unique of the request that is interrupted."""

DIRENT = Struct("=QQII")
"""``fuse_dirent``: ino, offset of the *next* entry, namelen, type; the name follows, padded to eight bytes."""

NOTIFY_INVAL_INODE = Struct("=Qqq")
"""``fuse_notify_inval_inode_out``: ino, offset and length of the pages (0 and 0: all of them)."""

NOTIFY_INVAL_ENTRY = Struct("=QII")
"""``fuse_notify_inval_entry_out``: parent, namelen, flags; the name and a NUL follow."""

BACKING_MAP = Struct("=iIQ")
"""``fuse_backing_map``: fd, flags, padding."""

_IOC_WRITE = 1
_IOC_READ = 2
_DEVICE_MAGIC = 229
"""``FUSE_DEV_IOC_MAGIC``."""


def _ioctl(direction: int, number: int, size: int) -> int:
    """An ioctl number as ``include/uapi/asm-generic/ioctl.h`` composes it."""
    return direction << 30 | size << 16 | _DEVICE_MAGIC << 8 | number


DEV_IOC_CLONE = _ioctl(_IOC_READ, 0, 4)
"""``FUSE_DEV_IOC_CLONE`` (u32: descriptor of the device to join)."""
DEV_IOC_BACKING_OPEN = _ioctl(_IOC_WRITE, 1, BACKING_MAP.size)
"""``FUSE_DEV_IOC_BACKING_OPEN``; the id is the ioctl's return value."""
DEV_IOC_BACKING_CLOSE = _ioctl(_IOC_WRITE, 2, 4)
"""``FUSE_DEV_IOC_BACKING_CLOSE`` (u32: id)."""
