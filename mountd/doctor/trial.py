"""A mount on trial: made in a mount namespace of its own, so that nobody sees it, and gone with its process.

What the kernel grants is asked of the kernel; a version number says little about it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from mountd.kernel.answers import largest_read_bytes
from mountd.kernel.device import handshake, why_no_passthrough
from mountd.kernel.mounting import mount, unmount
from openshelf.errors import OpenshelfError

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Trial:
    """``error``: why nothing can be mounted, else empty. ``no_passthrough``: why the kernel cannot read the cache's
    files itself, else empty."""

    error: str = ""
    minor: int = 0
    resend: bool = False
    no_passthrough: str = ""


def try_mount(cache: Path | None) -> Trial:
    """Mount, shake hands, try a file of ``cache`` as a backing file, and take it all away again."""
    with tempfile.TemporaryDirectory(prefix="openshelf-doctor-") as folder:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writing, json.dumps(asdict(_child(Path(folder), cache))).encode())
            finally:
                os._exit(0)
        os.close(writing)
        try:
            poll = select.poll()
            poll.register(reading, select.POLLIN)
            said = os.read(reading, 65536) if poll.poll(_WITHIN_S * 1000) else b""
        finally:
            os.close(reading)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return Trial(**json.loads(said)) if said else Trial(error="a mount on trial did not come about")


def _child(folder: Path, cache: Path | None) -> Trial:
    root = os.geteuid() == 0
    if root:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
            return Trial(error="root lacks CAP_SYS_ADMIN here")
    try:
        size = largest_read_bytes()
        device = mount(folder, size)
        try:
            agreed = handshake(device, size, passthrough=True)
            reason = (
                "" if agreed.passthrough else "the kernel has none (Linux 6.9 and CONFIG_FUSE_PASSTHROUGH are needed)"
            )
            if not root:
                reason = "the process lacks CAP_SYS_ADMIN"
            elif agreed.passthrough and cache is not None and cache.is_dir():
                reason = why_no_passthrough(device, cache) or ""
        finally:
            unmount(folder, lazy=True)
    except OpenshelfError as error:
        return Trial(error=error.message)
    except OSError as error:
        return Trial(error=error.strerror or str(error))
    return Trial(minor=agreed.minor, resend=agreed.resend, no_passthrough=reason)
