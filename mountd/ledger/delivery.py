"""Telling the catalog: in order, once a minute, with longer and longer random pauses while it does not listen."""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from catalog.client.errors import Conflict, InvalidRequest, NotFound
from mountd.ledger.spool import Spool
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.ledger")

EVERY_S = 60.0
FIRST_WITHIN_S = 10.0
"""After its start a node is heard of within this, at a random moment: many start together."""
HEARTBEAT_S = 300.0
"""With nothing to tell, the catalog hears at least this often that the node lives."""
HURRY_WITHIN_S = 0.5
"""What does not wait for the next period is told within this: all nodes have it to tell at the same moment."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
BATCH = 1000
ANSWER_WITHIN_S = 30.0
AT_THE_END_WITHIN_S = 2.0


class UsageSink(Protocol):
    """What is needed of a client: :class:`catalog.client.Client`."""

    def report_usage(
        self,
        node: str,
        records: Sequence[Mapping[str, Any]],
        *,
        feed_serial: int,
        unrecorded: int,
        ends: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Tell what jobs opened; may be repeated. ``ends``: nothing more will come until the next start."""

    def confirm_withdrawal(self, told: Mapping[str, Any], *, timeout_s: float | None = None) -> None:
        """Tell what was done about a withdrawal; may be repeated."""


class Delivery:
    """Empties the spool into the catalog, from a thread of its own. ``feed_serial`` gives the last event that was
    carried out in full."""

    def __init__(
        self, spool: Spool, sink: UsageSink, node: str, feed_serial: Callable[[], int], every_s: float = EVERY_S
    ) -> None:
        self._spool = spool
        self._sink = sink
        self._node = node
        self._feed_serial = feed_serial
        self._every_s = every_s
        self._wake = threading.Event()
        self._stop = False
        self._said = ""
        self.failures = 0
        """Attempts in a row that have failed."""
        self._thread = threading.Thread(target=self._run, name="deliver", daemon=True)

    def start(self) -> None:
        """Begin; the first report comes within :data:`FIRST_WITHIN_S`."""
        self._thread.start()

    def hurry(self) -> None:
        """There is something that should not wait for the next period (a confirmation, or a full batch)."""
        self._wake.set()

    def close(self) -> None:
        """Tell what there is, once, if the catalog listens; the rest waits for the next start."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(AT_THE_END_WITHIN_S)
        if not self._thread.is_alive() and not self.failures:
            self._attempt(AT_THE_END_WITHIN_S, ends=True)

    def _run(self) -> None:
        told_at = float("-inf")
        next_at = time.monotonic() + random.uniform(0, min(self._every_s, FIRST_WITHIN_S))  # noqa: S311 (spreading load is no secret)
        while not self._stop:
            hurried = self._wake.wait(max(0.0, next_at - time.monotonic()))
            self._wake.clear()
            if hurried and not self._stop and not self.failures:
                time.sleep(random.uniform(0, HURRY_WITHIN_S))  # noqa: S311
            if self._stop:
                return
            now = time.monotonic()
            if self.failures and now < next_at:
                continue  # the pause after a failure is not cut short
            due = hurried or self._spool.counts().waiting or now - told_at > HEARTBEAT_S
            if due and self._attempt(ANSWER_WITHIN_S):
                told_at = now
            next_at = time.monotonic() + self._pause_s()

    def _pause_s(self) -> float:
        if not self.failures:
            return self._every_s * random.uniform(0.9, 1.1)  # noqa: S311
        longest = min(FIRST_PAUSE_S * 2**self.failures, LONGEST_PAUSE_S)
        return random.uniform(longest / 4, longest)  # noqa: S311

    def _attempt(self, within_s: float, *, ends: bool = False) -> bool:
        """Tell all that waits; whether the catalog heard it."""
        try:
            self._confirm(within_s)
            self._report(within_s, ends=ends)
        except OpenshelfError as error:
            self._note(error.line())
        except sqlite3.Error as error:
            self._note(f"its spool fails ({error})")
        except Exception as error:
            # The thread must outlive what nobody foresaw: a ledger that silently ends is worse.
            log.exception("Delivering the access ledger failed.")
            self._note(type(error).__name__)
        else:
            if self._said:
                log.info("The access ledger is delivered again.")
            self.failures, self._said = 0, ""
            return True
        return False

    def _note(self, reason: str) -> None:
        self.failures += 1
        if reason != self._said:
            log.warning("The access ledger waits on the disk: %s", reason)
            self._said = reason

    def _confirm(self, within_s: float) -> None:
        for release, version, body in self._spool.confirmations():
            try:
                self._sink.confirm_withdrawal({**body, "node": self._node}, timeout_s=within_s)
            except (Conflict, NotFound, InvalidRequest) as error:
                log.info("The catalog has no use for what was done about %s: %s", release, error.line())
            self._spool.confirmed(release, version)

    def _report(self, within_s: float, *, ends: bool) -> None:
        while True:
            batch = self._spool.waiting(BATCH)
            try:
                self._sink.report_usage(
                    self._node,
                    [each.body for each in batch],
                    feed_serial=max(0, self._feed_serial()),
                    unrecorded=self._spool.counts().unrecorded,
                    ends=ends and len(batch) < BATCH,
                    timeout_s=within_s,
                )
            except InvalidRequest as error:
                log.error("The catalog refuses %d records of the access ledger: %s", len(batch), error.line())
                self._spool.refused(batch)
            else:
                self._spool.delivered(batch)
            if len(batch) < BATCH:
                return
