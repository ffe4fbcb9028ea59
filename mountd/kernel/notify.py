"""Messages to the kernel that nobody asked for: names and pages to forget, and "send me again what was under way"."""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from collections.abc import Iterable

from mountd.interfaces import Invalidation
from mountd.kernel.protocol import NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, OUT_HEADER, Notify

_logger = logging.getLogger(__name__)


def ask_resend(device: int) -> None:
    """Let the kernel queue again every request that a dead worker had taken (Linux 6.9)."""
    os.write(device, OUT_HEADER.pack(OUT_HEADER.size, Notify.RESEND, 0))


class Notifier:
    """Sends invalidations from a thread of its own.

    A thread that serves requests must not send them: the kernel takes locks of the directory for it, and the holder of
    such a lock may be waiting for that very thread's answer.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._queue: queue.SimpleQueue[Invalidation | int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
        self._thread.start()

    def invalidate(self, change: Invalidation) -> None:
        """Queue one name; never blocks."""
        self._queue.put(change)

    def drop_pages(self, nodeids: Iterable[int]) -> None:
        """Queue files whose attributes and pages are to be forgotten; never blocks."""
        for nodeid in nodeids:
            self._queue.put(nodeid)

    def close(self) -> None:
        """Send what is queued and end the thread; gives up waiting after a second."""
        self._queue.put(None)
        self._thread.join(timeout=1)

    def _run(self) -> None:
        while (change := self._queue.get()) is not None:
            try:
                self._send(change)
            except OSError as error:
                # ENOENT: the kernel had not cached that name. ENODEV: unmounted. Both leave nothing stale behind.
                if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ENOTCONN):
                    _logger.warning("the kernel did not take an invalidation: %s", error.strerror)

    def _send(self, change: Invalidation | int) -> None:
        if isinstance(change, int):
            body = NOTIFY_INVAL_INODE.pack(change, 0, 0)
            os.writev(self._device, [OUT_HEADER.pack(OUT_HEADER.size + len(body), Notify.INVAL_INODE, 0), body])
            return
        body = NOTIFY_INVAL_ENTRY.pack(change.parent_id, len(change.name), 0) + change.name + b"\0"
        os.writev(self._device, [OUT_HEADER.pack(OUT_HEADER.size + len(body), Notify.INVAL_ENTRY, 0), body])
