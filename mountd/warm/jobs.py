"""The jobs of one cache, kept in ``<cache>/warm/jobs.json`` so that the next worker, or the next mount, goes on."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.warm")

FINISHED_KEPT = 50


class State(StrEnum):
    """Where a job stands: waiting → running → one of the others."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be brought, and how far it is. Times are seconds since 1970; 0: not yet.

    ``references`` and ``globs`` say what, or ``listing`` names an access list in the jobs' folder. ``at`` is what was
    asked for, ``due`` when that is.
    """

    id: int
    references: tuple[str, ...]
    globs: tuple[str, ...] = ()
    listing: str = ""
    at: str = ""
    due: float = 0.0
    ordered: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    state: State = State.WAITING
    files: int = 0
    size_bytes: int = 0
    files_done: int = 0
    bytes_done: int = 0
    message: str = ""

    @property
    def ended_well(self) -> bool:
        """Whether all of it is here."""
        return self.state is State.DONE

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state not in (State.WAITING, State.RUNNING)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Job:
        """A job from what :func:`dataclasses.asdict` made of it; ValueError, TypeError or KeyError."""
        return cls(
            **{
                **given,
                "references": tuple(given["references"]),
                "globs": tuple(given["globs"]),
                "state": State(given["state"]),
            }
        )


class Jobs:
    """The jobs by number. Thread-safe. Every change of a state is on disk before anybody is told of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed = threading.Condition()
        self._path = folder / "jobs.json"
        self._next, self._jobs = self._load()
        self._cancelled: set[int] = set()

    def _load(self) -> tuple[int, dict[int, Job]]:
        try:
            stored = json.loads(self._path.read_bytes())
            jobs = [Job.from_json(each) for each in stored["jobs"]]
            return int(stored["next"]), {job.id: job for job in jobs}
        except FileNotFoundError:
            return 1, {}
        except (ValueError, TypeError, KeyError) as error:
            log.warning("The list of jobs %s is damaged (%s) and is begun anew.", self._path, error)
            return 1, {}

    def _store(self) -> None:
        """Write the list. The lock is held. OSError."""
        over = sorted((job for job in self._jobs.values() if job.over), key=lambda job: job.ended)
        for job in over[:-FINISHED_KEPT]:
            del self._jobs[job.id]
        self.folder.mkdir(mode=0o700, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        with fresh.open("w") as sink:
            json.dump({"next": self._next, "jobs": [dataclasses.asdict(job) for job in self._jobs.values()]}, sink)
            sink.flush()
            os.fsync(sink.fileno())
        fresh.rename(self._path)

    def add(self, job: Job) -> Job:
        """Enter a job under a number of its own. OpenshelfError when the cache's disk does not take it."""
        with self.changed:
            entered = dataclasses.replace(job, id=self._next)
            self._jobs[entered.id] = entered
            self._next += 1
            try:
                self._store()
            except OSError as error:
                del self._jobs[entered.id]
                raise OpenshelfError(
                    "job_not_kept",
                    f"The job cannot be kept in {self.folder}: {error.strerror}",
                    "Free space on the cache's disk.",
                ) from error
            self.changed.notify_all()
            return entered

    def all(self) -> list[Job]:
        """Every job in order of number."""
        with self.changed:
            return [self._jobs[number] for number in sorted(self._jobs)]

    def get(self, number: int) -> Job:
        """One job. OpenshelfError when there is none of this number."""
        with self.changed:
            job = self._jobs.get(number)
        if job is None:
            raise OpenshelfError("no_job", f"There is no job {number}", "See them with: openshelf warm DIR --list")
        return job

    def update(self, number: int, **changes: Any) -> Job:
        """Change a job. What only counts progress is not written: it is counted anew by who goes on."""
        with self.changed:
            job = self._jobs[number] = dataclasses.replace(self._jobs[number], **changes)
            if "state" in changes or "due" in changes:
                try:
                    self._store()
                except OSError as error:
                    log.error("The list of jobs cannot be written: %s.", error.strerror)
            self.changed.notify_all()
            return job

    def cancel(self, number: int, now: float) -> Job:
        """End a job that is not over: at once when it waits, at its next step when it runs."""
        job = self.get(number)
        with self.changed:
            if job.over:
                raise OpenshelfError("job_over", f"Job {number} is over already ({job.state})")
            self._cancelled.add(number)
            if job.state is State.WAITING:
                return self.update(number, state=State.CANCELLED, ended=now)
            self.changed.notify_all()
            return job

    def is_cancelled(self, number: int) -> bool:
        """Whether somebody wants the job to end."""
        return number in self._cancelled
