"""The supervisor's child: forked, watched through a pidfd, replaced; and the worker that a former supervisor left."""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mountd.shared_state import SharedState

_logger = logging.getLogger(__name__)

_EX_SOFTWARE = 70
"""``EX_SOFTWARE`` of sysexits.h."""
_STARTED_FIELD = 19
"""``starttime`` of proc_pid_stat(5), counted from the field behind the command."""
_THREADS_FIELD = 17
"""``num_threads``, counted in the same way."""


@dataclass(frozen=True, slots=True)
class Child:
    """A worker; ``descriptor`` is its pidfd, readable once it has ended."""

    pid: int
    descriptor: int

    @classmethod
    def fork(cls, state: SharedState, work: Callable[[], int]) -> Child:
        """Run ``work`` in a child, which ends with the code it returns; the state knows it as the present worker."""
        pid = os.fork()
        if pid == 0:
            code = _EX_SOFTWARE
            try:
                state.enlist(os.getpid(), started(os.getpid()))
                code = work()
            except BaseException:  # nothing may return into the supervisor's code
                _logger.exception("the worker failed")
            finally:
                logging.shutdown()
                os._exit(code)
        state.enlist(pid, started(pid))  # by both: either may be killed before it comes to it
        return cls(pid, os.pidfd_open(pid))

    def kill(self) -> None:
        """End it at once, and wait for its end."""
        signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
        self.reap()

    def reap(self) -> int:
        """Its exit code, or the signal that killed it as a negative number; waits for the end."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(status)


def started(pid: int) -> int:
    """When a process was started, in clock ticks since boot; 0 when there is none. A pid alone may be another's."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[_STARTED_FIELD])


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or ended with all its threads and only waits for its parent to take note (which in a
    container may never happen)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return True
    fields = text.rpartition(")")[2].split()
    return fields[0] in "ZX" and int(fields[_THREADS_FIELD]) <= 1


def end_former_worker(state: SharedState) -> None:
    """End the worker of a former supervisor, if it lives: there is never more than one. Waits until it is gone."""
    pid, since = state.enlisted()
    if pid in (0, os.getpid()) or since == 0 or started(pid) != since:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while not poll.poll(10_000):
            _logger.warning("the former worker %d does not end; its disk may hang", pid)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has ended meanwhile; or it was another process's child, which reaps it
    finally:
        os.close(descriptor)
