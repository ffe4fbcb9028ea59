"""What a worker does beside serving: tell its state, keep to its memory, and step in for a supervisor that is gone."""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mountd import control
from mountd.duties import Identity, handle_command
from mountd.handover import HandoverError, Held, Program
from mountd.kernel.mounting import mounted_at
from mountd.memory import AnonymousMemory, Memory, give_back, standing
from mountd.shared_state import SharedState
from mountd.systemd import ServiceManager
from openshelf.errors import OpenshelfError

_logger = logging.getLogger(__name__)

EXIT_MEMORY = 75
"""``EX_TEMPFAIL`` of sysexits.h: the worker used more memory than it may."""
_PUBLISH_EVERY_MS = 500
_SHRINK_EVERY_S = 5.0
_CHECK_AGAIN_S = 60.0
"""How long a worker without supervisor waits before it tries again to step in."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a worker stands. ``replaceable``: whether another worker could go on (not with libfuse)."""

    identity: Identity
    state: SharedState
    devices: tuple[int, ...]
    control_socket: socket.socket | None
    work_socket: socket.socket | None
    program: Program | None
    memory_bytes: int
    replaceable: bool


class StandBy:
    """The loop beside the serving threads. ``facts`` tells the state, ``shrink`` lets go what can be made again."""

    def __init__(
        self, around: Surroundings, facts: Callable[[], Mapping[str, Any]], shrink: Callable[[], None]
    ) -> None:
        self._around = around
        self._facts = facts
        self._shrink = shrink
        self._orphan = False
        self._step_in_at: float | None = None
        self._step_in_with = ""
        self._shrunk_at = time.monotonic()
        self._memory = AnonymousMemory(os.getpid())
        self._unreported = ""

    def run(self, supervisor: int, ended: int) -> None:
        """Go on until the event descriptor ``ended`` is raised; ``supervisor`` is the pidfd of the supervisor."""
        around = self._around
        poll = select.poll()
        poll.register(supervisor, select.POLLIN)
        poll.register(ended, select.POLLIN)
        while True:
            self._report()
            self._keep_to_memory()
            ready = {descriptor for descriptor, _ in poll.poll(_PUBLISH_EVERY_MS)}
            if ended in ready:
                break
            if supervisor in ready:
                poll.unregister(supervisor)
                self._be_orphaned()
                if self._orphan and around.control_socket is not None:
                    poll.register(around.control_socket, select.POLLIN)
            if around.control_socket is not None and around.control_socket.fileno() in ready:
                control.serve_one(around.control_socket, self._command)
            self._step_in()
        if self._orphan:
            control.forget(around.identity.mountpoint)
        self._memory.close()

    def _report(self) -> None:
        state = self._around.state
        state.beat(os.getpid(), time.monotonic_ns())
        try:
            memory = {
                "worker_anonymous_bytes": self._memory.used_bytes(),
                "memory_limit_bytes": self._around.memory_bytes,
            }
            state.publish({**self._facts(), **memory})
        except (OpenshelfError, OSError) as error:  # reads go on, whatever cannot be found out about them
            reason = error.line() if isinstance(error, OpenshelfError) else str(error)
            if reason != self._unreported:
                _logger.error("the state cannot be reported: %s", reason)
            self._unreported = reason
        else:
            self._unreported = ""

    def _keep_to_memory(self) -> None:
        used = self._memory.used_bytes()
        found = standing(used, self._around.memory_bytes)
        now = time.monotonic()
        if found is Memory.FINE or now < self._shrunk_at + _SHRINK_EVERY_S:
            return
        self._shrunk_at = now
        self._shrink()
        give_back()
        left = self._memory.used_bytes()
        _logger.info("memory: %d MiB in use, %d MiB after letting go what can be made again", used >> 20, left >> 20)
        if standing(left, self._around.memory_bytes) is Memory.OVER and self._around.replaceable:
            _logger.warning("memory: %d MiB are more than the limit; the next worker goes on", left >> 20)
            logging.shutdown()
            os._exit(EXIT_MEMORY)  # nothing is closed in order: requests in progress must stay unanswered

    # Without a supervisor

    def _be_orphaned(self) -> None:
        _logger.warning("the supervisor is gone; this worker serves on and answers in its place")
        # Lazily unmounted, nobody can ask any more, and the folder may be another's.
        self._orphan = self._around.control_socket is not None and self._is_mounted()
        if self._orphan and not ServiceManager.from_environment(os.environ).present:
            self._step_in_at = time.monotonic()  # else the service manager starts the next one
            self._step_in_with = sys.executable

    def _step_in(self) -> None:
        """Become the supervisor: in the place of this worker, with all its descriptors. The next worker is forked by
        the new program, and the kernel sends again what was under way here."""
        around = self._around
        if self._step_in_at is None or time.monotonic() < self._step_in_at:
            return
        self._step_in_at = time.monotonic() + _CHECK_AGAIN_S
        if around.program is None or not around.replaceable or not self._is_mounted():
            self._step_in_at = None
            return
        try:
            around.program.check(self._step_in_with)
            _logger.info("this worker becomes the supervisor")
            around.program.become(self._step_in_with, self._held())
        except HandoverError as error:
            _logger.error("this worker cannot become the supervisor: %s", error.line())
        except OSError as error:
            _logger.error("this worker cannot become the supervisor: %s", error.strerror)

    def _held(self) -> Held:
        around = self._around
        control_fd = around.control_socket.fileno() if around.control_socket is not None else None
        work_fd = around.work_socket.fileno() if around.work_socket is not None else None
        return Held(around.devices, around.state.descriptor, control_fd, work_fd)

    def _is_mounted(self) -> bool:
        """Whether the mount still has its place; without descriptors nobody can tell, and it most likely has."""
        try:
            return mounted_at(self._around.identity.mountpoint) is not None
        except OSError as error:
            _logger.error("the mount table cannot be read: %s", error.strerror)
            return True

    def _prepare_upgrade(self, python: str) -> None:
        if self._around.program is None or not self._around.replaceable:
            raise HandoverError("no_upgrade", "This mount cannot be taken over in place", "Unmount and mount again.")
        self._around.program.check(python)
        self._step_in_with = python
        self._step_in_at = time.monotonic()

    def _command(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return handle_command(
            request,
            self._around.identity,
            self._around.state,
            supervisor_pid=None,
            worker_pid=os.getpid(),
            upgrade=self._prepare_upgrade,
        )
