"""Which files of a release are meant, a batch of the mapped manifest at a time, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from catalog.manifest import BATCH_ROWS, Manifest
from catalog.names import ReleaseRef
from mountd.cache.guard import Keys, keys_of
from mountd.cache.layout import Layout
from mountd.interfaces import ROOT_ID
from mountd.tree import MountTree
from mountd.warm.globs import to_regex
from mountd.warm.references import Reference
from openshelf.errors import OpenshelfError


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of one manifest, up to 65,536, in order; all arrays have the same length.

    ``sha256`` and ``stored`` (the objects) have the shape (rows, 32).
    """

    rows: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.uint64]
    sha256: npt.NDArray[np.uint8]
    stored: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.uint64]

    def keys(self) -> Keys:
        """What tells contents apart when counting."""
        return keys_of(self.sha256)

    def only(self, kept: npt.NDArray[Any]) -> Piece:
        """The rows at these places, or where this is true."""
        return Piece(self.rows[kept], self.sizes[kept], self.sha256[kept], self.stored[kept], self.offsets[kept])


@dataclass(frozen=True, slots=True)
class Selection:
    """Files of one release: those below a path (empty: all), of which only those that a pattern names, if any."""

    release: ReleaseRef
    slot: int
    manifest: Manifest
    below: str = ""
    patterns: tuple[str, ...] = ()

    def pieces(self) -> Iterator[Piece]:
        """The files in path order; nothing is given for batches without any."""
        for number, batch in enumerate(self.manifest.batches()):
            chosen = self._chosen(batch)
            if chosen is None:
                yield _piece(batch, number)
            elif len(chosen):
                yield _piece(batch, number).only(chosen)

    def _chosen(self, batch: Any) -> npt.NDArray[np.int64] | None:
        """Which rows of the batch are meant; None: all."""
        if not self.below and not self.patterns:
            return None
        import pyarrow.compute as pc  # 40 ms that a worker need not spend before it serves

        paths = batch.column(0)
        wanted = np.ones(len(paths), bool)
        if self.below:
            starts = pc.starts_with(paths, pattern=self.below + "/")
            wanted = pc.or_(starts, pc.equal(paths, self.below)).to_numpy(zero_copy_only=False)
        if self.patterns and wanted.any():
            matched = np.zeros(len(paths), bool)
            for pattern in self.patterns:
                matched |= pc.match_substring_regex(paths, pattern=pattern).to_numpy(zero_copy_only=False)
            wanted &= matched
        return np.flatnonzero(wanted)


def select(tree: MountTree, layout: Layout, reference: Reference, globs: Sequence[str] = ()) -> Selection:
    """What is meant by a reference, as the mount is now. OpenshelfError when nothing of that name is listed."""
    release = resolve(tree, reference)
    inside = tree.release(release)
    if inside is None:
        raise OpenshelfError("no_release", f"{release} was just withdrawn", "Choose another release.")
    digest = inside.listed.manifest_digest
    manifest = Manifest.open_verified(layout.manifest_path(digest), bytes.fromhex(digest))
    return Selection(release, inside.slot, manifest, reference.below, tuple(map(to_regex, globs)))


def resolve(tree: MountTree, reference: Reference) -> ReleaseRef:
    """The listed release that is meant now. OpenshelfError when this mount lists none."""
    named = ReleaseRef(reference.collection, reference.name)
    if tree.release(named) is not None:
        return named
    version = _tagged(tree, named)
    if version is None:
        raise OpenshelfError(
            "no_release",
            f"This mount lists no release {named}",
            f"See which there are: ls DIR/{reference.collection}",
        )
    return version


def _tagged(tree: MountTree, tag: ReleaseRef) -> ReleaseRef | None:
    """The release that a tag names."""
    node = tree.node(ROOT_ID)
    for name in (*str(tag.collection).split("/"), tag.version):
        node = None if node is None else tree.lookup(node.nodeid, name.encode())
    target = None if node is None else tree.readlink(node.nodeid)
    found = None if target is None else ReleaseRef(tag.collection, target.decode())
    return found if found is not None and tree.release(found) is not None else None


def _piece(batch: Any, number: int) -> Piece:
    """A whole record batch; nothing is copied."""
    _, size, _, _, sha256, stored, offset, _ = (column.buffers() for column in batch.columns)
    count = batch.num_rows
    return Piece(
        np.arange(number * BATCH_ROWS, number * BATCH_ROWS + count, dtype=np.int64),
        np.frombuffer(size[1], np.uint64, count),
        np.frombuffer(sha256[1], np.uint8, count * 32).reshape(-1, 32),
        np.frombuffer(stored[1], np.uint8, count * 32).reshape(-1, 32),
        np.frombuffer(offset[1], np.uint64, count),
    )
