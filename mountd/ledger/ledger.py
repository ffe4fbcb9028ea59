"""The access ledger: notices every open, keeps who opened what, and has it told to the catalog."""

from __future__ import annotations

import itertools
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mountd.interfaces import Node, Opened
from mountd.ledger.delivery import BATCH, EVERY_S, Delivery, UsageSink
from mountd.ledger.jobs import UNKNOWN, Job
from mountd.ledger.processes import Processes
from mountd.ledger.records import Record, Records
from mountd.ledger.spool import Spool

log = logging.getLogger("openshelf.mount.ledger")

KEEP_EVERY_S = 1.0
"""How often what was noticed is written to the disk: so much a killed worker loses."""
QUEUE = 1 << 17
"""Opens that may wait to be counted; more in :data:`KEEP_EVERY_S` are only counted as unrecorded."""


class Ledger:
    """One node's access ledger over the spool in ``folder``."""

    def __init__(
        self,
        folder: Path,
        sink: UsageSink,
        node: str,
        feed_serial: Callable[[], int],
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self.spool = Spool.open(folder)
        self.processes = Processes()
        self._delivery = Delivery(self.spool, sink, node, feed_serial, every_s)
        self._records = Records()
        self._queue: deque[tuple[Node, Job, int, float]] = deque()
        self._numbers = itertools.count(self.spool.noticed[0] + 1)
        self._noticed = self.spool.noticed
        self._overflow_lock = threading.Lock()
        self._overflow = 0
        self._unknown = 0
        self._opens = 0
        self._owed = (0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        """Begin to count and to tell."""
        self._thread.start()
        self._delivery.start()

    def opened(self, opened: Opened) -> None:
        """Take note of an open (see :meth:`mountd.interfaces.Stack.opened`)."""
        node = opened.node
        if node.release is None:
            return  # a file of the mount itself
        job = self.processes.job(opened.pid)
        self._noticed[0] = next(self._numbers)
        if len(self._queue) < QUEUE:
            self._queue.append((node, job, opened.uid, time.time()))
        else:
            with self._overflow_lock:
                self._overflow += 1

    def confirm(self, told: Mapping[str, Any]) -> None:
        """Have the catalog told what was done about a withdrawal."""
        self.spool.put_confirmation(told)
        self._delivery.hurry()

    def facts(self) -> dict[str, int]:
        """Counters for the status."""
        counts = self.spool.counts()
        return {
            "ledger_opens": self._opens,
            "ledger_unknown_jobs": self._unknown,
            "ledger_unrecorded": counts.unrecorded,
            "ledger_waiting": counts.waiting,
            "ledger_delivered": counts.delivered,
            "ledger_dropped": counts.dropped,
            "ledger_failures": self._delivery.failures,
        }

    def _run(self) -> None:
        while not self._stop.wait(KEEP_EVERY_S):
            self._keep()
            if self.spool.counts().waiting >= BATCH:
                self._delivery.hurry()

    def _keep(self) -> None:
        """Count what waits, and write what has changed."""
        settled, unrecorded = self._owed
        while self._queue:
            node, job, uid, at = self._queue.popleft()
            self._records.add(node, job, uid, at)
            settled += 1
            self._unknown += job.kind == UNKNOWN.kind
        with self._overflow_lock:
            overflow, self._overflow = self._overflow, 0
        self._opens += settled - self._owed[0]
        settled, unrecorded = settled + overflow, unrecorded + overflow
        if not settled:
            return
        changed: list[Record] = list(self._records.take_changed())
        try:
            self.spool.keep(changed, settled, unrecorded)
            self._owed = (0, 0)
        except (sqlite3.Error, OSError) as error:
            self._records.put_back(changed)
            self._owed = (settled, unrecorded)
            log.error("The access ledger cannot be written to the cache's disk: %s.", error)

    def close(self) -> None:
        """Write what was noticed, and tell it if the catalog listens."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._keep()
        self._delivery.close()
        self.processes.close()
        self.spool.close()
