"""``/dev/fuse``: opening, the INIT handshake, clones and backing files."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from mountd.kernel.protocol import (
    BACKING_MAP,
    DEV_IOC_BACKING_CLOSE,
    DEV_IOC_BACKING_OPEN,
    DEV_IOC_CLONE,
    IN_HEADER,
    INIT_IN,
    INIT_IN_FLAGS2,
    INIT_OUT,
    KERNEL_VERSION,
    MIN_READ_BUFFER,
    NEWEST_MINOR,
    OLDEST_MINOR,
    OUT_HEADER,
    InitFlag,
    Opcode,
)
from openshelf.errors import OpenshelfError

DEVICE = Path("/dev/fuse")
READ_AHEAD_BYTES = 1 << 20
"""How far the kernel may read ahead of a sequential reader."""
MAX_BACKGROUND = 64
"""Asynchronous requests (read-ahead) in flight at once."""
MAX_WRITE_BYTES = 4096
"""The protocol's least; there are no writes, and it keeps request buffers small."""

_WANTED = (
    InitFlag.ASYNC_READ
    | InitFlag.DO_READDIRPLUS
    | InitFlag.PARALLEL_DIROPS
    | InitFlag.MAX_PAGES
    | InitFlag.CACHE_SYMLINKS
    | InitFlag.INIT_EXT
    | InitFlag.HAS_RESEND
)
# Not ASYNC_DIO: the kernel then waits for O_DIRECT reads uninterruptibly, and a store that hangs makes readers that
# cannot be killed. (POSIX_LOCKS and FLOCK_LOCKS neither: locks are then the kernel's own and simply work.)


class DeviceError(OpenshelfError):
    """The kernel's FUSE device cannot be used."""


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What kernel and file system agreed on."""

    minor: int
    passthrough: bool
    resend: bool


def open_device() -> int:
    """A new descriptor of ``/dev/fuse``, not inherited by programs."""
    try:
        return os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise DeviceError(
            "no_fuse",
            f"{DEVICE} cannot be opened: {os.strerror(error.errno or errno.EIO)}",
            "Load the fuse module (modprobe fuse) or give the container the device.",
        ) from error


def clone(device: int) -> int:
    """A further descriptor of the connection behind ``device``, with its own queue of requests in progress."""
    other = open_device()
    try:
        fcntl.ioctl(other, DEV_IOC_CLONE, struct.pack("=I", device))
    except OSError as error:
        os.close(other)
        raise DeviceError("no_clone", f"{DEVICE} cannot be cloned: {os.strerror(error.errno or errno.EIO)}") from error
    return other


def handshake(device: int, max_read_bytes: int, *, passthrough: bool, resend: bool = True) -> Negotiated:
    """Answer the INIT request that mounting has queued.

    ``max_read_bytes`` is the largest READ that the kernel may ask for. ``passthrough`` asks for it where the kernel
    offers it; ``resend`` False declines NOTIFY_RESEND, as on a kernel before 6.9. Raises DeviceError for a kernel that
    is too old.
    """
    buffer = bytearray(MIN_READ_BUFFER)
    os.readv(device, [buffer])
    _, opcode, unique, *_ = IN_HEADER.unpack_from(buffer)
    if opcode != Opcode.INIT:
        raise DeviceError("no_init", f"The kernel began with request {opcode} instead of INIT")
    major, minor, max_readahead, flags = INIT_IN.unpack_from(buffer, IN_HEADER.size)
    if flags & InitFlag.INIT_EXT:
        flags |= INIT_IN_FLAGS2.unpack_from(buffer, IN_HEADER.size + INIT_IN.size)[0] << 32
    if major != KERNEL_VERSION or minor < OLDEST_MINOR:
        os.writev(device, [OUT_HEADER.pack(OUT_HEADER.size, -errno.EPROTO, unique)])
        raise DeviceError(
            "old_kernel", f"The kernel speaks FUSE {major}.{minor}", f"At least 7.{OLDEST_MINOR} (Linux 5.4) is needed."
        )
    wanted = _WANTED | (InitFlag.PASSTHROUGH if passthrough else InitFlag(0))
    if not resend:
        wanted &= ~InitFlag.HAS_RESEND
    agreed = flags & wanted
    granted = bool(agreed & InitFlag.PASSTHROUGH)
    body = INIT_OUT.pack(
        KERNEL_VERSION,
        min(minor, NEWEST_MINOR),
        max(max_readahead, READ_AHEAD_BYTES),
        agreed & 0xFFFFFFFF,
        MAX_BACKGROUND,
        MAX_BACKGROUND * 3 // 4,
        MAX_WRITE_BYTES,
        1,  # time_gran: times are exact to the nanosecond
        max_read_bytes // os.sysconf("SC_PAGESIZE"),
        0,
        agreed >> 32,
        1 if granted else 0,  # max_stack_depth: the cache lies on a file system that is not itself stacked
        0,
    )
    os.writev(device, [OUT_HEADER.pack(OUT_HEADER.size + len(body), 0, unique), body])
    return Negotiated(minor=minor, passthrough=granted, resend=bool(agreed & InitFlag.HAS_RESEND))


def open_backing(device: int, descriptor: int) -> int:
    """Register an open file for passthrough and return its backing id. Raises OSError (EPERM, ELOOP, …)."""
    # A mutable buffer: with bytes, fcntl.ioctl returns the buffer and the id is lost.
    return int(fcntl.ioctl(device, DEV_IOC_BACKING_OPEN, bytearray(BACKING_MAP.pack(descriptor, 0, 0))))


def close_backing(device: int, backing_id: int) -> bool:
    """Give a backing id back; False when the kernel does not know it."""
    try:
        fcntl.ioctl(device, DEV_IOC_BACKING_CLOSE, bytearray(struct.pack("=I", backing_id)))
    except FileNotFoundError:
        return False
    return True


def why_no_passthrough(device: int, folder: Path) -> str | None:
    """Try a file of the cache folder as a backing file: None when it works, else the reason for people."""
    descriptor = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    try:
        close_backing(device, open_backing(device, descriptor))
    except OSError as error:
        if error.errno == errno.ELOOP:
            return f"{folder} lies on a stacked file system (overlayfs); put the cache on a real disk"
        if error.errno == errno.EPERM:
            return "the process lacks CAP_SYS_ADMIN"
        return f"the kernel refuses {folder} as a backing file: {error.strerror}"
    finally:
        os.close(descriptor)
    return None
