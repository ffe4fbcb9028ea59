"""Whether a mount serves, found out in bounded time even when it hangs.

Whatever may wait for the file system is done by a child that is left alone when it does not answer: a process in an
uninterruptible wait ends for nobody, so nobody waits for it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from mountd import control
from mountd.children import started
from mountd.kernel.mounting import canonical, mounted_at
from openshelf.errors import OpenshelfError

TOUCH_WITHIN_S = 1.0
LEAST_TOUCH_S = 0.5
"""However little time is left: on a host this busy a shorter wait would call every mount hung."""
ASK_WITHIN_S = 0.4
_SILENT_S = 5.0
"""A worker tells its state twice a second; after so long without a word something is wrong."""


class Standing(IntEnum):
    """How a mount stands; the values are the exit codes of ``openshelf probe``."""

    SERVES = 0
    NOT_MOUNTED = 1
    HUNG = 3
    DEGRADED = 4
    BROKEN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe found. ``answered_ms``: how long the file system took; None when it did not answer."""

    mountpoint: Path
    standing: Standing
    reasons: tuple[str, ...] = ()
    answered_ms: float | None = None
    state: dict[str, Any] | None = field(default=None, repr=False)


def time_left(within_s: float) -> float:
    """How long to wait for the file system so that this process, its start included, ends ``within_s`` after it was
    started."""
    ran_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started(os.getpid()) / os.sysconf("SC_CLK_TCK")
    return min(TOUCH_WITHIN_S, max(LEAST_TOUCH_S, within_s - ran_s))


def probe(directory: Path, touch_within_s: float = TOUCH_WITHIN_S) -> Finding:
    """Look at the mount at ``directory``: its root is touched, and its daemon asked. Takes at most about half a second
    more than ``touch_within_s``."""
    child = _Child.start(directory)
    try:
        place = child.next_word(ASK_WITHIN_S)
        if place is None:
            path = Path(os.path.normpath(directory.absolute()))
            return Finding(path, Standing.HUNG, (f"{path} cannot be looked at: a mount above it hangs",))
        mountpoint = Path(place["path"])
        present = mounted_at(mountpoint)
        state, trouble = _ask(mountpoint)
        if present is None or not present.type.startswith("fuse"):
            what = "nothing is mounted there" if present is None else f"a file system of type {present.type} is there"
            return Finding(mountpoint, Standing.NOT_MOUNTED, (what,), state=state)
        touched = child.next_word(touch_within_s)
    finally:
        child.abandon()
    if touched is None:
        reason = f"the file system does not answer within {touch_within_s:.1f} s"
        return Finding(mountpoint, Standing.HUNG, (reason, *trouble, *_hints(state)), state=state)
    if touched["error"]:
        reason = f"the file system answers: {os.strerror(touched['error'])}"
        return Finding(mountpoint, Standing.BROKEN, (reason, *trouble), touched["ms"], state)
    reasons = (*trouble, *_hints(state))
    return Finding(mountpoint, Standing.DEGRADED if reasons else Standing.SERVES, reasons, touched["ms"], state)


def _ask(mountpoint: Path) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The daemon's state, or why there is none."""
    try:
        return control.ask_within(ASK_WITHIN_S, mountpoint, "status"), ()
    except control.NotMounted as error:
        missing = "no daemon answers for it" if error.code == "not_mounted" else error.message
        return None, (missing,)
    except OpenshelfError:
        return None, ("its supervisor does not answer (stopped, or busy with an upgrade)",)


def _hints(state: dict[str, Any] | None) -> tuple[str, ...]:
    """What the daemon's state says is not as it should be."""
    if state is None:
        return ()
    found = []
    if state["supervisor_pid"] is None:
        found.append("its supervisor is gone; the worker serves on")
    if state["worker_silent_s"] is None:
        found.append("its worker is being replaced")
    elif state["worker_silent_s"] > _SILENT_S:
        found.append(f"its worker has been silent for {state['worker_silent_s']:.0f} s")
    if not state["online"]:
        found.append(f"offline: {state['reason'] or 'the catalog cannot be reached'}")
    elif state["reason"]:
        found.append(str(state["reason"]))
    if state["stale"]:
        found.append("the feed is stale")
    return tuple(found)


class _Child:
    """A process that touches a mount and may never come back."""

    def __init__(self, pid: int, reading: int) -> None:
        self._pid = pid
        self._reading = reading
        self._words = b""

    @classmethod
    def start(cls, directory: Path) -> _Child:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _touch(directory, writing)
            finally:
                os._exit(0)
        os.close(writing)
        return cls(pid, reading)

    def next_word(self, within_s: float) -> dict[str, Any] | None:
        """What it says next; None when it is silent for too long."""
        deadline = time.monotonic() + within_s
        while b"\n" not in self._words:
            poll = select.poll()
            poll.register(self._reading, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            part = os.read(self._reading, 4096)
            if not part:
                return None
            self._words += part
        word, _, self._words = self._words.partition(b"\n")
        return dict(json.loads(word))

    def abandon(self) -> None:
        """Send it the end, and wait for nothing."""
        os.close(self._reading)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, os.WNOHANG)


def _touch(directory: Path, writing: int) -> None:
    """The child: say where the mount is, then ask it something that no cache of the kernel answers."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # whoever waits for the end of our output must not wait for this process
        os.dup2(nothing, standard)
    mountpoint = canonical(directory)
    os.write(writing, json.dumps({"path": str(mountpoint)}).encode() + b"\n")
    started = time.monotonic()
    code = 0
    try:
        os.statvfs(mountpoint)
        mountpoint.stat()
        with os.scandir(mountpoint) as entries:
            next(entries, None)
    except OSError as error:
        code = error.errno or 1
    said = {"error": code, "ms": round((time.monotonic() - started) * 1000, 1)}
    os.write(writing, json.dumps(said).encode() + b"\n")
