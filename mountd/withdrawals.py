"""What happens when a release goes: names first, then handles, then files; who still holds it, and that it was done.

Its names are gone when this begins. Then, in this order:

1. what shows it beside the tree (a materialised release) is undone;
2. under the policy *revoke* its node ids are forgotten and the kernel's pages of them dropped, so that every open file
   ends; under *drain* open files go on;
3. its objects are removed from the cache, except those that another listed release needs. Under *drain*, those that
   are read through the daemon stay until they are closed, so that the next worker can go on with them; under *revoke*
   every removed file is emptied, which ends what reads it past the daemon;
4. the catalog is told, with who still holds files; once more when the last of them is gone.

How far it has come is kept with the feed's state, so that a killed worker's successor goes on.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from catalog.names import ReleaseRef
from mountd import inodes
from mountd.cache.store import Cache
from mountd.feed_state import FeedState, Gone
from mountd.interfaces import MAX_NODEID, Kernel, NoKernel
from mountd.ledger.holders import Holder, device_of, holders
from mountd.ledger.jobs import Job
from mountd.ledger.records import utc
from mountd.release_files import ReleaseFiles
from mountd.releases import ListedRelease
from mountd.rows import Rows
from mountd.takedown import NOTHING, remove_unneeded
from mountd.tree import MountTree
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.follow")

LOOK_AGAIN_S = 2.0
LONGEST_PAUSE_S = 30.0
NAMED_HOLDERS = 256
ATTACHED_WITHIN_S = 10.0
"""How long a worker that takes over waits for the kernel side before it carries out what its predecessor began."""

Undo = Callable[[ReleaseRef], object]
"""Takes away what shows a release beside the tree; returns when it is gone."""


@dataclass(slots=True)
class Handling:
    """How this node deals with releases that go. ``confirm`` is given what the catalog is to be told, without the
    node's name; ``job_of`` says which job a process belongs to; ``undo`` are called in order."""

    policy: Literal["drain", "revoke"] = "drain"
    mountpoint: Path | None = None
    confirm: Callable[[Mapping[str, Any]], None] = lambda _: None
    job_of: Callable[[int], Job] = lambda _: Job("unknown")
    undo: tuple[Undo, ...] = ()
    kernel: Kernel = field(default_factory=NoKernel)
    attached: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Watched:
    """A release whose files somebody held when it was last looked at."""

    gone: Gone
    slots: frozenset[int]
    rows: Callable[[], Rows] | None
    loose: dict[int, int]


class Withdrawals:
    """Carries out what the feed's state says is gone. ``other_rows`` gives the rows of all releases still listed."""

    def __init__(
        self,
        cache: Cache,
        tree: MountTree,
        state: FeedState,
        files: ReleaseFiles,
        other_rows: Callable[[], Iterable[Rows]],
        handling: Handling,
    ) -> None:
        self._cache = cache
        self._tree = tree
        self._state = state
        self._files = files
        self._other_rows = other_rows
        self._handling = handling
        self._watched: dict[ReleaseRef, _Watched] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._took_over = False

    # -- life

    def resume(self) -> None:
        """Know the node ids of releases that went while files of them are open, as the worker before this one did."""
        self._took_over = True
        found = [self._present(gone) for gone in self._state.gone() if not self._is_revoked(gone)]
        self._tree.keep_hidden([listed for listed in found if listed is not None])

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(1.0)

    def keeps(self, manifest_digest: str) -> bool:
        """Whether the manifest of a release that went is still needed."""
        return any(gone.manifest_digest == manifest_digest for gone in self._state.gone())

    def are_waiting(self) -> bool:
        """Whether something is still to be carried out (not only waited for)."""
        return any(gone.ref not in self._watched for gone in self._state.gone())

    # -- carrying out

    def carry_out(self, shown: Mapping[ReleaseRef, ListedRelease]) -> None:
        """Do what is to be done about every release that went; ``shown`` are those that were listed a moment ago."""
        waiting = [gone for gone in self._state.gone() if gone.ref not in self._watched]
        if waiting and self._took_over:
            self._handling.attached.wait(ATTACHED_WITHIN_S)
        for gone in waiting:
            listed = shown.get(gone.ref)
            if listed is None or listed.manifest_digest != gone.manifest_digest:
                listed = self._present(gone)
            try:
                self._carry_out(gone, listed)
            except (OSError, sqlite3.Error, OpenshelfError) as error:
                log.error("The withdrawal of %s could not be carried out yet: %s.", gone.ref, error)

    def _carry_out(self, gone: Gone, listed: ListedRelease | None) -> None:
        if listed is None:
            self._tell(replace(gone, done=gone.done or utc(time.time())), [], 0)
            self._state.forget_gone(gone.ref)
            return
        slots = self._tree.slots(listed)
        loose = self._loose(listed, slots)
        for undo in self._handling.undo:
            undo(gone.ref)
        if self._is_revoked(gone):
            self._tree.forget(slots)
            self._handling.kernel.drop_pages(self._open_ids(slots))
        gone = self._remove(gone, listed, slots)
        self._state.put_gone(gone)
        watched = _Watched(gone, slots, listed.open_rows, loose)
        found = self._holders(watched)
        open_files = self._count_open(watched, found)
        self._tell(gone, found, open_files)
        if open_files:
            self._watch(watched)
        else:
            self._finish(watched)

    def _remove(self, gone: Gone, listed: ListedRelease, slots: frozenset[int]) -> Gone:
        """Take the release's objects out of the cache."""
        removed = NOTHING
        if not self._state.uses(gone.manifest_digest):
            revoked = self._is_revoked(gone)
            keep = frozenset() if revoked else self._served(listed, slots)
            rows = listed.open_rows()
            removed = remove_unneeded(self._cache, rows, self._other_rows(), keep=keep, cut=revoked)
        why = "may not be read by this node any more" if gone.policy == "lost" else "was withdrawn"
        log.info("%s %s; %d cached files were removed.", gone.ref, why, removed.objects)
        return replace(
            gone,
            done=gone.done or utc(time.time()),
            objects=gone.objects + removed.objects,
            size_bytes=gone.size_bytes + removed.size_bytes,
        )

    def _finish(self, watched: _Watched) -> None:
        """Nobody holds it: remove the rest, the manifest last, since it is what tells which files are the rest."""
        gone = watched.gone
        if not self._state.uses(gone.manifest_digest):
            if watched.rows is not None:
                remove_unneeded(self._cache, watched.rows(), self._other_rows(), cut=self._is_revoked(gone))
            self._files.drop(gone.ref)
            self._cache.layout.manifest_path(gone.manifest_digest).unlink(missing_ok=True)
        self._state.forget_gone(gone.ref)

    def _tell(self, gone: Gone, found: list[Holder], open_files: int) -> None:
        if gone.policy == "lost":
            return  # it is not withdrawn
        self._handling.confirm(
            {
                "release": str(gone.ref),
                "policy": "revoke" if self._is_revoked(gone) else "drain",
                "done": gone.done,
                "objects_removed": gone.objects,
                "bytes_removed": gone.size_bytes,
                "open_files": open_files,
                "holders": [
                    {
                        "pid": holder.pid,
                        "uid": holder.uid,
                        "job": self._handling.job_of(holder.pid).to_json(),
                        "files": len(holder.files),
                    }
                    for holder in found[:NAMED_HOLDERS]
                ],
            }
        )

    def _is_revoked(self, gone: Gone) -> bool:
        return "revoke" in (gone.policy, self._handling.policy)

    def _present(self, gone: Gone) -> ListedRelease | None:
        return self._files.present(gone.ref, gone.manifest_digest) if gone.manifest_digest else None

    # -- who holds it

    def _open_ids(self, slots: frozenset[int]) -> list[int]:
        """The node ids of the release's files that are open, as the kernel has them."""
        return [nodeid for nodeid in self._handling.kernel.open_files() if _is_file_of(nodeid % MAX_NODEID, slots)]

    def _served(self, listed: ListedRelease, slots: frozenset[int]) -> frozenset[bytes]:
        """The digests of the release's files that are being read through the daemon."""
        rows = listed.open_rows()
        found = set()
        for nodeid, passthrough in self._handling.kernel.open_files().items():
            own = nodeid % MAX_NODEID
            if not passthrough and _is_file_of(own, slots):
                found.add(rows.entry(inodes.split(own)[1] & ~inodes.FILE_BIT).sha256)
        return frozenset(found)

    def _loose(self, listed: ListedRelease, slots: frozenset[int]) -> dict[int, int]:
        """Inode numbers of the release's cached files, by which those of a materialised release are known → node ids.

        Taken before anything is removed; empty where nothing but the tree shows releases.
        """
        found: dict[int, int] = {}
        if self._handling.undo and slots:
            slot, row = min(slots), 0
            for column in listed.open_rows().sha256_column():
                for digest in column:
                    path = self._cache.object_path(digest.tobytes())
                    if path is not None:
                        with contextlib.suppress(FileNotFoundError):
                            found[path.stat().st_ino] = inodes.file_id(slot, row)
                    row += 1
        return found

    def _holders(self, watched: _Watched) -> list[Holder]:
        if self._handling.mountpoint is None:
            return []
        device = device_of(self._handling.mountpoint)
        if device is None:
            return []
        return holders(device, lambda inode: _is_file_of(inode, watched.slots), watched.loose)

    def _count_open(self, watched: _Watched, found: list[Holder]) -> int:
        """How many files are open: by processes that can be seen, and by those that only the kernel knows of."""
        seen = {inode for holder in found for inode in holder.files}
        return len(seen | {nodeid % MAX_NODEID for nodeid in self._open_ids(watched.slots)})

    def _watch(self, watched: _Watched) -> None:
        with self._lock:
            self._watched[watched.gone.ref] = watched
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._look, name="holders", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        """Look again and again until nobody holds anything."""
        pause_s = LOOK_AGAIN_S
        while not self._stop.wait(pause_s):
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
            for watched in list(self._watched.values()):
                try:
                    found = self._holders(watched)
                    if self._count_open(watched, found):
                        continue
                    self._tell(watched.gone, [], 0)
                    self._finish(watched)
                except (OSError, sqlite3.Error, OpenshelfError) as error:
                    log.error("The withdrawal of %s could not be completed yet: %s.", watched.gone.ref, error)
                    continue
                log.info("Nobody holds files of %s any more.", watched.gone.ref)
                with self._lock:
                    del self._watched[watched.gone.ref]
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return


def _is_file_of(nodeid: int, slots: frozenset[int]) -> bool:
    """Whether a node id is one of the files of the release that has the slots."""
    own, place = inodes.split(nodeid)
    return own in slots and bool(place & inodes.FILE_BIT) and not place & inodes.MADE_BIT
