"""Who opened a file: a process looked at the moment it opens, because it may be gone a moment later."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from mountd.ledger.jobs import UNKNOWN, Job, claims_of, job_of

KEPT = 1024
"""Processes remembered; each takes a descriptor."""
LOOK_AGAIN_S = 1.0
"""A remembered process is looked at again after this: it may have been moved, or another may have its number."""
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode number of the host's pid namespace (``PROC_PID_INIT_INO`` of linux/proc_ns.h)."""
_MAX_ENVIRON = 1 << 20
_MAX_CGROUP = 64 << 10


def hostpid_visible() -> bool:
    """Whether every process of this host can be seen from here: false in a container without the host's pid namespace,
    where the access ledger cannot tell who opened a file outside of it."""
    return Path("/proc/self/ns/pid").stat().st_ino == INITIAL_PID_NAMESPACE


@dataclass(slots=True)
class _Known:
    """A process: its folder in /proc (which stays its own when the number is given to another), and what it is."""

    folder: int
    cgroup: str
    job: Job
    looked_at: float


class Processes:
    """The jobs of processes and threads by their number. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}

    def job(self, pid: int) -> Job:
        """The job of a process that is at work now; :data:`UNKNOWN` when it cannot be seen.

        About 0.2 µs for one that was looked at lately, else as long as it takes to read a file or two of /proc.
        """
        if pid <= 0:
            return UNKNOWN
        known = self._known.get(pid)
        if known is not None and time.monotonic() - known.looked_at < LOOK_AGAIN_S:
            return known.job
        with self._lock:
            return self._look(pid)

    def _look(self, pid: int) -> Job:
        known = self._known.get(pid)
        if known is not None:
            try:
                cgroup = _read(known.folder, "cgroup", _MAX_CGROUP).decode("utf-8", "replace")
            except OSError:
                self._forget(pid)  # it is gone, and its number is another's now
            else:
                if cgroup != known.cgroup:
                    known.cgroup, known.job = cgroup, _with_claims(job_of(cgroup), known.job.claimed)
                known.looked_at = time.monotonic()
                return known.job
        return self._meet(pid)

    def _meet(self, pid: int) -> Job:
        try:
            folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return UNKNOWN
        try:
            cgroup = _read(folder, "cgroup", _MAX_CGROUP).decode("utf-8", "replace")
        except OSError:
            os.close(folder)
            return UNKNOWN
        try:
            claimed = claims_of(_read(folder, "environ", _MAX_ENVIRON))
        except OSError:
            claimed = ()  # of another user, or a kernel thread
        job = _with_claims(job_of(cgroup), claimed)
        while len(self._known) >= KEPT:
            self._forget(next(iter(self._known)))
        self._known[pid] = _Known(folder, cgroup, job, time.monotonic())
        return job

    def _forget(self, pid: int) -> None:
        os.close(self._known.pop(pid).folder)

    def close(self) -> None:
        """Forget all."""
        with self._lock:
            for pid in list(self._known):
                self._forget(pid)


def _with_claims(job: Job, claimed: tuple[tuple[str, str], ...]) -> Job:
    return Job(job.kind, job.name, job.container, claimed) if claimed else job


def _read(folder: int, name: str, most: int) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        parts = []
        while most > 0 and (part := os.read(descriptor, min(most, 64 << 10))):
            parts.append(part)
            most -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
