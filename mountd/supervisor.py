"""The supervisor: holds the mount and the kernel's descriptors, so that a worker may die without anyone noticing.

It does as little as it can: open, mount, answer INIT, fork a worker, replace it when it dies, answer the control
socket, unmount. It is single-threaded, so that forking is safe at any time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mountd import control, worker
from mountd.children import Child, end_former_worker
from mountd.duties import Identity, end, handle_command
from mountd.handover import HandoverError, Held, Program
from mountd.interfaces import MountConfig
from mountd.kernel.holders import holders_of
from mountd.kernel.mounting import FILESYSTEM_TYPE, MountBusy, detach, mounted_at, prepare, refuse_nesting
from mountd.opening import Line, open_line
from mountd.orders import Transport
from mountd.shared_state import SLOTS, Counter, SharedState
from mountd.systemd import ServiceManager

_logger = logging.getLogger(__name__)

Report = Callable[[Mapping[str, Any]], None]
"""Told once how the start ended: the status, or {"error": {code, message, hint}}."""

FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 5.0
OOM_SCORE_ADJ = "-900"
HUNG_AFTER_S = 30.0
"""A worker that has given no sign of life for so long (it does twice a second) is ended and replaced."""
LEAVE_SIGNAL = signal.SIGUSR2
"""Asks for the end without unmounting: the service manager keeps the descriptors for the next start."""
_STOP_WITHIN_S = 10.0
"""After SIGTERM, how long open files are still served when the mount is busy."""
_TICK_MS = 100
_IDLE_TICK_MS = 10_000


class Supervisor:
    """One mount from start to end. ``build`` makes the data side (called in the worker); ``preload`` imports it.

    ``held``: what a former supervisor handed over; ``program``: how to start another one in place of this.
    """

    def __init__(
        self,
        config: MountConfig,
        build: worker.Build,
        report: Report,
        *,
        transport: Transport = "auto",
        passthrough: bool = True,
        resend: bool = True,
        preload: Callable[[], None] = lambda: None,
        held: Held | None = None,
        program: Program | None = None,
        manager: ServiceManager | None = None,
    ) -> None:
        self._config = config
        self._build = build
        self._report: Report | None = report
        self._transport = transport
        self._passthrough = passthrough
        self._resend = resend
        self._preload = preload
        self._held = held
        self._program = program
        self._manager = manager or ServiceManager(None)
        self._first = True  # nobody has served this mount yet
        self._devices: tuple[int, ...] = ()
        self._worker: Child | None = None
        self._next_fork = 0.0
        self._back_off_s = 0.0
        self._requests_at_fork = 0
        self._stop_by: float | None = None
        self._leaving = False
        self._upgrade_with = ""
        self._failure: Mapping[str, Any] | None = None
        self._oom_score_adj = "0"
        self._listener: socket.socket | None = None
        self._work_listener: socket.socket | None = None
        self._state: SharedState
        self._identity: Identity

    def run(self) -> int:
        """Mount or take over, serve until unmounted or told to stop; the exit code. Raises OpenshelfError."""
        refuse_nesting(self._config.mountpoint, self._config.cache)
        try:
            if self._held is None or not self._take_over(self._held):
                self._start_anew()
            self._loop()
        finally:
            self._clean_up()
        if self._failure is not None and self._report is not None:
            self._report(self._failure)
            return 1
        return 0

    # Start and end

    def _start_anew(self) -> None:
        mountpoint = self._config.mountpoint
        prepare(mountpoint)
        self._listen()
        self._state = SharedState()
        self._oom_score_adj = Path("/proc/self/oom_score_adj").read_text().strip()
        self._protect()
        line = open_line(
            mountpoint, self._config.cache, self._transport, passthrough=self._passthrough, resend=self._resend
        )
        self._hold(line, time.monotonic())
        self._state.keep(
            {
                "mount": _digest(mountpoint),
                "transport": line.transport,
                "resend": line.resend,
                "reason": line.reason[:1000],
                "started_at": self._identity.started_at,
                "oom_score_adj": self._oom_score_adj,
            }
        )
        self._preload()
        if self._devices:
            self._manager.store(self._all_held().names())

    def _take_over(self, held: Held) -> bool:
        """Go on where a former supervisor stopped; False, and all let go, when what it left is of no use."""
        mountpoint = self._config.mountpoint
        try:
            state = SharedState(held.state)
        except ValueError as error:
            _logger.warning("the mount cannot be taken over: %s; it is made anew", error)
            present = mounted_at(mountpoint)
            if present is not None and present.type == FILESYSTEM_TYPE:
                detach(mountpoint)  # asking it whether it is dead would wait for an answer that nobody gives
            return self._let_go(held)
        kept = state.kept()
        if kept.get("mount") != _digest(mountpoint) or mounted_at(mountpoint) is None:
            _logger.warning("what was handed over belongs to another mount, or to one that has ended")
            return self._let_go(held)
        self._state = state
        self._oom_score_adj = kept["oom_score_adj"]
        self._protect()
        self._hold(Line(kept["transport"], held.devices, kept["resend"], kept["reason"]), kept["started_at"])
        self._preload()
        end_former_worker(state)
        self._first = False
        state.counters(SLOTS)[Counter.TAKEOVERS] += 1
        self._listen_on(held)
        _logger.info("the mount %s was taken over", mountpoint)
        return True

    def _let_go(self, held: Held) -> bool:
        for listener in (held.listener, held.work_listener):
            if listener is not None:  # the service manager may hold it a moment longer: nobody is to be heard there
                with socket.socket(fileno=os.dup(listener)) as ours:
                    ours.shutdown(socket.SHUT_RDWR)
        self._manager.forget(held.names())
        held.close()
        return False

    def _hold(self, line: Line, started_at: float) -> None:
        self._devices = line.devices
        self._resend = line.resend
        self._identity = Identity(
            mountpoint=self._config.mountpoint,
            cache=self._config.cache,
            catalog=self._config.catalog,
            transport=line.transport,
            passthrough=not line.reason,
            passthrough_reason=line.reason,
            started_at=started_at,
        )

    def _all_held(self) -> Held:
        """The descriptors of this mount; the sockets only while they are found by their names."""
        control_fd = self._listener.fileno() if self._listener is not None else None
        work_fd = self._work_listener.fileno() if self._work_listener is not None else None
        return Held(self._devices, self._state.descriptor, control_fd, work_fd)

    def _protect(self) -> None:
        """Be the last process that the kernel kills for memory (root only)."""
        try:
            Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
        except PermissionError:
            _logger.debug("oom_score_adj stays %s: lowering it needs CAP_SYS_RESOURCE", self._oom_score_adj)

    def _listen(self) -> None:
        self._listener = control.listen(self._config.mountpoint)
        self._work_listener = control.listen_for_work(self._config.mountpoint)

    def _listen_on(self, held: Held) -> None:
        """Go on with the sockets handed over; new ones where their names are gone."""
        if held.listener is not None and held.work_listener is not None:
            self._listener = socket.socket(fileno=held.listener)
            self._work_listener = socket.socket(fileno=held.work_listener)
            if control.socket_path(self._config.mountpoint).is_socket():
                return
            self._listener.close()
            self._work_listener.close()
        self._listen()

    def _clean_up(self) -> None:
        if self._worker is not None:
            self._kill_worker()
        if self._leaving:
            return
        if self._devices:
            if mounted_at(self._config.mountpoint) is not None:
                detach(self._config.mountpoint)
            self._manager.forget(self._all_held().names())
        for device in self._devices:
            os.close(device)
        self._devices = ()
        self._stop_listening()

    def _stop_listening(self) -> None:
        """Free the sockets' names, once: after that it may be another daemon's."""
        if self._listener is not None and self._work_listener is not None:
            control.forget(self._config.mountpoint)
            self._listener.close()
            self._work_listener.close()
        self._listener = self._work_listener = None

    # The loop

    def _loop(self) -> None:
        wake, waker = socket.socketpair()
        wake.setblocking(False)
        waker.setblocking(False)
        with wake, waker:
            signal.set_wakeup_fd(waker.fileno())
            for number in (signal.SIGTERM, signal.SIGINT, LEAVE_SIGNAL):
                signal.signal(number, lambda *_: None)
            try:
                while self._step(wake):
                    pass
            finally:
                signal.set_wakeup_fd(-1)

    def _step(self, wake: socket.socket) -> bool:
        """Wait for one happening and deal with it; False when the mount has ended."""
        now = time.monotonic()
        if self._worker is None and now >= self._next_fork:
            self._fork()
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        if self._worker is not None:
            poll.register(self._worker.descriptor, select.POLLIN)
        if self._devices:
            poll.register(self._devices[0], 0)  # POLLERR: unmounted, by whomever
        ready = dict(poll.poll(self._timeout_ms(now)))
        if wake.fileno() in ready and self._heed(wake.recv(64)):
            return False
        if self._listener is not None and self._listener.fileno() in ready:
            control.serve_one(self._listener, self._command)
            if mounted_at(self._config.mountpoint) is None and self._report is None:
                self._stop_listening()  # lazily unmounted: the folder may be mounted anew while open files go on
            self._upgrade()
        unmounted = bool(self._devices) and self._devices[0] in ready
        if self._worker is not None and self._worker.descriptor in ready:
            unmounted |= self._bury()
        self._end_if_hung()
        self._announce()
        self._manager.alive()
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            _logger.warning("files were still open when the time to stop was over")
            return False
        if unmounted:
            self._wait_for_worker()
        return not unmounted and self._failure is None

    def _timeout_ms(self, now: float) -> int:
        if self._worker is None:
            return max(0, int((self._next_fork - now) * 1000)) + 1
        if self._report is not None or self._stop_by is not None:
            return _TICK_MS
        watchdog_s = self._manager.watchdog_s
        return _IDLE_TICK_MS if watchdog_s is None else max(1, min(_IDLE_TICK_MS, int(watchdog_s * 1000 / 3)))

    def _heed(self, numbers: bytes) -> bool:
        """Act on signals; True when to end at once, with the mount left to the service manager."""
        if LEAVE_SIGNAL in numbers and self._manager.present and self._devices:
            self._manager.stopping("The mount waits for the next start")
            self._leaving = True
            return True
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._begin_stop()
        return False

    def _announce(self) -> None:
        """Report once that the mount answers."""
        if self._report is None or self._worker is None or self._state.last_beat()[0] != self._worker.pid:
            return
        if not self._state.facts().get("ready"):
            return
        if self._identity.transport == "libfuse" and mounted_at(self._config.mountpoint) is None:
            return
        state = self._command({"command": "status"})
        self._report(state)
        self._report = None
        how = "passthrough" if state["passthrough"] else "served"
        self._manager.ready(f"{state['releases']} releases at {self._config.mountpoint}, {how}")

    def _command(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return handle_command(
            request,
            self._identity,
            self._state,
            supervisor_pid=os.getpid(),
            worker_pid=self._worker.pid if self._worker is not None else None,
            upgrade=self._prepare_upgrade,
        )

    def _begin_stop(self) -> None:
        """SIGTERM, SIGINT: unmount; with files open, take the name away and serve them a little longer."""
        if self._stop_by is not None:
            return
        self._manager.stopping("Unmounting")
        self._stop_by = time.monotonic() + _STOP_WITHIN_S
        try:
            end(self._config.mountpoint, lazy=False)
        except MountBusy as error:
            _logger.warning("stopping although %s", error.message)
            end(self._config.mountpoint, lazy=True)
        if not self._devices and not holders_of(self._config.mountpoint):
            self._kill_worker()

    # Another program in this place

    def _prepare_upgrade(self, python: str) -> None:
        if self._program is None or not self._devices:
            raise HandoverError("no_upgrade", "This mount cannot be taken over in place", "Unmount and mount again.")
        self._program.check(python)
        self._upgrade_with = python

    def _upgrade(self) -> None:
        """Become the new program, once its asker has been answered. The worker serves on until the new one's stands
        ready to be forked."""
        python, self._upgrade_with = self._upgrade_with, ""
        if not python or self._program is None or self._stop_by is not None:
            return
        _logger.info("the supervisor goes on as %s", python)
        try:
            self._program.become(python, self._all_held())
        except OSError as error:
            _logger.error("the upgrade failed, all goes on as before: %s", error.strerror)

    # Workers

    def _fork(self) -> None:
        first = self._first and self._report is not None
        if self._identity.transport == "libfuse" and mounted_at(self._config.mountpoint) is not None:
            detach(self._config.mountpoint)
        self._requests_at_fork = self._state.total(Counter.REQUESTS)
        post = worker.Post(
            config=self._config,
            identity=self._identity,
            state=self._state,
            devices=self._devices,
            resend=self._resend,
            listener=self._listener,
            work_listener=self._work_listener,
            build=self._build,
            supervisor_pid=os.getpid(),
            oom_score_adj=self._oom_score_adj,
            program=self._program,
        )
        self._worker = Child.fork(self._state, lambda: worker.run(post, first=first))
        _logger.info("worker %d serves %s", self._worker.pid, self._config.mountpoint)

    def _bury(self) -> bool:
        """Take note of the worker's end and plan the next one; True when the mount has ended with it."""
        assert self._worker is not None
        pid = self._worker.pid
        code = self._worker.reap()
        self._worker = None
        if code == worker.EXIT_UNMOUNTED and (not self._devices or _is_disconnected(self._devices[0])):
            return True
        if code == worker.EXIT_NOTHING_TO_SERVE and self._first and self._report is not None:
            self._failure = self._state.facts()
            return False
        self._state.counters(SLOTS)[Counter.RESTARTS] += 1
        served = self._state.total(Counter.REQUESTS) > self._requests_at_fork
        if served:
            self._back_off_s = 0.0
            self._next_fork = time.monotonic()
        else:
            self._back_off_s = min(LONGEST_BACK_OFF_S, max(FIRST_BACK_OFF_S, self._back_off_s * 2))
            self._next_fork = time.monotonic() + self._back_off_s
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        _logger.warning("worker %d %s; the next one starts in %.1f s", pid, how, 0 if served else self._back_off_s)
        return False

    def _end_if_hung(self) -> None:
        """End a worker that gives no sign of life any more: stopped, or waiting for itself."""
        pid, beat_ns = self._state.last_beat()
        if self._worker is None or pid != self._worker.pid:
            return  # it is still starting
        if time.monotonic_ns() - beat_ns > HUNG_AFTER_S * 1e9:
            _logger.error("worker %d has given no sign of life for %.0f s; it is killed", pid, HUNG_AFTER_S)
            signal.pidfd_send_signal(self._worker.descriptor, signal.SIGKILL)

    def _wait_for_worker(self) -> None:
        """After unmounting: let the worker put its things in order, then end it."""
        if self._worker is None:
            return
        poll = select.poll()
        poll.register(self._worker.descriptor, select.POLLIN)
        if not poll.poll(int(_STOP_WITHIN_S * 1000)):
            _logger.warning("the worker does not end; it is killed")
        self._kill_worker()

    def _kill_worker(self) -> None:
        if self._worker is not None:
            child, self._worker = self._worker, None
            child.kill()


def _digest(mountpoint: Path) -> str:
    return hashlib.sha256(os.fsencode(mountpoint)).hexdigest()


def _is_disconnected(device: int) -> bool:
    """Whether the connection behind a device descriptor has ended."""
    poll = select.poll()
    poll.register(device, 0)
    return bool(poll.poll(0))
