"""What a withdrawn release leaves in the cache: objects that no other listed release needs are removed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mountd.cache.store import Cache
from mountd.rows import Rows

log = logging.getLogger("openshelf.mount.follow")


@dataclass(frozen=True, slots=True)
class Removed:
    """Files removed from the cache, whole or partial, and their sizes in bytes."""

    objects: int
    size_bytes: int


NOTHING = Removed(0, 0)


def remove_unneeded(
    cache: Cache,
    withdrawn: Rows,
    others: Iterable[Rows],
    *,
    keep: frozenset[bytes] = frozenset(),
    cut: bool = False,
) -> Removed:
    """Remove from the cache the files of ``withdrawn`` that none of ``others`` holds, except those in ``keep``.

    Files that are open go on being read from their descriptors, unless ``cut``: then they are emptied, so that reads
    find their end and mappings fault, whoever has them open and through whatever mount.
    """
    cached = set(cache.known(_digests(withdrawn))) - keep
    if not cached:
        return NOTHING
    left = np.frombuffer(b"".join(sorted(cached)), np.uint8).reshape(-1, 32)
    for rows in others:
        for column in rows.sha256_column():
            left = left[~np.isin(_keys(left), _keys(column))]
        if not len(left):
            return NOTHING
    doomed = {bytes(digest) for digest in left}
    sizes = {digest: withdrawn.entry(row).size for row, digest in enumerate(_digests(withdrawn)) if digest in doomed}
    removed = sum(_cut(cache, *each) for each in sizes.items()) if cut else cache.discard_all(doomed)
    return Removed(removed, sum(sizes.values()))


def _cut(cache: Cache, sha256: bytes, size: int) -> int:
    """Remove one file and empty it for those who have it open; how many were removed."""
    descriptor = cache.open_sealed(sha256, size) if cache.is_sealed(sha256) else None
    writable = None
    try:
        if descriptor is not None:
            os.fchmod(descriptor, 0o600)  # else only root could open it for writing
            writable = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_CLOEXEC)
        # Its name goes first: nobody finds an empty file under the name of a whole one.
        removed = cache.discard_all([sha256])
        if writable is not None:
            os.ftruncate(writable, 0)
        return removed
    finally:
        for each in (descriptor, writable):
            if each is not None:
                os.close(each)


def _digests(rows: Rows) -> Iterator[bytes]:
    for column in rows.sha256_column():
        for digest in column:
            yield digest.tobytes()


def _keys(digests: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Each row of 32 bytes as one value that compares byte by byte."""
    return np.ascontiguousarray(digests).view("S32").ravel()
