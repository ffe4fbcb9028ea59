"""The cache folder and the disk below it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mountd.cache.layout import OVERLAYFS_TYPES, filesystem_type
from mountd.doctor.check import Check, judge
from openshelf.units import GIB, format_size

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "9p", "glusterfs", "afs"})
_MEMORY = frozenset({"tmpfs", "ramfs"})
_LEAST_FREE_BYTES = 4 * GIB
_LEAST_FREE_INODES = 100_000


def checks(cache: Path) -> Iterator[Check]:
    """Everything about the cache folder ``cache``; of one that does not exist yet, what its parent tells."""
    yield _folder(cache)
    place = next(each for each in (cache, *cache.parents) if each.is_dir())
    yield _kind(place)
    figures = os.statvfs(place)
    free = figures.f_bavail * figures.f_frsize
    yield judge(
        "free space",
        free >= _LEAST_FREE_BYTES,
        f"{format_size(free)} of {format_size(figures.f_blocks * figures.f_frsize)}",
        "Free some, or put the cache on another disk: what does not fit is read from the store every time.",
    )
    if figures.f_files:
        yield judge(
            "free inodes",
            figures.f_favail >= _LEAST_FREE_INODES,
            f"{figures.f_favail} of {figures.f_files}",
            "Each cached file takes one: make the file system with more (mkfs.ext4 -T small), or use XFS.",
        )


def _folder(cache: Path) -> Check:
    try:
        status = cache.stat()
    except FileNotFoundError:
        return Check("cache folder", "ok", f"{cache} will be made")
    except OSError as error:
        return Check("cache folder", "fail", f"{cache}: {error.strerror}", "Name a folder on a local disk.")
    alone = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    found = f"{cache}, mode {stat.S_IMODE(status.st_mode):04o}"
    return judge("cache folder", alone, found, f"It must be yours alone: chmod 700 {cache}", otherwise="fail")


def _kind(place: Path) -> Check:
    kind = filesystem_type(place)
    if kind in OVERLAYFS_TYPES:
        return Check(
            "cache disk", "warn", kind, "Put the cache on a real disk (a hostPath volume): no passthrough here."
        )
    if kind in _NETWORK or kind.startswith("fuse"):
        return Check("cache disk", "warn", kind, "Put the cache on a local disk: over the network it is no cache.")
    if kind in _MEMORY:
        return Check("cache disk", "warn", kind, "Put the cache on a disk: in memory it takes what jobs need.")
    return Check("cache disk", "ok", kind)
