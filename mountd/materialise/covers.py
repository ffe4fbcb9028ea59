"""Putting the tree of a release over its folder in the mount, and taking it away again, in every mount namespace."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mountd.cache.layout import Layout
from mountd.interfaces import ROOT_ID, Invalidation
from mountd.materialise.binds import Mounter, binds_below
from mountd.materialise.links import Stop, Unsuitable
from mountd.materialise.opens import OpenWatch
from mountd.materialise.trees import Marker, Trees, tree_name
from mountd.releases import RECORD_NAMES, ReleaseTree
from mountd.tree import MountTree

log = logging.getLogger("openshelf.mount.materialise")

_GONE_WITHIN_S = 2.0
_LOOK_EVERY_S = 0.005
_ON_THE_WAY_S = 0.25
"""An open that was on its way through a cover when it was taken away still finds its file for this long."""


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """A release whose tree is mounted over it."""

    release: ReleaseTree
    name: str
    marker: Marker
    since: float
    """Monotonic clock."""


class Covers:
    """The covers of one mount. For one thread. ``watch`` is None where opens cannot be seen."""

    def __init__(self, mountpoint: Path, layout: Layout, tree: MountTree, watch: OpenWatch | None) -> None:
        self.mountpoint = mountpoint
        self.trees = Trees(layout)
        self.mounter = Mounter(mountpoint, self.trees.root)
        self._tree = tree
        self._watch = watch

    def target(self, release: ReleaseTree) -> Path:
        """The release's folder in the mount."""
        ref = release.listed.ref
        return self.mountpoint / ref.collection.folder / ref.collection.namespace / ref.collection.name / ref.version

    def adopt(self, releases: Iterable[ReleaseTree], most: int) -> list[Cover]:
        """Take over what an earlier worker or mount has left: whole trees of ``releases``, ``most`` at most, are
        mounted where they are not any more; all else goes."""
        listed = {tree_name(release.listed): release for release in releases}
        mounted = {(bind.tree, bind.target) for bind in binds_below(self.mountpoint, self.trees.root)}
        covers: dict[str, Cover] = {}
        for name, marker in self.trees.whole().items():
            release = listed.get(name)
            if release is None or len(covers) >= most or not self._records_are(release, name):
                continue
            try:
                self._show(release, name, marker, mounted=(name, self.target(release)) in mounted)
            except (OSError, Unsuitable) as error:
                log.warning("The tree of %s is not used: %s.", release.listed.ref, error)
                continue
            covers[name] = Cover(release, name, marker, time.monotonic())
        for name, target in mounted:
            if name not in covers or target != self.target(covers[name].release):
                self._drop(target)
        for name in self.trees.whole():
            if name not in covers:
                self.trees.remove(name)
        return list(covers.values())

    def make(self, release: ReleaseTree, most_inodes: int, stop: Stop) -> Cover:
        """Build the tree of a complete release and mount it. Raises as :meth:`Trees.build`, and Unsuitable."""
        name = tree_name(release.listed)
        marker = self.trees.build(release.listed, release.rows(), most_inodes, stop)
        try:
            self._show(release, name, marker, mounted=False)
        except BaseException:
            self.trees.remove(name)
            raise
        return Cover(release, name, marker, time.monotonic())

    def remove(self, cover: Cover, *, listed: bool) -> None:
        """Take a cover away in every mount namespace, then its tree. Open files go on. ``listed``: its names stay."""
        release = cover.release
        target = self.target(release)
        self._uncover(target, Invalidation(release.parent_id, release.name))
        if self._watch is not None:
            self._watch.forget(release)
        if listed:
            time.sleep(_ON_THE_WAY_S)
        self.trees.remove(cover.name)
        if listed:
            self.mounter.look(target)  # a folder that a process works in is found at its name again

    def _show(self, release: ReleaseTree, name: str, marker: Marker, *, mounted: bool) -> None:
        if self._watch is not None:
            self._watch.mark(release, self.trees.path(name), marker.folders)
        if mounted:
            return
        error = self.mounter.bind(self.trees.path(name), self.target(release))
        if error:
            if self._watch is not None:
                self._watch.forget(release)
            raise Unsuitable(f"its tree cannot be mounted ({error})")

    def _records_are(self, release: ReleaseTree, name: str) -> bool:
        """Whether a tree still has what is made anew for each: its records."""
        listed, root = release.listed, self.trees.path(name)
        try:
            found = [(root / each.decode()).read_bytes() for each in RECORD_NAMES]
        except OSError:
            return False
        return found == [listed.record, listed.signature]

    def _drop(self, target: Path) -> None:
        """Take away what is mounted on ``target``, whose release may have gone with all the folders above it."""
        parent = self._tree.node(ROOT_ID)
        for part in target.relative_to(self.mountpoint).parts:
            assert parent is not None
            child = self._tree.lookup(parent.nodeid, part.encode())
            if child is None or part == target.name:
                self._uncover(target, Invalidation(parent.nodeid, part.encode()))
                return
            parent = child

    def _uncover(self, target: Path, name: Invalidation) -> None:
        self._tree.look_again(name)
        deadline = time.monotonic() + _GONE_WITHIN_S
        while self._is_covered(target):
            if time.monotonic() > deadline:
                error = self.mounter.unbind(target)
                log.warning("%s was unmounted here only; other mount namespaces may hold it (%s).", target, error)
                return
            time.sleep(_LOOK_EVERY_S)

    def _is_covered(self, target: Path) -> bool:
        return any(bind.target == target for bind in binds_below(self.mountpoint, self.trees.root))
