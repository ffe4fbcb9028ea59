"""Following the catalog's signed feed: what the mount shows, kept up to date, and what it refuses to believe.

Every head, event and snapshot is verified by :class:`catalog.trust.Trust`; what is unsigned, altered or older than
what was seen is refused, said once in the log, and the mount goes on showing what it has.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from catalog.client.errors import CatalogUnreachable, Unauthorised
from catalog.manifest import Manifest
from catalog.names import Collection, ReleaseRef
from catalog.signing import SignatureError, Signed
from catalog.trust import FeedHole, KeySource, Trust, UntrustedKey
from mountd.cache.store import Cache
from mountd.feed_state import FeedState
from mountd.groups import Groups
from mountd.release_files import ReleaseFiles, ReleaseSource
from mountd.releases import ListedRelease
from mountd.rows import Rows
from mountd.takedown import remove_unneeded
from mountd.tree import CollectionState, MountTree
from mountd.withdrawals import Handling, Withdrawals
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.follow")

WAIT_S = 20.0
"""How long the catalog may hold the answer to a question for events."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
PARALLEL_RELEASES = 4
_ACCESS = ("access", "published")
"""Events that say, or should say, by which rule a collection is read (those of an older catalog do not)."""


class FeedSource(KeySource, ReleaseSource, Protocol):
    """What is needed of a client: :class:`catalog.client.Client`."""

    object_hosts: frozenset[str]

    def feed_head(self) -> Signed:
        """The signed head."""

    def feed_events(self, after: int, wait_s: float = 0, limit: int = 1000) -> list[Signed]:
        """Signed events after a serial; waits up to ``wait_s`` for the first."""

    def feed_snapshot(self) -> Signed:
        """The signed snapshot."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What vouches for the catalog's key at the first contact."""

    token: str | None
    catalog_key: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How the follower stands to its catalog. ``reason`` is empty when all is well."""

    online: bool
    reason: str


class Follower:
    """Keeps the tree as the feed says. One thread of its own after :meth:`start`."""

    def __init__(
        self,
        source: FeedSource,
        credentials: Credentials,
        cache: Cache,
        tree: MountTree,
        wait_s: float = WAIT_S,
        handling: Handling | None = None,
    ) -> None:
        self.trust = Trust(cache.layout.trust)
        self.groups = Groups()
        self._source = source
        self._credentials = credentials
        self._cache = cache
        self._tree = tree
        self._state = FeedState.open(cache.layout.names)
        self._files = ReleaseFiles(cache.layout, source, lambda: self.trust.public_key)
        self._withdrawals = Withdrawals(cache, tree, self._state, self._files, self._other_rows, handling or Handling())
        self.carried_out = -1
        """The last event of the feed that was carried out in full."""
        self._wait_s = wait_s
        self._shown: dict[ReleaseRef, ListedRelease] = {}
        self._pending: set[Collection] = set()
        self._standing = Standing(online=False, reason="not started")
        self._said = ""
        self._waits = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    # -- life

    def start(self, *, resume: bool = False) -> None:
        """Take the first feed position, or the last good state when the catalog cannot be had; then follow.

        With ``resume`` the last good state is shown at once. OpenshelfError when there is neither, and (without
        ``resume``) when the catalog refuses the token.
        """
        if not resume or self._state.position is None:
            try:
                self._step(wait_s=0)
            except (Unauthorised, UntrustedKey):
                raise
            except OpenshelfError as error:
                if self._state.position is None:
                    raise
                self._note(error)
                log.warning("The mount starts with the last good state of the feed.")
        self._source.object_hosts = self.trust.object_hosts
        if resume:
            self._withdrawals.resume()
        self._refresh(set(self._state.collections()) - {ref.collection for ref in self._shown}, stored_only=resume)
        if resume:
            self._tree.keep_hidden(list(self._shown.values()))
        self._thread.start()

    def close(self) -> None:
        """Stop following. A question that waits at the catalog is left to end by itself."""
        self._stop.set()
        self._withdrawals.close()
        if self._thread.ident is None:
            self._state.close()
        elif not self._waits:
            self._thread.join(1.0)

    def standing(self) -> Standing:
        """The present standing; a stale feed or releases that could not be brought here are a reason too."""
        standing = self._standing
        if not standing.reason and self._pending:
            return Standing(standing.online, f"releases of {len(self._pending)} collections could not be fetched yet")
        if not standing.reason and self.is_stale():
            return Standing(standing.online, "the feed's head has expired")
        return standing

    def is_stale(self) -> bool:
        """Whether what is shown may be out of date: the head has expired, or the feed is refused."""
        return self.trust.is_stale(datetime.now(UTC)) or (bool(self._standing.reason) and self._standing.online)

    # -- steps

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self._state.close()

    def _follow(self) -> None:
        pause_s = FIRST_PAUSE_S
        self._withdrawals.carry_out({})
        self._sweep()
        while not self._stop.is_set():
            try:
                self._step(self._wait_s)
                pause_s = FIRST_PAUSE_S
            except OpenshelfError as error:
                self._note(error)
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            except Exception as error:
                # The thread must outlive what nobody foresaw: a mount that silently stops following is worse.
                log.exception("Following the feed failed.")
                self._standing = Standing(online=True, reason=f"following the feed failed ({type(error).__name__})")
                self._stop.wait(LONGEST_PAUSE_S)

    def _step(self, wait_s: float) -> None:
        """Ask once and take what came. OpenshelfError, also when the cache's disk does not take it."""
        try:
            self._ask(wait_s)
        except (OSError, sqlite3.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise OpenshelfError(
                "feed_unwritable",
                f"The feed's state cannot be kept in the cache: {reason}",
                "It goes on once the cache's disk has space and works, and the daemon has descriptors again.",
            ) from error

    def _ask(self, wait_s: float) -> None:
        self.trust.bootstrap(self._source, token=self._credentials.token, catalog_key=self._credentials.catalog_key)
        head_error = self._take_head()
        if self.trust.needs_snapshot or self._state.position != (self.trust.epoch, self.trust.serial):
            concerned = self._take_snapshot()
        else:
            concerned = self._take_events(0 if head_error or self._pending else wait_s)
        if head_error is not None and (head_error := self._take_head()) is not None:
            raise head_error
        self._refresh(concerned | self._pending)
        if self._withdrawals.are_waiting():
            self._withdrawals.carry_out({})
        if not self._withdrawals.are_waiting() and not self._pending:
            self.carried_out = self.trust.serial
        self._standing = Standing(online=True, reason="")
        if self._said:
            log.info("The feed is followed again.")
            self._said = ""
        if self._pending:
            self._stop.wait(min(wait_s, FIRST_PAUSE_S * 4))

    def _take_head(self) -> SignatureError | None:
        """Take the head; a wrong signature is handed back, since the events may hand over to a new key first."""
        signed = self._source.feed_head()
        try:
            self.trust.accept_head(signed)
        except SignatureError as error:
            return error
        self._source.object_hosts = self.trust.object_hosts
        return None

    def _take_snapshot(self) -> set[Collection]:
        return self._state.replace(self.trust.accept_snapshot(self._source.feed_snapshot()))

    def _take_events(self, wait_s: float) -> set[Collection]:
        self._waits = wait_s > 0
        try:
            signed = self._source.feed_events(self.trust.serial, wait_s)
        finally:
            self._waits = False
        if self._stop.is_set():
            return set()
        try:
            events = self.trust.accept_events(signed)
        except FeedHole as error:
            log.warning("%s Taking a snapshot instead.", error.line())
            return self._take_snapshot()
        concerned = self._state.apply(events)
        if any(event["type"] == "access" or "access" not in event for event in events if event["type"] in _ACCESS):
            # Which releases the token may read has changed, or who else may: only a snapshot says how.
            concerned |= self._take_snapshot()
        return concerned

    def _note(self, error: OpenshelfError) -> None:
        line = error.line()
        self._standing = Standing(online=not isinstance(error, CatalogUnreachable), reason=line)
        if line != self._said:
            log.warning("The feed cannot be followed, what is here stays: %s", line)
            self._said = line

    # -- showing

    def _refresh(self, collections: set[Collection], *, stored_only: bool = False) -> None:
        """Show these collections as the state has them, bringing manifests and records here first.

        With ``stored_only`` nothing is fetched now: what is not here yet is left for the next step.
        """
        if not collections or self._stop.is_set():
            return
        wanted = {each: self._state.releases(each) for each in collections}
        todo = [
            (ReleaseRef(each, version), digest) for each, found in wanted.items() for version, digest in found.items()
        ]
        failed: set[Collection] = set()
        brought: dict[Collection, list[ListedRelease]] = {each: [] for each in collections}
        with ThreadPoolExecutor(PARALLEL_RELEASES, "bring") as pool:
            for (ref, _), listed in zip(
                todo, pool.map(lambda each: self._bring(*each, stored_only=stored_only), todo), strict=True
            ):
                if listed is None:
                    failed.add(ref.collection)
                else:
                    brought[ref.collection].append(self._admitted(listed))
        self._tree.update(CollectionState(each, brought[each], self._state.tags(each)) for each in sorted(collections))
        self._pending = (self._pending - collections) | failed
        self._drop_withdrawn(wanted, brought)

    def _admitted(self, listed: ListedRelease) -> ListedRelease:
        """The release with its present access rule."""
        restricted = self._state.is_restricted(listed.ref.collection)
        gid = self.groups.gid(listed.ref.collection) if restricted else 0
        if (listed.restricted, listed.gid) == (restricted, gid):
            return listed
        return replace(listed, restricted=restricted, gid=gid)

    def _bring(self, ref: ReleaseRef, digest: str, *, stored_only: bool) -> ListedRelease | None:
        known = self._shown.get(ref)
        if known is not None and known.manifest_digest == digest:
            return known
        try:
            return self._files.present(ref, digest) if stored_only else self._files.bring(ref, digest)
        except OpenshelfError as error:
            log.warning("%s is not shown yet: %s", ref, error.line())
        except OSError as error:
            self._cache.note_failure(error)
            log.warning("%s is not shown yet: its manifest cannot be kept (%s).", ref, error.strerror)
        return None

    def _drop_withdrawn(
        self, wanted: dict[Collection, dict[str, str]], brought: dict[Collection, list[ListedRelease]]
    ) -> None:
        gone = [
            listed
            for ref, listed in self._shown.items()
            if ref.collection in wanted and wanted[ref.collection].get(ref.version) != listed.manifest_digest
        ]
        for listed in gone:
            del self._shown[listed.ref]
        self._shown.update((listed.ref, listed) for found in brought.values() for listed in found)
        self._withdrawals.carry_out({listed.ref: listed for listed in gone})
        for listed in gone:
            if listed.ref in self._shown:
                self._remove_old(listed)

    def _remove_old(self, listed: ListedRelease) -> None:
        """Take the files of a release that has another manifest now (a restored catalog) out of the cache."""
        try:
            if self._state.uses(listed.manifest_digest):
                return
            remove_unneeded(self._cache, listed.open_rows(), self._other_rows())
            self._cache.layout.manifest_path(listed.manifest_digest).unlink(missing_ok=True)
        except (OSError, sqlite3.Error) as error:
            log.error("The old files of %s could not be removed from the cache: %s.", listed.ref, error)

    def _sweep(self) -> None:
        """Finish what a crash in the middle of a withdrawal left: manifests that no release has, and their objects."""
        for path in self._cache.layout.manifests.glob("*.arrow"):
            try:
                if self._state.uses(path.stem) or self._withdrawals.keeps(path.stem):
                    continue
                rows = Rows(Manifest.open_verified(path, bytes.fromhex(path.stem)))
                remove_unneeded(self._cache, rows, self._other_rows())
                path.unlink()
            except (OSError, sqlite3.Error, OpenshelfError) as error:
                log.warning("The old manifest %s could not be removed: %s.", path.name, error)

    def _other_rows(self) -> Iterable[Rows]:
        for digest, listed in {each.manifest_digest: each for each in self._shown.values()}.items():
            if self._cache.layout.manifest_path(digest).exists():
                yield listed.open_rows()
