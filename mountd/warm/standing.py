"""How much of what is meant is in the cache, counted in columns: a million files in about a second."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mountd.cache.columns import sealed_keys
from mountd.cache.guard import Keys, among
from mountd.cache.store import Cache
from mountd.warm.selection import Piece, Selection
from openshelf.errors import OpenshelfError


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


def sealed(cache: Cache) -> Keys:
    """What is complete in the cache now. OpenshelfError when its index cannot be read."""
    try:
        return sealed_keys(cache.index)
    except sqlite3.Error as error:
        raise OpenshelfError(
            "cache_index", f"The cache's index cannot be read: {error}", "Check the cache's disk."
        ) from error


def cached(piece: Piece, here: Keys) -> npt.NDArray[np.bool_]:
    """Which files of the piece are complete in the cache, which holds ``here``; empty files always are."""
    present: npt.NDArray[np.bool_] = among(piece.keys(), here) | (piece.sizes == 0)
    return present


def standing(selection: Selection, here: Keys) -> Standing:
    """How a selection stands, when ``here`` is complete in the cache."""
    total = Standing()
    for piece in selection.pieces():
        present = cached(piece, here)
        total += Standing(len(piece.rows), int(piece.sizes.sum()), int(present.sum()), int(piece.sizes[present].sum()))
    return total
