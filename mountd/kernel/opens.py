"""Which nodeids are open, how (passthrough or served), and how often. Survives the worker.

The kernel's rules (fs/fuse/iomode.c): all opens of one nodeid are of one mode; all passthrough opens of one nodeid
name the same backing id. Breaking either makes ``open()`` fail with EIO. A nodeid with no open file may change mode.

So the mode belongs to the nodeid while it is open. Where a file has become sealed but handles of the served kind are
still open, the file is handed out under a sibling nodeid (a *generation* in the bits above the data side's id).
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from mountd.interfaces import MAX_NODEID, Handle
from mountd.kernel.device import close_backing, open_backing
from mountd.kernel.protocol import RESENT_BIT
from mountd.shared_state import TABLE_ROWS, SharedState

_logger = logging.getLogger(__name__)

GENERATIONS = 4
_LEAK_WINDOW = 4
"""Ids after the last known one that a killed worker may have opened (one, with room)."""


@dataclass(slots=True)
class Open:
    """One open nodeid. ``handle`` is None after a worker's restart, until a READ needs it."""

    row: int
    backing_id: int
    opens: int
    handle: Handle | None

    @property
    def passthrough(self) -> bool:
        """Whether the kernel reads the backing file itself."""
        return self.backing_id > 0


def base_id(nodeid: int) -> int:
    """The data side's id behind any generation of it."""
    return nodeid & (MAX_NODEID - 1)


class OpenTable:
    """The opens of one mount; ``device`` is where backing files are registered."""

    def __init__(self, state: SharedState, device: int, *, passthrough: bool) -> None:
        self._state = state
        self._device = device
        self._lock = threading.Lock()
        self._passthrough = passthrough
        self._opens: dict[int, Open] = {}
        self._free: list[int] = []
        self._applied: frozenset[int] = frozenset()
        self._take_over()

    def _take_over(self) -> None:
        """Rebuild from the shared memory what an earlier worker left, and close what it leaked."""
        self._state.redo()
        self._applied = self._state.applied()
        for row in range(self._state.rows()):
            nodeid, backing_id, opens = self._state.row(row)
            if opens:
                self._opens[nodeid] = Open(row, backing_id, opens, None)
            else:
                self._free.append(row)
        known = {entry.backing_id for entry in self._opens.values()}
        last, closing = self._state.backing_marks()
        # The kernel hands ids out in ascending order (idr_alloc_cyclic), and opening is serialised by our lock.
        suspects = [closing, *range(last + 1, last + 1 + _LEAK_WINDOW)] if last or closing else [1]
        if self._passthrough:
            for backing_id in suspects:
                if backing_id > 0 and backing_id not in known:
                    close_backing(self._device, backing_id)
        self._state.mark_backing(closing=0)

    def __len__(self) -> int:
        return len(self._opens)

    def modes(self) -> dict[int, bool]:
        """Every open nodeid, and whether it is open in the passthrough mode."""
        with self._lock:
            return {nodeid: entry.passthrough for nodeid, entry in self._opens.items()}

    def get(self, nodeid: int) -> Open | None:
        """The entry of an open nodeid."""
        return self._opens.get(nodeid)

    def join(self, nodeid: int, slot: int, unique: int) -> Open | None:
        """Count one more open of a nodeid that is open already; None when it is not."""
        if nodeid not in self._opens:
            return None
        with self._lock:
            entry = self._opens.get(nodeid)
            if entry is not None and not self._was_applied(unique):
                self._set(entry, nodeid, entry.opens + 1, slot, unique)
            return entry

    def begin(self, nodeid: int, handle: Handle, slot: int, unique: int) -> tuple[Open, bool]:
        """Open a nodeid with ``handle``; (entry, whether it kept the handle: another thread may have been first).

        Raises OSError (ENFILE) when the table is full.
        """
        with self._lock:
            entry = self._opens.get(nodeid)
            if entry is not None:
                self._set(entry, nodeid, entry.opens + 1, slot, unique)
                return entry, False
            row = self._free.pop() if self._free else self._state.rows()
            if row >= TABLE_ROWS:
                raise OSError(errno.ENFILE, "too many files are open in the mount")
            entry = Open(row, self._register(handle), 0, handle)
            self._set(entry, nodeid, 1, slot, unique)
            self._opens[nodeid] = entry
            return entry, True

    def end(self, nodeid: int, slot: int, unique: int) -> Handle | None:
        """Count one open less; the handle to be closed after the last one."""
        with self._lock:
            entry = self._opens.get(nodeid)
            if entry is None or self._was_applied(unique):
                return None
            last = entry.opens == 1
            if last and entry.passthrough:
                self._state.mark_backing(closing=entry.backing_id)
            self._set(entry, nodeid, entry.opens - 1, slot, unique)
            if not last:
                return None
            del self._opens[nodeid]
            self._free.append(entry.row)
            if entry.passthrough:
                close_backing(self._device, entry.backing_id)
                self._state.mark_backing(closing=0)
            return entry.handle

    def handle(self, nodeid: int, entry: Open, reopen: Callable[[], Handle]) -> Handle:
        """The handle of an entry, opened anew by ``reopen`` when an earlier worker had it."""
        if entry.handle is None:
            fresh = reopen()
            with self._lock:
                if entry.handle is None:
                    entry.handle = fresh
                    return fresh
            fresh.close()  # another thread was faster
        return entry.handle

    def nodeid_for(self, nodeid: int) -> int:
        """Under which id a file is handed out now: its own, unless served opens of that one stand in the way."""
        entry = self._opens.get(nodeid)
        if entry is None or not self.is_outdated(entry):
            return nodeid
        for generation in range(1, GENERATIONS):
            candidate = nodeid | generation * MAX_NODEID
            other = self._opens.get(candidate)
            if other is None or other.passthrough:
                return candidate
        return nodeid

    def siblings(self) -> dict[int, int]:
        """The nodeids that are handed out under another id at present, and that id."""
        outdated = [nodeid for nodeid, entry in list(self._opens.items()) if self.is_outdated(entry)]
        return {nodeid: self.nodeid_for(nodeid) for nodeid in outdated}

    def is_outdated(self, entry: Open) -> bool:
        """Whether a nodeid is open in the served mode although its file has been sealed since."""
        return (
            self._passthrough
            and not entry.passthrough
            and entry.handle is not None
            and entry.handle.sealed_fd() is not None
        )

    def _was_applied(self, unique: int) -> bool:
        """Whether an earlier worker entered this very request before it died."""
        return bool(self._applied) and unique & ~RESENT_BIT in self._applied

    def _set(self, entry: Open, nodeid: int, opens: int, slot: int, unique: int) -> None:
        self._state.change_row(slot, unique & ~RESENT_BIT, entry.row, nodeid, entry.backing_id, opens)
        entry.opens = opens

    def _register(self, handle: Handle) -> int:
        """A backing id for the handle's sealed file, or 0 when it is to be served."""
        descriptor = handle.sealed_fd() if self._passthrough else None
        if descriptor is None:
            return 0
        try:
            backing_id = open_backing(self._device, descriptor)
        except OSError as error:
            # Said once: every later open goes the slower way, which always works.
            self._passthrough = False
            _logger.warning("passthrough is switched off: %s; files are served by the daemon", error.strerror)
            return 0
        self._state.mark_backing(last=backing_id)
        return backing_id
