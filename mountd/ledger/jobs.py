"""Which job a process belongs to, from its control groups (``/proc/<pid>/cgroup``, cgroups(7)).

A process cannot leave the control group that its launcher put it into, so this is what counts; variables of its
environment, which it can set as it likes, are noted as claimed. Known are the layouts of

- Kubernetes, with both drivers of the kubelet and both versions of control groups:
  ``/kubepods/burstable/pod<uid>/<container>``,
  ``/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<container>.scope``,
  ``/system.slice/containerd.service/kubepods-besteffort-pod<uid>.slice:cri-containerd:<container>``;
- Slurm (cgroup.conf(5)): ``/slurm/uid_<uid>/job_<job>/step_<step>/…`` and
  ``/system.slice/slurmstepd.scope/job_<job>/step_<step>/…``;
- containers of other managers: a scope or folder named by 64 hexadecimal digits;
- systemd: the innermost ``.service`` or ``.scope``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Kind = Literal["kubernetes", "slurm", "container", "systemd", "none", "unknown"]

CLAIMED_VARIABLES = ("SLURM_JOB_ID", "SLURM_STEP_ID", "POD_NAME", "POD_NAMESPACE")
"""What is noted of a process's environment, and nothing else."""
MAX_CLAIM = 128
MAX_NAME = 256

_POD = re.compile(
    r"(?:^|[/-])pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?=[/:]|$)(?:[/:](.*))?"
)
_CONTAINER = re.compile(r"(?:^|[-/:])([0-9a-f]{64})(?=\.scope|/|$)")
_SLURM = re.compile(
    r"^(?:/\.\.)*/(?:slurm[^/]*(?:/uid_\d+)?|system\.slice/(?:[^/]*_)?slurmstepd\.scope)"
    r"/job_(\d+)(?:/step_([A-Za-z0-9_]+))?(?=/|$)"
)
_UNIT = re.compile(r"[^/]+\.(?:service|scope)")
_USER = re.compile(r"user-\d+\.slice")


@dataclass(frozen=True, slots=True)
class Job:
    """A job. ``name`` is the pod's uid, ``<job>.<step>``, the container's id or the unit; empty for none and unknown.

    ``container`` is the id of the container inside a pod. ``claimed`` are pairs of variable and value.
    """

    kind: Kind
    name: str = ""
    container: str | None = None
    claimed: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is sent to the catalog."""
        return {"kind": self.kind, "name": self.name, "container": self.container, "claimed": dict(self.claimed)}

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


UNKNOWN = Job("unknown")
"""The opener cannot be seen from here, or was gone before it could be looked at."""


@lru_cache(maxsize=4096)
def job_of(cgroup: str) -> Job:
    """The job that the text of ``/proc/<pid>/cgroup`` tells; of kind ``none`` for a process outside of any."""
    paths = [line.split(":", 2)[2] for line in cgroup.splitlines() if line.count(":") >= 2]
    for recognise in (_pod, _slurm, _container, _unit):
        for path in paths:
            job = recognise(path)
            if job is not None:
                return job
    return Job("none")


def claims_of(environ: bytes) -> tuple[tuple[str, str], ...]:
    """The claimed variables in the bytes of ``/proc/<pid>/environ``; values that could not be shown are left out."""
    given: Mapping[bytes, bytes] = {
        name: value for name, is_set, value in (item.partition(b"=") for item in environ.split(b"\0")) if is_set
    }
    claimed = []
    for name in CLAIMED_VARIABLES:
        value = given.get(name.encode(), b"")[:MAX_CLAIM].decode("ascii", "replace")
        if value and value.isascii() and value.isprintable():
            claimed.append((name, value))
    return tuple(claimed)


def _of_a_user(path: str) -> bool:
    """Whether a user's own service manager made this group: below it, names can be chosen freely."""
    return path.startswith("/user.slice/")


def _pod(path: str) -> Job | None:
    # The outermost match: inside a pod, a process with rights over its own group may make others of any name.
    found = None if _of_a_user(path) else _POD.search(path)
    if found is None:
        return None
    inside = _CONTAINER.search(found.group(2) or "")
    return Job("kubernetes", found.group(1).replace("_", "-"), inside.group(1) if inside else None)


def _slurm(path: str) -> Job | None:
    found = _SLURM.match(path)
    if found is None:
        return None
    job, step = found.groups()
    return Job("slurm", f"{job}.{step}"[:MAX_NAME] if step else job[:MAX_NAME])


def _container(path: str) -> Job | None:
    found = None if _of_a_user(path) else _CONTAINER.search(path)
    return None if found is None else Job("container", found.group(1))


def _unit(path: str) -> Job | None:
    parts = path.split("/")
    units = [part for part in parts if _UNIT.fullmatch(part)]
    if not units:
        return None
    user = next((part for part in parts if _USER.fullmatch(part)), "")
    name = f"{user}/{units[-1]}" if user else units[-1]
    return Job("systemd", "".join(char if char.isprintable() else "?" for char in name)[:MAX_NAME])
