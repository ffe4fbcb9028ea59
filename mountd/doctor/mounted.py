"""A mount that is there already, and the place for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mountd.doctor.check import Check, Verdict, judge
from mountd.kernel.mounting import READ_AHEAD_KIB, mounted_at, mounts
from mountd.probing import Standing, probe


def checks(mountpoint: Path) -> Iterator[Check]:
    """Everything about the folder ``mountpoint`` (canonical); touches it only in a child of its own."""
    yield _propagation(mountpoint)
    present = mounted_at(mountpoint)
    if present is None:
        return
    found = probe(mountpoint)
    fix = "; ".join(found.reasons[:2])
    said = found.standing.name.lower().replace("_", " ")
    otherwise: Verdict = "warn" if found.standing is Standing.DEGRADED else "fail"
    yield judge("mount", found.standing is Standing.SERVES, said, fix, otherwise=otherwise)
    try:
        kib = int(Path(f"/sys/class/bdi/{present.device}/read_ahead_kb").read_text())
    except (OSError, ValueError):
        yield Check("read-ahead", "warn", "unknown: /sys is not readable", "Mount /sys in the container.")
    else:
        fix = f"echo {READ_AHEAD_KIB} > /sys/class/bdi/{present.device}/read_ahead_kb: served reads are then large."
        yield judge("read-ahead", kib >= READ_AHEAD_KIB, f"{kib} KiB", fix)
    if found.state is not None:
        yield _protection(found.state)


def _propagation(mountpoint: Path) -> Check:
    above = [each for each in mounts() if each.path == mountpoint.parent or each.path in mountpoint.parent.parents]
    holder = max(above, key=lambda each: len(str(each.path)), default=None)
    shared = holder is not None and holder.shared
    name = holder.path if holder is not None else mountpoint.parent
    fix = f"mount --make-rshared {name}: else containers that run already do not see the mount (rslave on their side)."
    return judge("propagation", shared, f"{name} is {'shared' if shared else 'private'}", fix)


def _protection(state: dict[str, Any]) -> Check:
    try:
        score = int(Path(f"/proc/{state['supervisor_pid']}/oom_score_adj").read_text())
    except (OSError, ValueError):
        return Check(
            "memory shortage", "warn", "the supervisor cannot be looked at", "Run openshelf doctor as its owner."
        )
    fix = "Start it as root, or with OOMScoreAdjust=-900: else the kernel may take the supervisor for lack of memory."
    return judge("memory shortage", score <= -500, f"oom_score_adj of the supervisor {score}", fix)
