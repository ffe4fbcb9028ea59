"""What whoever answers for a mount must be able to do: tell its state, and end it.

Usually the supervisor does both; a worker whose supervisor was killed does them in its place.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mountd.kernel.holders import holders_of
from mountd.kernel.mounting import MountBusy, mounted_at, unmount, unmount_below
from mountd.shared_state import Counter, SharedState
from openshelf.errors import UsageError

_CONNECTIONS = Path("/sys/fs/fuse/connections")
_NAMED = 5
"""Holders named in a message; more are counted."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What does not change during the life of a mount."""

    mountpoint: Path
    cache: Path
    catalog: str
    transport: str
    passthrough: bool
    passthrough_reason: str
    """Why files are served by the daemon instead; empty with passthrough."""
    started_at: float
    """Monotonic seconds: the same for every process until the host is booted anew, whatever is done to its clock."""


def status(
    identity: Identity, state: SharedState, *, supervisor_pid: int | None, worker_pid: int | None
) -> dict[str, Any]:
    """The state of a mount for ``openshelf status``; counters go on over restarts of the worker."""
    facts = state.facts()
    beat_pid, beat_ns = state.last_beat()
    alive = worker_pid is not None and beat_pid == worker_pid
    return {
        **facts.get("more", {}),  # first: what the data side counts never hides a field of ours
        "mountpoint": str(identity.mountpoint),
        "cache": str(identity.cache),
        "catalog": identity.catalog,
        "supervisor_pid": supervisor_pid,
        "worker_pid": worker_pid,
        "transport": identity.transport,
        "passthrough": identity.passthrough,
        "passthrough_reason": identity.passthrough_reason,
        "uptime_s": round(time.monotonic() - identity.started_at, 1),
        "restarts": state.total(Counter.RESTARTS),
        "takeovers": state.total(Counter.TAKEOVERS),
        "worker_silent_s": round((time.monotonic_ns() - beat_ns) / 1e9, 1) if alive else None,
        "waiting": waiting_requests(identity.mountpoint),
        "requests": state.total(Counter.REQUESTS),
        "lookups": state.total(Counter.LOOKUPS),
        "opens_passthrough": state.total(Counter.OPENS_PASSTHROUGH),
        "opens_served": state.total(Counter.OPENS_SERVED),
        "reads_served": state.total(Counter.READS_SERVED),
        "bytes_served": state.total(Counter.BYTES_SERVED),
        "read_errors": state.total(Counter.READ_ERRORS),
        "resent": state.total(Counter.RESENT),
        "cache_bytes": facts.get("cache_bytes", 0),
        "cache_limit_bytes": facts.get("cache_limit_bytes", 0),
        "feed_epoch": facts.get("feed_epoch", 0),
        "feed_serial": facts.get("feed_serial", 0),
        "stale": facts.get("stale", False),
        "online": facts.get("online", False),
        "reason": facts.get("reason", ""),
        "releases": facts.get("releases", 0),
        "open_files": facts.get("open_files", 0),
        "worker_anonymous_bytes": facts.get("worker_anonymous_bytes", 0),
        "memory_limit_bytes": facts.get("memory_limit_bytes", 0),
    }


def waiting_requests(mountpoint: Path) -> int | None:
    """Requests that the kernel has queued or handed out and that are not answered yet (``waiting`` of fusectl); None
    where that file system is not mounted."""
    present = mounted_at(mountpoint)
    if present is None:
        return None
    try:
        return int((_CONNECTIONS / present.device.partition(":")[2] / "waiting").read_text())
    except (OSError, ValueError):
        return None


def end(mountpoint: Path, *, lazy: bool) -> None:
    """Unmount, what is mounted below first. Raises MountBusy naming who keeps it busy, MountError."""
    if mounted_at(mountpoint) is None:
        return
    try:
        unmount_below(mountpoint, lazy=lazy)
        unmount(mountpoint, lazy=lazy)
    except MountBusy as error:
        holders = holders_of(mountpoint)
        shown = ", ".join(map(str, holders[:_NAMED]))
        if len(holders) > _NAMED:
            shown += f" and {len(holders) - _NAMED} more"
        raise MountBusy(
            "mount_busy",
            f"{mountpoint} is in use" + (f" by {shown}" if shown else " in another mount namespace"),
            f"End what uses it, or: openshelf umount {mountpoint} --lazy (open files go on)",
        ) from error


def handle_command(
    request: Mapping[str, Any],
    identity: Identity,
    state: SharedState,
    *,
    supervisor_pid: int | None,
    worker_pid: int | None,
    upgrade: Callable[[str], None],
) -> dict[str, Any]:
    """Answer one request of the control socket. ``upgrade`` is given the interpreter to go on with."""
    match request.get("command"):
        case "status":
            return status(identity, state, supervisor_pid=supervisor_pid, worker_pid=worker_pid)
        case "unmount":
            end(identity.mountpoint, lazy=bool(request.get("lazy")))
            return {"unmounted": str(identity.mountpoint), "pids": [supervisor_pid or os.getpid()]}
        case "upgrade":
            upgrade(str(request.get("python") or sys.executable))
            return {"upgrading": str(identity.mountpoint), "takeovers": state.total(Counter.TAKEOVERS)}
        case other:
            raise UsageError("unknown_command", f"The daemon knows no command {other!r}", "Is it of an older version?")
