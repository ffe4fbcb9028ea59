"""The disks that the cache's objects lie on: one folder each, the cache's own folder first.

<folder>/objects/ab/<sha256>    sealed files: complete, verified, fsynced, renamed, 0444 (0400: not fsynced yet)
<folder>/partial/<sha256>       sparse, with <sha256>.chunks: one byte per chunk
<folder>/trees/                 hard links of materialised releases: an object's links can only lie on its own disk
<folder>/disk                   the disk's identity; `lock`, `format`: as in the cache's own folder

A new object goes to its *home*: the disk that wins a weighted rendezvous hash of object and disk identity, so that a
look-up is one open in the common case, and a disk that comes or goes moves only its own share. An object that lies
elsewhere, since a disk was added after it came, is found through the index. Who needs the disk of an object (hard
links) asks :meth:`mountd.cache.store.Cache.disk_of`.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path

_WORD = (1 << 64) - 1
PROBE_NAME = "probe"
GONE_ERRNOS = frozenset({errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN, errno.EUCLEAN})
"""What says that a disk as a whole no longer serves."""
ERRORS_ALLOWED = 2
"""So many read errors are taken for bad places on a disk that otherwise works."""


class Disk:
    """One folder for objects. ``weight`` is its share among all disks; ``out`` says why it is not used any more."""

    def __init__(self, number: int, root: Path, identity: str = "0", weight: int = 1) -> None:
        self.number = number
        self.root = root
        self.objects = root / "objects"
        self._objects_name = str(self.objects)
        self.partial = root / "partial"
        self.trees = root / "trees"
        self.identity = identity
        self.weight = weight
        self.out = ""
        self.errors = 0

    def object_path(self, sha256: bytes) -> Path:
        """Where a sealed file lies on this disk."""
        return Path(self.object_name(sha256))

    def object_name(self, sha256: bytes) -> str:
        """The same as text."""
        name = sha256.hex()
        return f"{self._objects_name}/{name[:2]}/{name}"

    def partial_path(self, sha256: bytes) -> Path:
        """Where a partial file lies on this disk."""
        return self.partial / sha256.hex()

    def score(self, sha256: bytes) -> float:
        """The disk with the highest score is an object's home (weighted rendezvous hashing)."""
        mixed = _mixed(int.from_bytes(sha256[:8], "big") ^ int(self.identity, 16))
        return self.weight / -math.log((mixed + 1) / (_WORD + 2))

    def fails(self, error: OSError) -> bool:
        """Whether after ``error`` the disk must be taken for broken; one bad place on it is not enough."""
        if error.errno in GONE_ERRNOS:
            return True
        if error.errno == errno.ENOENT:
            return not self.partial.is_dir()
        if error.errno != errno.EIO:
            return False
        self.errors += 1
        return self.errors > ERRORS_ALLOWED or not self._takes_writes()

    def _takes_writes(self) -> bool:
        probe = self.partial / PROBE_NAME
        try:
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, b"probe")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            probe.unlink()
        except OSError as error:
            return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
        return True


class Disks:
    """All disks of one cache, by number; iterating gives those in use."""

    def __init__(self, first: Disk) -> None:
        self._all = {first.number: first}
        self._used = [first]

    def add(self, disk: Disk) -> None:
        """One more disk."""
        self._all[disk.number] = disk
        self._used = [each for each in self._all.values() if not each.out]

    def take_out(self, disk: Disk, reason: str) -> None:
        """Use a disk no longer."""
        disk.out = reason
        self._used = [each for each in self._all.values() if not each.out]

    def __iter__(self) -> Iterator[Disk]:
        return iter(self._used)

    def __len__(self) -> int:
        return len(self._used)

    def out(self) -> list[Disk]:
        """The disks that were taken out, with the reason in each."""
        return [disk for disk in self._all.values() if disk.out]

    def get(self, number: int) -> Disk | None:
        """The disk with a number, when it is in use."""
        disk = self._all.get(number)
        return None if disk is None or disk.out else disk

    def home(self, sha256: bytes) -> Disk:
        """Where an object goes."""
        if len(self._used) == 1:
            return self._used[0]
        return max(self._used, key=lambda disk: disk.score(sha256))

    def holding(self, path: str) -> Disk | None:
        """The disk in use that ``path`` lies on."""
        fits = [disk for disk in self._used if path.startswith(f"{disk.root}/")]
        return max(fits, key=lambda disk: len(str(disk.root)), default=None)


def _mixed(word: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): every bit of the input moves every bit of the output."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
