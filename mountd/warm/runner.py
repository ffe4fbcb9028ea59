"""The thread that carries out jobs, one after the other, each as often as it takes until all of it is here.

What is still missing is counted anew at every pass, so that nothing of a pass need survive a killed worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mountd.cache.store import Cache
from mountd.fetch.fill import Supply
from mountd.reader import CacheReader
from mountd.tree import MountTree
from mountd.warm.bringing import Bringer, Counted
from mountd.warm.jobs import Job, Jobs, State
from mountd.warm.plans import ListPlan, Plan, ReleasePlan, refuse_too_large
from mountd.warm.references import parse_reference
from mountd.warm.schedule import due_s
from mountd.warm.selection import select
from mountd.warm.standing import Standing
from mountd.warm.windows import Bandwidth, rate_at
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.warm")

LOOK_EVERY_S = 2.0
"""How often the wall clock is compared with schedules and windows."""
PAUSES_S = (2.0, 10.0, 60.0, 300.0, 300.0, 600.0, 600.0, 900.0, 900.0)
"""Before each further pass; a pass that brought something begins the row anew. After them the job has failed."""
OFFLINE_PAUSE_S = 30.0
"""Before each further pass while the catalog does not answer, however long that is."""


@dataclass(frozen=True, slots=True)
class Means:
    """What jobs are carried out with. ``clock`` is the wall clock, ``online`` whether the catalog answers."""

    tree: MountTree
    reader: CacheReader
    cache: Cache
    supply: Supply
    bandwidth: Bandwidth
    clock: Callable[[], datetime] = datetime.now
    online: Callable[[], bool] = lambda: True


class Runner:
    """Carries out the jobs of a list. One thread of its own from :meth:`start` to :meth:`close`."""

    def __init__(self, jobs: Jobs, means: Means) -> None:
        self._jobs = jobs
        self._means = means
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warm", daemon=True)

    def start(self) -> None:
        """Begin, with what an earlier worker left first."""
        self._thread.start()

    def close(self) -> None:
        """End after the steps under way; what is not finished is the next worker's."""
        self._closing.set()
        with self._jobs.changed:
            self._jobs.changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def now_s(self) -> float:
        """The wall clock, in seconds since 1970."""
        return self._means.clock().timestamp()

    def _run(self) -> None:
        while not self._closing.is_set():
            job = self._next()
            if job is None:
                with self._jobs.changed:
                    if not self._closing.is_set():
                        self._jobs.changed.wait(LOOK_EVERY_S)
                continue
            try:
                self._carry_out(job)
            except OpenshelfError as error:
                self._end(job, State.FAILED, error.line())
            except Exception as error:  # one job must not end the thread that all others wait for
                log.exception("Job %d failed in a way that nobody foresaw.", job.id)
                self._end(job, State.FAILED, f"It failed: {type(error).__name__}; see the log.")

    def _next(self) -> Job | None:
        """The job to carry on with: one that was begun, else the first that is due."""
        jobs, now = self._jobs.all(), self._means.clock()
        for job in jobs:
            if job.state is State.WAITING and job.at and (due := due_s(job.at, job.due, now)) != job.due:
                self._jobs.update(job.id, due=due)
        ready = [job for job in jobs if job.state is State.RUNNING]
        ready += sorted(
            (job for job in self._jobs.all() if job.state is State.WAITING and job.due <= now.timestamp()),
            key=lambda job: (job.due, job.id),
        )
        return ready[0] if ready else None

    def _carry_out(self, job: Job) -> None:
        if job.state is State.WAITING:
            job = self._jobs.update(job.id, state=State.RUNNING, started=self.now_s())
        pauses = list(PAUSES_S)
        while not self._stopped(job):
            if self._paused():
                self._jobs.update(job.id, message="paused: the bandwidth is 0 at this time of day")
                self._wait(job, LOOK_EVERY_S)
                if not self._paused():
                    self._jobs.update(job.id, message="")
                continue
            if self._pass(job, pauses):
                return
        if self._jobs.is_cancelled(job.id):
            self._end(job, State.CANCELLED, "")

    def _pass(self, job: Job, pauses: list[float]) -> bool:
        """Bring what is missing now; whether the job is done. OpenshelfError when there is no use in going on."""
        plan = make_plan(job, self._means, self._jobs.folder)
        before = plan.standing()
        self._progress(job, before, Counted())
        if before.complete:
            self._end(job, State.DONE, plan.remark)
            return True
        refuse_too_large(plan, self._means.cache)
        last = Counted()

        def report(counted: Counted) -> None:
            nonlocal last
            last = counted
            self._progress(job, before, counted, **({"message": plan.remark} if counted.files else {}))

        def interrupted() -> bool:
            return self._stopped(job) or self._paused() or not plan.holds()

        means = self._means
        outcome = Bringer(means.tree, means.reader, means.supply, interrupted).bring(plan.units(), report)
        if outcome.full:
            reason = means.cache.failure() or outcome.reason
            raise OpenshelfError("cache_full", f"{reason[:1].upper()}{reason[1:]}", "See: openshelf status DIR")
        if interrupted():
            return False
        if not outcome.missed:
            self._progress(
                job, before, Counted(before.files - before.cached_files, before.size_bytes - before.cached_bytes)
            )
            self._end(job, State.DONE, plan.remark)
            return True
        if last.files:
            pauses[:] = PAUSES_S
        reason = outcome.reason or "they are being fetched for others"
        online = means.online()
        if online and not pauses:
            raise OpenshelfError("not_all_came", f"{outcome.missed} files did not come: {reason}", "Order it again.")
        self._jobs.update(job.id, message=f"{outcome.missed} files did not come yet: {reason}")
        self._wait(job, pauses.pop(0) if online else OFFLINE_PAUSE_S)
        return False

    def _progress(self, job: Job, before: Standing, counted: Counted, **more: str) -> None:
        self._jobs.update(
            job.id,
            files=before.files,
            size_bytes=before.size_bytes,
            files_done=before.cached_files + counted.files,
            bytes_done=min(before.cached_bytes + counted.size_bytes + counted.under_way, before.size_bytes),
            **more,
        )

    def _end(self, job: Job, state: State, message: str) -> None:
        if self._closing.is_set():
            return  # what went wrong may be due to that: the next worker tries anew
        ended = self._jobs.update(job.id, state=state, ended=self.now_s(), message=message)
        if job.listing:
            (self._jobs.folder / job.listing).unlink(missing_ok=True)
        log.info("Job %d: %s%s.", job.id, state, f" ({ended.message})" if ended.message else "")

    def _stopped(self, job: Job) -> bool:
        return self._closing.is_set() or self._jobs.is_cancelled(job.id)

    def _paused(self) -> bool:
        return rate_at(self._means.bandwidth, self._means.clock()) == 0

    def _wait(self, job: Job, seconds: float) -> None:
        """Wait, but not for a job that is to end."""
        end = time.monotonic() + seconds
        with self._jobs.changed:
            while not self._stopped(job) and (left := end - time.monotonic()) > 0:
                self._jobs.changed.wait(left)


def make_plan(job: Job, means: Means, folder: Path) -> Plan:
    """What the job means now. OpenshelfError when it names what is not listed."""
    if job.listing:
        return ListPlan(folder / job.listing, means.tree, means.cache)
    references = map(parse_reference, job.references)
    selections = [select(means.tree, means.cache.layout, each, job.globs) for each in references]
    return ReleasePlan(selections, means.tree, means.cache)
