"""Opening a mount: mount(2), the INIT handshake, the clones, and whether the kernel can read the cache itself."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from mountd.kernel.answers import largest_read_bytes
from mountd.kernel.device import DeviceError, clone, handshake, why_no_passthrough
from mountd.kernel.mounting import MountError, detach, mount, raise_read_ahead
from mountd.orders import Transport

_logger = logging.getLogger(__name__)

CLONES = 4
"""Descriptors of the connection, the first included: their queues of requests in progress have separate locks."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line to the kernel. ``devices``: descriptors of the connection (none with libfuse); ``reason``: why there
    is no passthrough, empty when there is."""

    transport: str
    devices: tuple[int, ...]
    resend: bool
    reason: str


def open_line(mountpoint: Path, cache: Path, transport: Transport, *, passthrough: bool, resend: bool) -> Line:
    """Mount with the chosen transport and complete the handshake. Raises DeviceError, MountError."""
    if transport != "libfuse":
        try:
            return _open_kernel(mountpoint, cache, passthrough=passthrough, resend=resend)
        except (DeviceError, MountError) as error:
            if transport == "kernel":
                raise
            _logger.warning("the kernel transport is not available (%s); trying libfuse", error.line())
    return Line("libfuse", (), False, "the libfuse transport has none")


def _open_kernel(mountpoint: Path, cache: Path, *, passthrough: bool, resend: bool) -> Line:
    max_read_bytes = largest_read_bytes()
    device = mount(mountpoint, max_read_bytes)
    try:
        agreed = handshake(device, max_read_bytes, passthrough=passthrough, resend=resend)
        # The clones stay open in the supervisor: closing one fails the requests that were read from it.
        devices = (device, *(clone(device) for _ in range(CLONES - 1)))
    except BaseException:
        detach(mountpoint)
        os.close(device)
        raise
    raise_read_ahead(mountpoint)
    if not passthrough:
        reason = "it is switched off (OPENSHELF_PASSTHROUGH=0)"
    elif not agreed.passthrough:
        reason = "the kernel has none (Linux 6.9 and CONFIG_FUSE_PASSTHROUGH are needed)"
    else:
        reason = why_no_passthrough(device, cache) or ""
        if reason:
            _logger.warning("files are served by the daemon, not by the kernel itself: %s", reason)
    return Line("kernel", devices, agreed.resend, reason)
