"""What a job has to bring: files of releases, or those of an access list, as units that are fetched together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from catalog.manifest import CHUNK_BYTES, PACK_FILE_BYTES
from catalog.names import ReleaseRef
from mountd import inodes
from mountd.cache.columns import keys_and_blocks
from mountd.cache.guard import Keys, among, keys_of, keys_of_all
from mountd.cache.partial import BLOCK_BYTES
from mountd.cache.store import Cache
from mountd.releases import ReleaseTree
from mountd.tree import MountTree
from mountd.warm.access_list import Access, Ranges, from_lines
from mountd.warm.bringing import Unit
from mountd.warm.selection import Piece, Selection
from mountd.warm.standing import Standing, cached, sealed, standing
from openshelf.errors import OpenshelfError
from openshelf.units import format_size

GROUPED = 1024
"""So many small files of an access list at most may change places to come with others of their object."""


Contents = tuple[Keys, npt.NDArray[np.uint64]]
"""Keys of files and their sizes in bytes; not sorted, with repetitions."""


class Plan(Protocol):
    """What is to be brought."""

    remark: str
    """What people should know of it; may be empty."""

    def standing(self) -> Standing:
        """How much of it is complete in the cache now."""

    def units(self) -> Iterator[Unit]:
        """What was missing at the last :meth:`standing`, in the order in which it is wanted."""

    def contents(self) -> Contents:
        """What the cache is to hold."""

    def holds(self) -> bool:
        """Whether all releases that it was made from are still listed."""


class ReleasePlan:
    """Files of releases, in path order."""

    remark = ""

    def __init__(self, selections: Sequence[Selection], tree: MountTree, cache: Cache) -> None:
        self._selections = selections
        self._tree = tree
        self._cache = cache
        self._sealed = np.empty(0, np.uint64)

    def standing(self) -> Standing:
        """See :class:`Plan`."""
        self._sealed = sealed(self._cache)
        return sum((standing(each, self._sealed) for each in self._selections), Standing())

    def units(self) -> Iterator[Unit]:
        """See :class:`Plan`."""
        for selection in self._selections:
            for piece in selection.pieces():
                yield from _units(piece.only(~cached(piece, self._sealed)), selection.slot)

    def contents(self) -> Contents:
        """See :class:`Plan`."""
        keys, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for selection in self._selections:
            for piece in selection.pieces():
                keys.append(piece.keys())
                sizes.append(piece.sizes)
        return np.concatenate(keys), np.concatenate(sizes)

    def holds(self) -> bool:
        """See :class:`Plan`."""
        return all(self._tree.release(each.release) is not None for each in self._selections)


def _units(piece: Piece, slot: int) -> Iterator[Unit]:
    """The files of a piece, each content once: those of a pack together, others alone."""
    _, firsts = np.unique(piece.keys(), return_index=True)
    piece = piece.only(np.sort(firsts))
    base = inodes.file_id(slot, 0)
    packed = (piece.sizes <= PACK_FILE_BYTES) & (piece.stored != piece.sha256).any(axis=1)
    for row in piece.rows[~packed].tolist():
        yield Unit(base | row)
    small = piece.only(packed)
    if not len(small.rows):
        return
    _, first, group = np.unique(keys_of(small.stored), return_index=True, return_inverse=True)
    group = group.ravel()
    for number in np.argsort(first).tolist():
        members = np.flatnonzero(group == number)
        digests = small.sha256[members].tobytes()
        each = tuple(digests[at : at + 32] for at in range(0, len(digests), 32))
        yield Unit(base | int(small.rows[members[0]]), each)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file of an access list that is there."""

    nodeid: int
    size: int
    sha256: bytes
    stored: bytes
    chunks: Ranges | None

    @property
    def packed(self) -> bool:
        return self.size <= PACK_FILE_BYTES and self.stored != self.sha256

    def wanted_bytes(self) -> int:
        if self.chunks is None:
            return self.size
        return sum(max(min(stop * CHUNK_BYTES, self.size) - start * CHUNK_BYTES, 0) for start, stop in self.chunks)


class ListPlan:
    """The files of an access list, in its order; of some only the chunks that were read."""

    def __init__(self, path: Path, tree: MountTree, cache: Cache) -> None:
        self._cache = cache
        self._tree = tree
        self._sealed: frozenset[int] = frozenset()
        try:
            with path.open("rb") as lines:
                self._releases, self._wanted, absent = _find(from_lines(lines), tree)
        except OSError as error:
            raise OpenshelfError(
                "no_access_list", f"The access list is gone: {error.strerror}", "Replay it again."
            ) from error
        if not self._wanted:
            raise OpenshelfError(
                "nothing_listed",
                f"None of the {absent} files of the access list is in a release that this mount lists",
                "Were its releases withdrawn? Record it again with those that are used now.",
            )
        self.remark = f"{absent} files of the access list are in no listed release" if absent else ""

    def standing(self) -> Standing:
        """See :class:`Plan`."""
        here = among(keys_of_all(each.sha256 for each in self._wanted), sealed(self._cache))
        here |= np.array([each.size == 0 for each in self._wanted])
        self._sealed = frozenset(np.flatnonzero(here).tolist())
        sizes = [each.wanted_bytes() for each in self._wanted]
        return Standing(len(sizes), sum(sizes), len(self._sealed), sum(sizes[place] for place in self._sealed))

    def units(self) -> Iterator[Unit]:
        """See :class:`Plan`."""
        small: list[_Wanted] = []
        for place, each in enumerate(self._wanted):
            if place in self._sealed:
                continue
            if each.packed:
                small.append(each)
                if len(small) == GROUPED:
                    yield from _grouped(small)
                    small = []
                continue
            yield from _grouped(small)
            small = []
            yield Unit(each.nodeid, chunks=each.chunks)
        yield from _grouped(small)

    def contents(self) -> Contents:
        """See :class:`Plan`."""
        sizes = np.array([each.wanted_bytes() for each in self._wanted], np.uint64)
        return keys_of_all(each.sha256 for each in self._wanted), sizes

    def holds(self) -> bool:
        """See :class:`Plan`."""
        return all(self._tree.release(each) is not None for each in self._releases)


def _grouped(small: Sequence[_Wanted]) -> Iterator[Unit]:
    groups: dict[bytes, list[_Wanted]] = {}
    for each in small:
        groups.setdefault(each.stored, []).append(each)
    for group in groups.values():
        yield Unit(group[0].nodeid, tuple(each.sha256 for each in group))


def _find(accesses: Iterator[Access], tree: MountTree) -> tuple[list[ReleaseRef], list[_Wanted], int]:
    """The listed releases, the files that are there, each content once, and how many are not."""
    inside: dict[ReleaseRef, ReleaseTree | None] = {}
    found: dict[bytes, _Wanted] = {}
    absent = 0
    for access in accesses:
        if access.release not in inside:
            inside[access.release] = tree.release(access.release)
        wanted = _row_of(inside[access.release], access)
        if wanted is None:
            absent += 1
        elif wanted.sha256 not in found or wanted.chunks is None:
            found[wanted.sha256] = wanted
    return [release for release, found_in in inside.items() if found_in is not None], list(found.values()), absent


def _row_of(release: ReleaseTree | None, access: Access) -> _Wanted | None:
    if release is None:
        return None
    rows, path = release.rows(), access.path.encode()
    row = rows.lower_bound(path, 0, len(rows))
    if row == len(rows) or rows.path(row) != path:
        return None
    entry = rows.entry(row)
    return _Wanted(inodes.file_id(release.slot, row), entry.size, entry.sha256, entry.object, access.chunks)


def refuse_too_large(plan: Plan, cache: Cache) -> None:
    """OpenshelfError when the cache could not hold all of it beside what is pinned."""
    keys, sizes = plan.contents()
    blocks = -(-sizes.astype(np.int64) // BLOCK_BYTES) * BLOCK_BYTES
    pinned_keys, pinned_blocks = _pinned(cache)
    alone = _together(keys, blocks)
    if _together(np.concatenate([keys, pinned_keys]), np.concatenate([blocks, pinned_blocks])) <= cache.limit_bytes:
        return
    pinned = _together(pinned_keys, pinned_blocks)
    beside = f" beside the {format_size(pinned)} that are pinned" if pinned else ""
    raise OpenshelfError(
        "too_large",
        f"This needs {format_size(alone)}{beside}, and the cache holds {format_size(cache.limit_bytes)} at most",
        "Name fewer files with --files GLOB, or mount with a larger --cache-size.",
    )


def _together(keys: Keys, blocks: npt.NDArray[np.int64]) -> int:
    """Bytes on disk, each content once."""
    _, first = np.unique(keys, return_index=True)
    return int(blocks[first].sum())


def _pinned(cache: Cache) -> tuple[Keys, npt.NDArray[np.int64]]:
    """What pinned releases take."""
    keys, blocks = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for digest in set(cache.pins.all().values()):
        manifest = cache.layout.manifest_path(digest)
        if manifest.exists():
            found, taken = keys_and_blocks(manifest, digest)
            keys.append(found)
            blocks.append(taken.astype(np.int64))
    return np.concatenate(keys), np.concatenate(blocks)
