"""What a withdrawn release leaves in the cache: objects that no other listed release needs are removed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from mountd.cache.store import Cache
from mountd.rows import Rows

log = logging.getLogger("openshelf.mount.follow")


def remove_unneeded(cache: Cache, withdrawn: Rows, others: Iterable[Rows]) -> int:
    """Remove from the cache the files of ``withdrawn`` that none of ``others`` holds; how many were removed.

    Files that are open go on being read from their descriptors (policy *drain*).
    """
    cached = cache.known(_digests(withdrawn))
    if not cached:
        return 0
    left = np.frombuffer(b"".join(sorted(set(cached))), np.uint8).reshape(-1, 32)
    for rows in others:
        for column in rows.sha256_column():
            left = left[~np.isin(_keys(left), _keys(column))]
        if not len(left):
            return 0
    return cache.discard_all(bytes(digest) for digest in left)


def _digests(rows: Rows) -> Iterator[bytes]:
    for column in rows.sha256_column():
        for digest in column:
            yield digest.tobytes()


def _keys(digests: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Each row of 32 bytes as one value that compares byte by byte."""
    return np.ascontiguousarray(digests).view("S32").ravel()
