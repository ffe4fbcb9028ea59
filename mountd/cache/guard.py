"""What eviction must leave: sets of digests by owner, kept as sorted columns, so that ten million cost 80 MB each.

A digest stands by its first 8 bytes. Two that share them are kept together: that errs on the safe side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Digests = npt.NDArray[np.uint8]


def keys_of(digests: Digests) -> Keys:
    """The keys of digests in an array of shape (n, 32)."""
    return np.ascontiguousarray(digests[:, :8]).view(">u8").ravel().astype(np.uint64)


def keys_of_all(digests: Iterable[bytes]) -> Keys:
    """The keys of digests given one by one."""
    return np.frombuffer(b"".join(digest[:8] for digest in digests), ">u8").astype(np.uint64)


def among(keys: Keys, held: Keys) -> npt.NDArray[np.bool_]:
    """Which of ``keys`` are in ``held``, which is sorted."""
    if not len(held):
        return np.zeros(len(keys), np.bool_)
    found: npt.NDArray[np.bool_] = held[np.minimum(np.searchsorted(held, keys), len(held) - 1)] == keys
    return found


class Guard:
    """Protected sets by owner. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sets: dict[str, Keys] = {}

    def protect(self, owner: str, digests: Iterable[bytes] | Sequence[Digests]) -> None:
        """Keep these digests until :meth:`unprotect`; replaces what the owner had."""
        given = list(digests)
        arrays = [keys_of(each) for each in given if isinstance(each, np.ndarray)]
        single = [each for each in given if isinstance(each, bytes)]
        keys = np.unique(np.concatenate([*arrays, keys_of_all(single)]))
        with self._lock:
            self._sets = {**self._sets, owner: keys}

    def unprotect(self, owner: str) -> None:
        """Forget an owner's set, if there is one."""
        with self._lock:
            self._sets = {name: keys for name, keys in self._sets.items() if name != owner}

    def owners(self) -> list[str]:
        """Whose sets there are."""
        return list(self._sets)

    def covers(self, keys: Keys, without: Iterable[str] = ()) -> npt.NDArray[np.bool_]:
        """Which of ``keys`` anybody protects, the owners ``without`` left out."""
        left_out = set(without)
        found = np.zeros(len(keys), np.bool_)
        for owner, held in self._sets.items():
            if owner not in left_out:
                found |= among(keys, held)
        return found
