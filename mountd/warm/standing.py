"""How much of what is meant is in the cache, counted in columns: a million files in about a second."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mountd.cache.layout import Layout
from mountd.cache.partial import disk_bytes
from mountd.warm.selection import Piece, Selection

Keys = npt.NDArray[np.uint64]
"""Sorted first 8 bytes of digests."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Files and bytes of a selection, and of those what is complete in the cache."""

    files: int = 0
    size_bytes: int = 0
    cached_files: int = 0
    cached_bytes: int = 0

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.cached_files == self.files

    def __add__(self, other: Standing) -> Standing:
        return Standing(
            self.files + other.files,
            self.size_bytes + other.size_bytes,
            self.cached_files + other.cached_files,
            self.cached_bytes + other.cached_bytes,
        )


def sealed_keys(layout: Layout) -> Keys:
    """What is complete in the cache now, by a connection of its own so that no reader waits. OSError."""
    try:
        with closing(sqlite3.connect(f"file:{layout.index}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT substr(sha256, 1, 8) FROM objects WHERE sealed = 1")
            # In order of the digest's bytes, which is not that of the numbers.
            return np.sort(np.frombuffer(b"".join([key for (key,) in found]), np.uint64))
    except sqlite3.Error as error:
        raise OSError(f"the cache's index cannot be read: {error}") from error


def cached(piece: Piece, sealed: Keys) -> npt.NDArray[np.bool_]:
    """Which files of the piece are complete in the cache; empty files always are."""
    keys = piece.keys()
    present: npt.NDArray[np.bool_] = piece.sizes == 0
    if len(sealed):
        places = np.minimum(np.searchsorted(sealed, keys), len(sealed) - 1)
        present |= sealed[places] == keys
    return present


def standing(selection: Selection, sealed: Keys) -> Standing:
    """How a selection stands."""
    total = Standing()
    for piece in selection.pieces():
        present = cached(piece, sealed)
        total += Standing(len(piece.rows), int(piece.sizes.sum()), int(present.sum()), int(piece.sizes[present].sum()))
    return total


def bytes_on_disk(selections: Iterable[Selection]) -> int:
    """What the cache needs to hold all of it: each content once, in whole blocks."""
    keys, sizes = [], []
    for selection in selections:
        for piece in selection.pieces():
            keys.append(piece.keys())
            sizes.append(piece.sizes)
    if not keys:
        return 0
    _, first = np.unique(np.concatenate(keys), return_index=True)
    blocks = disk_bytes(1)
    return int((-(-np.concatenate(sizes)[first].astype(np.int64) // blocks) * blocks).sum())
