"""Bringing files to the cache behind everybody who reads: many requests at once while nobody does, none while all wait.

Every step is a task of lowest priority in the fetchers' pool, and the next one is queued when it is done; so what a
reader waits for, or will soon, comes first. A large file is filled by several chains of steps of 16 MiB; the small
files of one pack come with one request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from catalog.manifest import CHUNK_BYTES
from mountd.fetch.fill import RUN_CHUNKS, Fill, Supply
from mountd.fetch.pool import Priority
from mountd.interfaces import Node
from mountd.reader import CacheReader, FileHandle
from mountd.tree import MountTree
from mountd.warm.access_list import Ranges
from mountd.warm.pack_group import PackGroup

log = logging.getLogger("openshelf.mount.warm")

CHAINS = 8
"""Steps that are queued or done at once."""
CHAINS_A_FILE = 4
PACKS_AT_ONCE = 2
"""One less than are unpacked at once: a reader's pack need not wait."""
GIVE_UP_AFTER = 8
"""So many units in a row of which nothing came: the store is out of reach."""
_LOOK_EVERY_S = 0.05
_LINGER_S = 60.0
"""How long chunks that others fetch, and sealing, are waited for."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One file, of which perhaps only some chunks are wanted; or small files of one pack: their digests, and one of
    them as the node."""

    nodeid: int
    digests: tuple[bytes, ...] = ()
    chunks: Ranges | None = None


@dataclass(slots=True)
class Outcome:
    """How bringing went: files that did not come, why the last one did not, and whether the cache took no more."""

    missed: int = 0
    reason: str = ""
    full: bool = False


@dataclass(slots=True)
class Counted:
    """What has come: whole files and their bytes, and bytes of those still under way."""

    files: int = 0
    size_bytes: int = 0
    under_way: int = 0


class Coming(Protocol):
    """A unit on its way. ``chains``: steps of it that are queued or being done."""

    chains: int
    files: int
    size_bytes: int
    missed: int
    reason: str
    full: bool

    def step(self, start: int) -> int | None:
        """In a thread of the pool: do the next step from ``start`` on; what to begin the following one with, or None
        at the end of the chain."""

    def resume(self) -> bool:
        """Whether a chain is to be begun again."""

    def ended(self, *, stopped: bool) -> bool:
        """Whether nothing is to be waited for; then the counts are final."""

    def arrived(self) -> int:
        """Bytes that have come since it was begun."""

    def close(self) -> None:
        """Give back what it holds."""


class Bringer:
    """Brings units. ``stopped`` is asked again and again whether to end early."""

    def __init__(self, tree: MountTree, reader: CacheReader, supply: Supply, stopped: Callable[[], bool]) -> None:
        self._tree = tree
        self._reader = reader
        self._supply = supply
        self._asked_to_stop = stopped
        self._given_up = False
        self._barren = 0
        self._changed = threading.Condition()

    def _stopped(self) -> bool:
        return self._given_up or self._asked_to_stop()

    def bring(self, units: Iterable[Unit], report: Callable[[Counted], None]) -> Outcome:
        """Bring all of ``units``, telling ``report`` now and then how far it is. Ends early when the cache takes no
        more, when nothing comes any more, or when it is to stop; nothing of it runs after that."""
        outcome, counted = Outcome(), Counted()
        active: list[Coming] = []
        try:
            for unit in units:
                if self._stopped() or outcome.full or self._barren >= GIVE_UP_AFTER:
                    break
                try:
                    begun = self._begin(unit)
                except OSError as error:  # no descriptor is left, or the manifest cannot be read
                    outcome.missed, outcome.reason = outcome.missed + 1, error.strerror or str(error)
                    break
                if begun is not None:
                    active.append(begun)
                while self._busy(active):
                    self._look(active, outcome, counted, report)
        except BaseException:
            self._given_up = True
            raise
        finally:
            while active:
                self._look(active, outcome, counted, report)
        return outcome

    def _busy(self, active: list[Coming]) -> bool:
        packs = sum(isinstance(each, PackGroup) for each in active)
        return packs >= PACKS_AT_ONCE or sum(each.chains for each in active) >= CHAINS

    def _begin(self, unit: Unit) -> Coming | None:
        node = self._tree.node(unit.nodeid)
        if node is None or node.entry is None:
            return None
        coming: Coming
        if unit.digests:
            coming = PackGroup(node, frozenset(unit.digests), self._tree, self._supply)
        else:
            coming = OneFile.open(self._reader, node, unit.chunks)
        for _ in range(coming.chains):
            self._queue(coming, 0)
        return coming

    def _queue(self, coming: Coming, start: int) -> None:
        if not self._supply.pool.submit(Priority.BACKGROUND, lambda: self._step(coming, start)):
            self._given_up = True
            self._step(coming, start)  # which sees that, and ends

    def _step(self, coming: Coming, start: int) -> None:
        following = None
        try:
            if not self._stopped():
                following = coming.step(start)
        except OSError as error:
            coming.reason = error.strerror or str(error)
        finally:
            if following is None:
                with self._changed:
                    coming.chains -= 1
                    self._changed.notify_all()
        if following is not None:
            self._queue(coming, following)

    def _look(
        self, active: list[Coming], outcome: Outcome, counted: Counted, report: Callable[[Counted], None]
    ) -> None:
        """Wait a moment for something to change, and take what has ended."""
        with self._changed:
            self._changed.wait(_LOOK_EVERY_S)
        stopped = self._stopped()
        for each in list(active):
            if each.chains:
                continue
            if not stopped and each.resume():
                each.chains = 1
                self._queue(each, 0)
            elif each.ended(stopped=stopped):
                active.remove(each)
                each.close()
                counted.files += each.files
                counted.size_bytes += each.size_bytes
                outcome.missed += each.missed
                outcome.reason = each.reason or outcome.reason
                outcome.full = outcome.full or each.full
                self._barren = self._barren + 1 if each.reason and not each.files else 0
        counted.under_way = sum(each.arrived() for each in active)
        report(counted)


class OneFile:
    """A file on its way by itself, whole or in part."""

    def __init__(self, node: Node, handle: FileHandle | None, ranges: Ranges | None) -> None:
        self.files = 0
        self.size_bytes = 0
        self.missed = 0
        self.reason = ""
        self.full = False
        last = -(-node.size // CHUNK_BYTES)
        self._whole = ranges is None
        self._ranges = tuple((start, min(stop, last)) for start, stop in ranges or ((0, last),) if start < last)
        self._node = node
        self._handle = handle
        self._fill = None if handle is None else handle.fill
        self._looks = 0
        self._before = 0 if self._fill is None else self._fill.verified_bytes()
        wanted = sum(stop - start for start, stop in self._ranges)
        self.chains = 0 if self._fill is None else min(CHAINS_A_FILE, -(-wanted // RUN_CHUNKS))

    @classmethod
    def open(cls, reader: CacheReader, node: Node, ranges: Ranges | None) -> OneFile:
        """Begin with a file node."""
        handle = reader.open(node)
        if isinstance(handle, FileHandle):
            return cls(node, handle, ranges)
        handle.close()
        return cls(node, None, ranges)

    def step(self, start: int) -> int | None:
        """See :class:`Coming`; ``start`` is the chunk to look from."""
        fill = self._fill
        assert fill is not None
        for first, stop in self._ranges:
            if stop <= start or self.reason:
                continue
            step = fill.fetch_some(max(first, start), stop)
            if step is not None:
                following, stored = step
                if stored:
                    return following
                self.reason, self.full = why(fill)
                return None
        return None

    def resume(self) -> bool:
        """Never: what was in flight for others is looked at again at the next pass."""
        return False

    def ended(self, *, stopped: bool) -> bool:
        """See :class:`Coming`."""
        fill = self._fill
        here = fill is None or (fill.sealed if self._whole else not self.reason)
        if not here and not (stopped or self.reason) and fill is not None and fill.busy:
            self._looks += 1
            if self._looks * _LOOK_EVERY_S < _LINGER_S:
                return False
        if here and not (stopped and not self._whole):
            self.files, self.size_bytes = 1, self._wanted_bytes()
        else:
            self.missed = 1
        return True

    def _wanted_bytes(self) -> int:
        if self._whole:
            return self._node.size
        return sum(min(stop * CHUNK_BYTES, self._node.size) - start * CHUNK_BYTES for start, stop in self._ranges)

    def arrived(self) -> int:
        """See :class:`Coming`."""
        return 0 if self._fill is None else max(self._fill.verified_bytes() - self._before, 0)

    def close(self) -> None:
        """See :class:`Coming`."""
        if self._handle is not None:
            self._handle.close()


def why(fill: Fill) -> tuple[str, bool]:
    """Why chunks that were sent for are not in the cache, and whether it is because the cache did not take them."""
    reason = fill.failure()
    return (reason, False) if reason else ("the cache takes no more", True)
