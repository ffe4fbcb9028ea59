"""Opens in materialised releases, told to whoever wants to know of opens (the access ledger)."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from mountd.interfaces import Node, Opened
from mountd.materialise.fanotify import Fanotify
from mountd.releases import RECORD_NAMES, ReleaseTree

log = logging.getLogger("openshelf.mount.materialise")

PAUSE_S = 0.01
"""After a reading of the queue, events gather for this long; the first after a rest is read at once, while a
short-lived process still lives."""
MOST_WAITING = 512
"""Readings of the queue (64 KiB each) that wait to be told; what comes then stays in the kernel's queue."""
KEPT_ROWS = 200_000
"""Names whose rows are remembered: a file that was opened once is opened again in the next epoch."""
UNKNOWN_UID = 65534
"""The owner of a process that has ended meanwhile: nobody, as the kernel calls users that it cannot show."""

Folder = tuple[ReleaseTree, bytes]
"""A marked folder: its release, and its path with a ``/`` at the end (empty for the release's own)."""


class OpenWatch:
    """Marks folders of trees and tells of opens in them, from a thread of its own."""

    def __init__(self, fanotify: Fanotify, opened: Callable[[Opened], None]) -> None:
        self._fanotify = fanotify
        self._opened = opened
        self._folders: dict[bytes, Folder] = {}
        self._waiting: deque[bytes] = deque()
        self._rows: dict[bytes, dict[bytes, int]] = {}
        self._kept = 0
        self._closing = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="opens", daemon=True)
        self.count = 0
        self.last_open: dict[ReleaseTree, float] = {}
        """When a file of each release was last opened (monotonic clock)."""

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    @property
    def lost(self) -> int:
        """How often the kernel's queue was full."""
        return self._fanotify.lost

    def mark(self, release: ReleaseTree, root: Path, folders: Sequence[str]) -> None:
        """Watch the tree of a release at ``root``; ``folders`` are the paths in it. Raises OSError."""
        for folder in folders:
            path = folder.encode()
            handle = self._fanotify.mark(bytes(root / folder))
            self._folders[handle] = release, path + b"/" if path else b""

    def forget(self, release: ReleaseTree) -> None:
        """Tell no more of a release; the marks end with the folders."""
        self._folders = {handle: each for handle, each in self._folders.items() if each[0] is not release}
        self._rows, self._kept = {}, 0
        self.last_open.pop(release, None)

    def close(self) -> None:
        """End the thread and the marks."""
        os.eventfd_write(self._closing, 1)
        if self._thread.is_alive():
            self._thread.join()
        self._fanotify.close()
        os.close(self._closing)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._fanotify.descriptor, select.POLLIN)
        poll.register(self._closing, select.POLLIN)
        while self._closing not in dict(poll.poll()):
            self._take()
            while self._waiting:
                try:
                    self._tell(self._waiting.popleft())
                except Exception:  # whatever it is, later opens must be told of
                    log.exception("an open could not be told of")
                self._take()
            time.sleep(PAUSE_S)

    def _take(self) -> None:
        """Empty the kernel's queue, which is short, before anything is done with what was in it."""
        while len(self._waiting) < MOST_WAITING and (data := self._fanotify.read()):
            self._waiting.append(data)

    def _tell(self, data: bytes) -> None:
        own, owners = os.getpid(), {0: UNKNOWN_UID}
        now = time.monotonic()
        for handle, name, pid in self._fanotify.opens(data):
            found = self._folders.get(handle)
            if found is None or pid == own:
                continue
            node = self._node(handle, *found, name)
            if node is None:
                continue
            if pid not in owners:
                owners[pid] = _owner(pid)
            self.count += 1
            self.last_open[found[0]] = now
            self._opened(Opened(node, pid, owners[pid], "materialised"))

    def _node(self, handle: bytes, release: ReleaseTree, folder: bytes, name: bytes) -> Node | None:
        if not folder and name in RECORD_NAMES:
            return release.made_file(RECORD_NAMES.index(name))
        known = self._rows.setdefault(handle, {})
        row = known.get(name)
        if row is None:
            rows = release.rows()
            row = rows.find(folder + name, 0, len(rows))
            if row is None:
                return None
            self._kept += 1
            if self._kept > KEPT_ROWS:
                self._rows, self._kept, known = {}, 0, {}
            known[name] = row
        return release.file(row)


def _owner(pid: int) -> int:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return UNKNOWN_UID
