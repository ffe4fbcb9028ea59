"""Settling on several disks: each disk's small files are synced together (:mod:`mountd.cache.settling`)."""

from __future__ import annotations

from collections.abc import Iterable

from mountd.cache.disk import Disks
from mountd.cache.settling import Settled, Settling


class Settlings:
    """One :class:`Settling` per disk, with the same methods."""

    def __init__(self, disks: Disks, settled: Settled) -> None:
        self._disks = disks
        self._each = {disk.number: Settling(disk.object_path, disk.root, settled) for disk in disks}

    def add(self, sha256: bytes, token: object) -> None:
        """Have a file synced soon."""
        self._each[self._disks.home(sha256).number].add(sha256, token)

    def add_all(self, digests: Iterable[bytes], token: object) -> None:
        """The same for many files that were sealed together."""
        if len(self._disks) == 1:
            self._each[next(iter(self._disks)).number].add_all(digests, token)
            return
        by_disk: dict[int, list[bytes]] = {}
        for sha256 in digests:
            by_disk.setdefault(self._disks.home(sha256).number, []).append(sha256)
        for number, found in by_disk.items():
            self._each[number].add_all(found, token)

    def close(self) -> None:
        """Sync what is left."""
        for settling in self._each.values():
            settling.close()
