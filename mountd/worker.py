"""The worker: everything that can go wrong. Forked by the supervisor, replaced when it dies."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mountd.duties import Identity, status
from mountd.handover import Program
from mountd.interfaces import MountConfig, NoKernel, Stack
from mountd.kernel.channel import Channel
from mountd.kernel.notify import Notifier, ask_resend
from mountd.kernel.open_files import KernelSide
from mountd.kernel.opens import OpenTable
from mountd.kernel.operations import Operations
from mountd.kernel.processors import IdleProcessors
from mountd.memory import collect_seldom, few_arenas
from mountd.shared_state import SharedState
from mountd.standby import StandBy, Surroundings
from mountd.work import WorkServer
from openshelf.errors import OpenshelfError

_logger = logging.getLogger(__name__)

EXIT_UNMOUNTED = 0
EXIT_NOTHING_TO_SERVE = 78
"""``EX_CONFIG`` of sysexits.h: the data side could not start; the reason is in the facts."""

Build = Callable[[MountConfig], Stack]


@dataclass(frozen=True, slots=True)
class Post:
    """What a worker is given by the supervisor it was forked from."""

    config: MountConfig
    identity: Identity
    state: SharedState
    devices: tuple[int, ...]
    resend: bool
    listener: socket.socket | None
    work_listener: socket.socket | None
    """The sockets of the supervisor and of the worker; None once the mount's name is free for another."""
    build: Build
    supervisor_pid: int
    oom_score_adj: str
    program: Program | None


def run(post: Post, *, first: bool) -> int:
    """Serve until the file system is unmounted; the exit code. ``first`` False: an earlier worker has served."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor acts on it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    few_arenas()
    _be_a_fair_victim(post.oom_score_adj)
    supervisor = os.pidfd_open(post.supervisor_pid)
    try:
        stack = post.build(post.config)
        stack.start(resume=not first)
        collect_seldom()
    except OpenshelfError as error:
        _logger.error("nothing to serve: %s", error.line())
        post.state.publish({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return EXIT_NOTHING_TO_SERVE
    if post.work_listener is not None:
        WorkServer(post.work_listener, stack.work()).start()
    if post.config.options.metrics:
        _serve_metrics(post)
    try:
        if post.identity.transport == "libfuse":
            return _serve_libfuse(post, stack, supervisor)
        return _serve_kernel(post, stack, supervisor, first=first)
    finally:
        stack.close()
        os.close(supervisor)


def _serve_metrics(post: Post) -> None:
    from mountd import metrics

    def now() -> dict[str, Any]:
        return status(post.identity, post.state, supervisor_pid=post.supervisor_pid, worker_pid=os.getpid())

    metrics.serve(post.config.options.metrics, now)


def _be_a_fair_victim(oom_score_adj: str) -> None:
    """Undo the supervisor's protection: short of memory, the kernel should take the worker."""
    path = Path("/proc/self/oom_score_adj")
    if path.read_text().strip() == oom_score_adj:
        return
    try:
        path.write_text(oom_score_adj)
    except OSError as error:
        _logger.warning("oom_score_adj was not set: %s", error.strerror)


def _serve_kernel(post: Post, stack: Stack, supervisor: int, *, first: bool) -> int:
    opens = OpenTable(post.state, post.devices[0], passthrough=post.identity.passthrough)
    notifier = Notifier(post.devices[0])
    operations = Operations(stack.tree, stack.reader, opens, notifier.invalidate, stack.opened)
    stack.tree.subscribe(operations.name_changed)
    stack.attach(KernelSide(opens, notifier))
    processors = IdleProcessors()
    channel = Channel(post.devices, post.state, operations, processors)
    if not first and post.resend:
        ask_resend(post.devices[0])
    processors.start()
    channel.start(answer_left_over=not first and not post.resend)
    ended = os.eventfd(0, os.EFD_CLOEXEC)

    def watch() -> None:
        channel.wait()
        os.eventfd_write(ended, 1)

    threading.Thread(target=watch, name="end", daemon=True).start()
    _stand_by(post, stack, lambda: len(opens), supervisor, ended)
    notifier.close()
    processors.close()
    return EXIT_UNMOUNTED


def _serve_libfuse(post: Post, stack: Stack, supervisor: int) -> int:
    from mountd import libfuse

    stack.attach(NoKernel())
    ended = os.eventfd(0, os.EFD_CLOEXEC)
    thread = threading.Thread(
        target=_stand_by, args=(post, stack, lambda: 0, supervisor, ended), name="facts", daemon=True
    )
    thread.start()
    try:
        libfuse.serve(post.config.mountpoint, stack.tree, stack.reader, post.state.counters(0), stack.opened)
    finally:
        os.eventfd_write(ended, 1)
        thread.join()
    return EXIT_UNMOUNTED


def _stand_by(post: Post, stack: Stack, open_files: Callable[[], int], supervisor: int, ended: int) -> None:
    around = Surroundings(
        identity=post.identity,
        state=post.state,
        devices=post.devices,
        control_socket=post.listener,
        work_socket=post.work_listener,
        program=post.program,
        memory_bytes=post.config.options.memory_bytes,
        replaceable=post.identity.transport == "kernel",
    )
    StandBy(around, lambda: _facts(stack, open_files=open_files()), stack.shrink).run(supervisor, ended)


def _facts(stack: Stack, *, open_files: int) -> dict[str, Any]:
    facts = dataclasses.asdict(stack.facts())
    return {**facts, "more": dict(facts["more"]), "open_files": open_files, "ready": True}
