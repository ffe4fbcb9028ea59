"""The supervisor: holds the mount and the kernel's descriptors, so that a worker may die without anyone noticing.

It does as little as it can: open, mount, answer INIT, fork a worker, replace it when it dies, answer the control
socket, unmount. It is single-threaded, so that forking is safe at any time.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from mountd import control, worker
from mountd.duties import Identity, end, handle_command
from mountd.interfaces import MountConfig
from mountd.kernel.answers import largest_read_bytes
from mountd.kernel.device import DeviceError, clone, handshake, why_no_passthrough
from mountd.kernel.holders import holders_of
from mountd.kernel.mounting import (
    MountBusy,
    MountError,
    detach,
    mount,
    mounted_at,
    prepare,
    raise_read_ahead,
    refuse_nesting,
)
from mountd.shared_state import SLOTS, Counter, SharedState

_logger = logging.getLogger(__name__)

Transport = Literal["auto", "kernel", "libfuse"]
Report = Callable[[Mapping[str, Any]], None]
"""Told once how the start ended: the status, or {"error": {code, message, hint}}."""

CLONES = 4
"""Descriptors of the connection, the first included: their queues of requests in progress have separate locks."""
FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 5.0
OOM_SCORE_ADJ = "-900"
_STOP_WITHIN_S = 10.0
"""After SIGTERM, how long open files are still served when the mount is busy."""
_TICK_MS = 100
_IDLE_TICK_MS = 60_000


class Supervisor:
    """One mount from start to end. ``build`` makes the data side (called in the worker); ``preload`` imports it."""

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
    ) -> None:
        self._config = config
        self._build = build
        self._report: Report | None = report
        self._transport = transport
        self._passthrough = passthrough
        self._resend = resend
        self._preload = preload
        self._state = SharedState()
        self._devices: tuple[int, ...] = ()
        self._worker: tuple[int, int] | None = None  # pid, pidfd
        self._next_fork = 0.0
        self._back_off_s = 0.0
        self._requests_at_fork = 0
        self._stop_by: float | None = None
        self._failure: Mapping[str, Any] | None = None
        self._oom_score_adj = "0"
        self._listener: socket.socket
        self._work_listener: socket.socket
        self._identity: Identity

    def run(self) -> int:
        """Mount, serve until unmounted or told to stop, and return the exit code. Raises OpenshelfError."""
        refuse_nesting(self._config.mountpoint, self._config.cache)
        prepare(self._config.mountpoint)
        self._listener = control.listen(self._config.mountpoint)
        self._work_listener = control.listen_for_work(self._config.mountpoint)
        try:
            self._protect()
            self._identity = self._open()
            self._preload()
            self._loop()
        finally:
            self._clean_up()
        if self._failure is not None and self._report is not None:
            self._report(self._failure)
            return 1
        return 0

    # Start and end

    def _protect(self) -> None:
        """Be the last process that the kernel kills for memory (root only)."""
        path = Path("/proc/self/oom_score_adj")
        self._oom_score_adj = path.read_text().strip()
        try:
            path.write_text(OOM_SCORE_ADJ)
        except PermissionError:
            _logger.debug("oom_score_adj stays %s: lowering it needs CAP_SYS_RESOURCE", self._oom_score_adj)

    def _open(self) -> Identity:
        """Mount with the chosen transport and complete the handshake."""
        transport: str = self._transport
        reason = "the libfuse transport has none"
        if self._transport != "libfuse":
            try:
                reason = self._open_kernel()
                transport = "kernel"
            except (DeviceError, MountError) as error:
                if self._transport == "kernel":
                    raise
                _logger.warning("the kernel transport is not available (%s); trying libfuse", error.line())
                transport = "libfuse"
        return Identity(
            mountpoint=self._config.mountpoint,
            cache=self._config.cache,
            catalog=self._config.catalog,
            transport=transport,
            passthrough=not reason,
            passthrough_reason=reason,
            started_at=time.time(),
        )

    def _open_kernel(self) -> str:
        """Mount through the device; why there is no passthrough, or an empty text."""
        max_read_bytes = largest_read_bytes()
        device = mount(self._config.mountpoint, max_read_bytes)
        self._devices = (device,)
        agreed = handshake(device, max_read_bytes, passthrough=self._passthrough, resend=self._resend)
        self._resend = agreed.resend
        # The clones stay open here: closing one fails the requests that were read from it.
        self._devices += tuple(clone(device) for _ in range(CLONES - 1))
        raise_read_ahead(self._config.mountpoint)
        if not self._passthrough:
            return "it is switched off (OPENSHELF_PASSTHROUGH=0)"
        if not agreed.passthrough:
            return "the kernel has none (Linux 6.9 and CONFIG_FUSE_PASSTHROUGH are needed)"
        reason = why_no_passthrough(device, self._config.cache) or ""
        if reason:
            _logger.warning("files are served by the daemon, not by the kernel itself: %s", reason)
        return reason

    def _clean_up(self) -> None:
        if self._worker is not None:
            self._kill_worker()
        if mounted_at(self._config.mountpoint) is not None and self._devices:
            detach(self._config.mountpoint)
        for device in self._devices:
            os.close(device)
        self._devices = ()
        self._stop_listening()

    def _stop_listening(self) -> None:
        """Free the sockets' names, once: after that it may be another daemon's."""
        if self._listener.fileno() >= 0:
            control.forget(self._config.mountpoint)
            self._listener.close()
            self._work_listener.close()

    # The loop

    def _loop(self) -> None:
        wake, waker = socket.socketpair()
        wake.setblocking(False)
        waker.setblocking(False)
        with wake, waker:
            signal.set_wakeup_fd(waker.fileno())
            for number in (signal.SIGTERM, signal.SIGINT):
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
        if self._listener.fileno() >= 0:
            poll.register(self._listener, select.POLLIN)
        if self._worker is not None:
            poll.register(self._worker[1], select.POLLIN)
        if self._devices:
            poll.register(self._devices[0], 0)  # POLLERR: unmounted, by whomever
        ready = dict(poll.poll(self._timeout_ms(now)))
        if wake.fileno() in ready:
            wake.recv(64)  # the numbers of the signals; only SIGTERM and SIGINT have handlers
            self._begin_stop()
        if self._listener.fileno() in ready:
            control.serve_one(self._listener, self._command)
            if mounted_at(self._config.mountpoint) is None and self._report is None:
                self._stop_listening()  # lazily unmounted: the folder may be mounted anew while open files go on
        unmounted = bool(self._devices) and self._devices[0] in ready
        if self._worker is not None and self._worker[1] in ready:
            unmounted |= self._bury()
        self._announce()
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            _logger.warning("files were still open when the time to stop was over")
            return False
        if unmounted:
            self._wait_for_worker()
        return not unmounted and self._failure is None

    def _timeout_ms(self, now: float) -> int:
        if self._worker is None:
            return max(0, int((self._next_fork - now) * 1000)) + 1
        return _TICK_MS if self._report is not None or self._stop_by is not None else _IDLE_TICK_MS

    def _announce(self) -> None:
        """Report once that the mount answers."""
        if self._report is None or self._worker is None or not self._state.facts().get("ready"):
            return
        if self._identity.transport == "libfuse" and mounted_at(self._config.mountpoint) is None:
            return
        self._report(self._command({"command": "status"}))
        self._report = None

    def _command(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return handle_command(
            request,
            self._identity,
            self._state,
            supervisor_pid=os.getpid(),
            worker_pid=self._worker[0] if self._worker is not None else None,
        )

    def _begin_stop(self) -> None:
        """SIGTERM, SIGINT: unmount; with files open, take the name away and serve them a little longer."""
        if self._stop_by is not None:
            return
        self._stop_by = time.monotonic() + _STOP_WITHIN_S
        try:
            end(self._config.mountpoint, lazy=False)
        except MountBusy as error:
            _logger.warning("stopping although %s", error.message)
            end(self._config.mountpoint, lazy=True)
        if not self._devices and not holders_of(self._config.mountpoint):
            self._kill_worker()

    # Workers

    def _fork(self) -> None:
        first = self._report is not None
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
        )
        pid = os.fork()
        if pid == 0:
            code = 70  # EX_SOFTWARE of sysexits.h
            try:
                code = worker.run(post, first=first)
            except BaseException:  # nothing may return into the supervisor's code
                _logger.exception("the worker failed")
            finally:
                logging.shutdown()
                os._exit(code)
        self._worker = (pid, os.pidfd_open(pid))
        _logger.info("worker %d serves %s", pid, self._config.mountpoint)

    def _bury(self) -> bool:
        """Take note of the worker's end and plan the next one; True when the mount has ended with it."""
        assert self._worker is not None
        pid, descriptor = self._worker
        os.close(descriptor)
        self._worker = None
        _, raw_status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(raw_status)
        if code == worker.EXIT_UNMOUNTED and (not self._devices or _is_disconnected(self._devices[0])):
            return True
        if code == worker.EXIT_NOTHING_TO_SERVE and self._report is not None:
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

    def _wait_for_worker(self) -> None:
        """After unmounting: let the worker put its things in order, then end it."""
        if self._worker is None:
            return
        poll = select.poll()
        poll.register(self._worker[1], select.POLLIN)
        if not poll.poll(int(_STOP_WITHIN_S * 1000)):
            _logger.warning("the worker does not end; it is killed")
        self._kill_worker()

    def _kill_worker(self) -> None:
        if self._worker is None:
            return
        pid, descriptor = self._worker
        self._worker = None
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(descriptor)


def _is_disconnected(device: int) -> bool:
    """Whether the connection behind a device descriptor has ended."""
    poll = select.poll()
    poll.register(device, 0)
    return bool(poll.poll(0))
