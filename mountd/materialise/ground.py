"""What this host and these options allow: whether releases can be materialised, and what other opens get."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mountd.cache.store import Cache
from mountd.kernel.mounting import FILESYSTEM_TYPE, mounted_at
from mountd.options import Options

_CAP_SYS_ADMIN = 21
"""Bit of ``CapEff`` in proc_pid_status(5), from include/uapi/linux/capability.h."""
_PASSTHROUGH_SINCE = (6, 9)


def why_not_materialised(options: Options, mountpoint: Path, cache: Cache) -> str:
    """Why no release of the mount at ``mountpoint`` is materialised, for people; empty when they are."""
    if options.materialise == "no":
        return "it is switched off (materialise = no)"
    if options.ledger == "required":
        return "opens would be missed while a worker is replaced (ledger = required)"
    if cache.overlay:
        return "the cache lies on overlayfs"
    if len(cache.layout.disks) > 1:
        return "hard links cannot join the cache's several disks"
    if not may_mount():
        return "CAP_SYS_ADMIN is needed"
    present = mounted_at(mountpoint)
    if present is None or present.type != FILESYSTEM_TYPE:
        return "the libfuse transport has none"
    return ""


def has_passthrough(cache: Cache) -> bool:
    """Whether the kernel reads sealed files of ``cache`` itself; the supervisor has tried it, this follows from why."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (
        numbers is not None
        and (int(numbers[1]), int(numbers[2])) >= _PASSTHROUGH_SINCE
        and may_mount()
        and not cache.overlay
        and os.environ.get("OPENSHELF_PASSTHROUGH") != "0"
    )


def may_mount() -> bool:
    """Whether this process is root with CAP_SYS_ADMIN."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return os.geteuid() == 0 and found is not None and bool(int(found[1], 16) >> _CAP_SYS_ADMIN & 1)
