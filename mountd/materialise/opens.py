"""Opens in materialised releases, told to whoever wants to know of opens (the access ledger)."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mountd.interfaces import Node, Opened
from mountd.materialise.fanotify import Fanotify
from mountd.releases import RECORD_NAMES, ReleaseTree

log = logging.getLogger("openshelf.mount.materialise")

PAUSE_S = 0.01
"""After a reading of the queue, events gather for this long; the first after a rest is read at once, while a
short-lived process still lives."""
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
            try:
                self._tell()
            except Exception:  # whatever it is, later opens must be told of
                log.exception("an open could not be told of")
            time.sleep(PAUSE_S)

    def _tell(self) -> None:
        own, owners = os.getpid(), {0: UNKNOWN_UID}
        for handle, name, pid in self._fanotify.read():
            found = self._folders.get(handle)
            if found is None or pid == own:
                continue
            release, folder = found
            node = _node(release, folder, name)
            if node is None:
                continue
            if pid not in owners:
                owners[pid] = _owner(pid)
            self.count += 1
            self.last_open[release] = time.monotonic()
            self._opened(Opened(node, pid, owners[pid], "materialised"))


def _node(release: ReleaseTree, folder: bytes, name: bytes) -> Node | None:
    if not folder and name in RECORD_NAMES:
        return release.made_file(RECORD_NAMES.index(name))
    rows, path = release.rows(), folder + name
    row = rows.find(path, 0, len(rows))
    return None if row is None else release.file(row)


def _owner(pid: int) -> int:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return UNKNOWN_UID
