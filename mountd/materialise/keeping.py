"""Files of trees stay in the cache: removing only the cache's names of them would free no space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mountd.cache.store import Cache


class Keeping:
    """What trees need of a cache, by owner. For one thread."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._kept: dict[str, Sequence[npt.NDArray[np.uint8]]] = {}

    def protect(self, owner: str, digests: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Keep files, given as arrays of shape (files, 32), from eviction until :meth:`unprotect`."""
        self._kept[owner] = digests
        for column in digests:
            for digest in column:
                self._cache.hold(digest.tobytes())

    def unprotect(self, owner: str) -> None:
        """Let the files of ``owner`` go."""
        for column in self._kept.pop(owner):
            for digest in column:
                self._cache.unhold(digest.tobytes())
