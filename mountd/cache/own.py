"""What lies in the cache's folders beside objects and partial files, and counts against the limits too."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mountd.cache.disk import Disk
from openshelf.units import MIB

_BLOCK = 512
INDEX_LOG_NAME = "index.sqlite-wal"


def index_log_bytes(limit_bytes: int) -> int:
    """How long the log beside the index may become in a cache of this size."""
    return min(64 * MIB, max(1 * MIB, limit_bytes // 1000))


def measure(disks: Iterable[Disk], limit_bytes: int) -> tuple[int, int]:
    """Bytes on disk and number of all files and folders that are not objects, partial files or links of objects.

    The log beside the index comes and goes: it counts as if it always had its full length, and a quarter more.
    """
    log_bytes = index_log_bytes(limit_bytes) * 5 // 4
    size = files = 0
    for disk in disks:
        counted = {os.fspath(disk.objects), os.fspath(disk.partial), os.fspath(disk.trees)}
        size_here, files_here = _walk(disk.root, counted, log_bytes)
        size, files = size + size_here, files + files_here
    return size, files


def _walk(root: Path, folders_only: set[str], log_bytes: int) -> tuple[int, int]:
    size, files = root.stat().st_blocks * _BLOCK, 1
    waiting = [(os.fspath(root), False)]
    while waiting:
        folder, bare = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    deeper = entry.is_dir(follow_symlinks=False)
                    if not deeper and bare:
                        continue
                    if deeper:
                        waiting.append((entry.path, bare or entry.path in folders_only))
                    taken = entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                    size += max(taken, log_bytes) if entry.name == INDEX_LOG_NAME else taken
                    files += 1
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed meanwhile
    return size, files
