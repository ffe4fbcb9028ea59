"""Which releases are materialised: made when they are complete, kept over restarts, undone when they must go.

One thread does everything. It is woken when names change, when a release is used for the first time and when the cache
needs room, and looks by itself whether releases have become complete: of each it knows one file that was missing, so
that looking costs one stat(2) a release.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from catalog.names import ReleaseRef
from mountd.cache.store import Cache
from mountd.interfaces import Invalidation, Opened
from mountd.materialise.binds import MounterGone
from mountd.materialise.covers import Cover, Covers
from mountd.materialise.fanotify import Fanotify
from mountd.materialise.ground import has_passthrough, why_not_materialised
from mountd.materialise.links import Incomplete, Stopped, Unsuitable, first_missing, holds
from mountd.materialise.opens import OpenWatch
from mountd.materialise.trees import Trees, tree_name
from mountd.options import Options
from mountd.releases import ReleaseTree
from mountd.tree import MountTree

log = logging.getLogger("openshelf.mount.materialise")

MAX_RELEASES = 256
UNUSED_TOO = 1000
"""While no more releases than this are listed, unused ones are looked at too: they may be complete already."""
TICK_S = 1.0
INODES_SHARE = 0.1
"""The share of the cache's files, or else of the disk's, that the trees' own inodes (folders, empty files) may be."""
IDLE_S = 600.0
"""A release in which a file was opened within this time is not undone to make room."""
REST_S = 30.0
"""A release that was undone while it is listed, or that the disk refused, is left alone for this long."""
UNDONE_WITHIN_S = 60.0

Tier = Literal["materialised", "passthrough", "served"]


@dataclass(slots=True, eq=False)
class _Release:
    """What is known of a listed release. ``missing``: a row whose file is not in the cache, unless that changed."""

    tree: ReleaseTree
    missing: int = 0
    rest_until: float = 0.0
    unsuitable: str = ""
    cover: Cover | None = None


@dataclass(slots=True)
class _Order:
    """A release that is to be undone on somebody's word."""

    ref: ReleaseRef
    done: threading.Event = field(default_factory=threading.Event)


class Materialiser:
    """The materialised releases of one mount; ``opened`` is told of every open in them."""

    def __init__(
        self,
        options: Options,
        mountpoint: Path,
        cache: Cache,
        tree: MountTree,
        opened: Callable[[Opened], None],
    ) -> None:
        self._options = options
        self._mountpoint = mountpoint
        self._cache = cache
        self._tree = tree
        self._tell = opened
        self._most_inodes = _inode_budget(options, cache.layout.root)
        self._plain: Tier = "passthrough" if has_passthrough(cache) else "served"
        self._known: dict[ReleaseRef, _Release] = {}
        self._used: deque[ReleaseRef] = deque()
        self._orders: deque[_Order] = deque()
        self._damaged: deque[bytes] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._names_changed = True
        self._room_wanted = False
        self._watch: OpenWatch | None = None
        self._covers: Covers | None = None
        self._thread = threading.Thread(target=self._run, name="materialise", daemon=True)
        self.reason = "the mount is not served yet"
        """Why nothing is materialised, for people; empty when the tier is in use."""

    # -- for others, from any thread

    def start(self) -> None:
        """Begin, when the tree shows what is listed; waits for nothing."""
        self.reason = why_not_materialised(self._options, self._mountpoint, self._cache)
        if self.reason:
            log.info("Releases are not materialised: %s.", self.reason)
            self._remove_all()
            return
        self._watch = self._open_watch()
        self._covers = Covers(self._mountpoint, self._cache.layout, self._tree, self._watch)
        self._tree.subscribe(self._name_changed)
        self._thread.start()

    def note_open(self, opened: Opened) -> None:
        """An open of any tier: its release is looked at from now on."""
        ref = opened.node.release
        if ref is not None and ref not in self._known:
            self._used.append(ref)

    def want_room(self) -> None:
        """The cache is full: undo the release that was used least recently, soon."""
        self._room_wanted = True
        self._wake.set()

    def note_damage(self, sha256: bytes) -> None:
        """The bytes of a cached file are not right any more: what has it as a link is undone, soon."""
        self._damaged.append(sha256)
        self._wake.set()

    def undo(self, ref: ReleaseRef) -> None:
        """Undo a release, and leave it alone for a while; returns when that is done."""
        if self.tier_of(ref) == "materialised":
            order = _Order(ref)
            self._orders.append(order)
            self._wake.set()
            order.done.wait(UNDONE_WITHIN_S)

    def tier_of(self, ref: ReleaseRef) -> Tier:
        """What an open of a complete file of a release gets."""
        known = self._known.get(ref)
        return "materialised" if known is not None and known.cover is not None else self._plain

    def why_not(self, ref: ReleaseRef) -> str:
        """Why a complete release is not materialised, for people; empty when it is, or is just not looked at yet."""
        known = self._known.get(ref)
        return self.reason or ("" if known is None else known.unsuitable)

    def figures(self) -> Mapping[str, int]:
        """Counters for the status."""
        watch = self._watch
        return {
            "releases_materialised": len(self._covered()),
            "opens_materialised": 0 if watch is None else watch.count,
            "opens_lost": 0 if watch is None else watch.lost,
        }

    def close(self) -> None:
        """Stop; what is mounted stays for the next worker."""
        self._closing = True
        self._wake.set()
        if self._covers is not None:
            self._covers.mounter.close()
        if self._thread.is_alive():
            self._thread.join()
        if self._watch is not None:
            self._watch.close()

    # -- the thread

    def _run(self) -> None:
        covers = self._covers
        assert covers is not None
        try:
            error = covers.mounter.wait()
            if error:
                self.reason = f"the mount does not answer ({error})"
                return
            if self._watch is not None:
                self._watch.start()
            self._adopt(covers)
        except (MounterGone, OSError) as problem:
            if not self._closing:
                self.reason = f"what an earlier mount left could not be taken over ({problem})"
                log.error("Releases are not materialised: %s.", self.reason)
            return
        while not self._closing:
            try:
                self._step(covers)
            except MounterGone as problem:
                if not self._closing:
                    log.warning("The process that mounts has ended (%s); it is started again.", problem)
            except Exception:  # the thread must outlive what nobody foresaw: withdrawn trees would stay
                log.exception("materialising failed")
            self._wake.wait(TICK_S)
            self._wake.clear()

    def _adopt(self, covers: Covers) -> None:
        trees = [tree for ref in self._listed() if (tree := self._tree.release(ref)) is not None]
        for cover in covers.adopt(trees, MAX_RELEASES):
            self._protect(cover.release)
            self._known[cover.release.listed.ref] = _Release(cover.release, cover=cover)

    def _step(self, covers: Covers) -> None:
        self._drop_unlisted(covers)
        while self._orders:
            order = self._orders.popleft()
            known = self._known.get(order.ref)
            if known is not None:
                self._undo(covers, known)
            order.done.set()
        while self._damaged:
            self._undo_damaged(covers, self._damaged.popleft())
        if self._room_wanted:
            self._room_wanted = False
            self._make_room(covers)
        self._look_at_new()
        for known in list(self._known.values()):
            if self._closing or self._names_changed or self._orders or self._damaged or self._room_wanted:
                return
            if known.cover is None and not known.unsuitable and time.monotonic() >= known.rest_until:
                self._look(covers, known)

    def _drop_unlisted(self, covers: Covers) -> None:
        if not self._names_changed:
            return
        self._names_changed = False
        for ref, known in list(self._known.items()):
            if self._tree.release(ref) is not known.tree:
                self._undo(covers, known)
                del self._known[ref]
        if self._tree.releases() <= UNUSED_TOO:
            self._used.extend(self._listed())

    def _look_at_new(self) -> None:
        while self._used:
            ref = self._used.popleft()
            tree = self._tree.release(ref)
            if tree is not None and ref not in self._known:
                self._known[ref] = _Release(tree)

    def _look(self, covers: Covers, known: _Release) -> None:
        """Materialise a release if it is complete."""
        ref = known.tree.listed.ref
        most_inodes = self._most_inodes - sum(cover.marker.inodes for cover in self._covered())
        if len(self._covered()) >= MAX_RELEASES:
            return
        try:
            if not self._is_complete(known):
                return
            started = time.monotonic()
            self._protect(known.tree)
            try:
                known.cover = covers.make(known.tree, most_inodes, lambda: self._must_stop(known))
            finally:
                if known.cover is None:
                    self._cache.unprotect(tree_name(known.tree.listed))
            log.info("%s is materialised (%.1f s).", ref, time.monotonic() - started)
        except Incomplete as found:
            known.missing = found.row
        except Stopped:
            return
        except Unsuitable as reason:
            known.unsuitable = str(reason)
            log.info("%s is not materialised: %s.", ref, reason)
        except OSError as error:
            known.rest_until = time.monotonic() + REST_S
            log.warning("%s is not materialised now: %s.", ref, error.strerror)

    def _is_complete(self, known: _Release) -> bool:
        objects, rows = self._cache.layout.objects, known.tree.rows()
        missing = first_missing(objects, rows, known.missing, lambda: self._must_stop(known))
        if missing is not None:
            known.missing = missing
        return missing is None

    def _must_stop(self, known: _Release) -> bool:
        return self._closing or self._tree.release(known.tree.listed.ref) is not known.tree

    def _undo(self, covers: Covers, known: _Release) -> None:
        if known.cover is not None:
            ref = known.tree.listed.ref
            covers.remove(known.cover, listed=self._tree.release(ref) is known.tree)
            self._cache.unprotect(known.cover.name)
            log.info("%s is not materialised any more.", ref)
        known.cover, known.missing = None, 0
        known.rest_until = time.monotonic() + REST_S

    def _undo_damaged(self, covers: Covers, sha256: bytes) -> None:
        for known in self._known.values():
            if known.cover is not None and holds(known.tree.rows(), sha256):
                log.warning("%s has the damaged file %s.", known.tree.listed.ref, sha256.hex())
                self._undo(covers, known)

    def _make_room(self, covers: Covers) -> None:
        """Undo the release that was used least recently, unless all are pinned or in use."""
        used = {} if self._watch is None else self._watch.last_open
        pinned = self._cache.pins.all()
        last = {
            known: max(known.cover.since, used.get(known.tree, 0.0))
            for ref, known in self._known.items()
            if known.cover is not None and str(ref) not in pinned
        }
        idle = min(last, key=lambda known: last[known], default=None)
        if idle is not None and time.monotonic() - last[idle] > IDLE_S:
            self._undo(covers, idle)

    # -- small things

    def _open_watch(self) -> OpenWatch | None:
        root = Trees(self._cache.layout).root
        root.mkdir(mode=0o700, exist_ok=True)
        try:
            fanotify = Fanotify()
            fanotify.mark(bytes(root))  # not every file system can be watched
            return OpenWatch(fanotify, self._tell)
        except OSError as error:
            log.warning("Opens in materialised releases are not seen: fanotify is missing (%s).", error.strerror)
            return None

    def _protect(self, tree: ReleaseTree) -> None:
        self._cache.protect(tree_name(tree.listed), tree.rows().sha256_column())

    def _covered(self) -> list[Cover]:
        return [known.cover for known in list(self._known.values()) if known.cover is not None]

    def _listed(self) -> list[ReleaseRef]:
        return [listed.ref for listed in self._tree.listed()]

    def _name_changed(self, _: Invalidation) -> None:
        self._names_changed = True
        self._wake.set()

    def _remove_all(self) -> None:
        """Trees of an earlier mount that had the tier would keep files that the cache thinks it can remove."""
        trees = Trees(self._cache.layout)
        for name in trees.whole():
            trees.remove(name)


def _inode_budget(options: Options, cache: Path) -> int:
    files = options.cache_files or os.statvfs(cache).f_files  # 0 where a file system makes inodes as it needs them
    return int(files * INODES_SHARE) or sys.maxsize
