"""The worker: everything that can go wrong. Forked by the supervisor, replaced when it dies."""

from __future__ import annotations

import dataclasses
import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mountd import control
from mountd.duties import Identity, handle_command
from mountd.interfaces import MountConfig, Stack
from mountd.kernel.channel import Channel
from mountd.kernel.notify import Notifier, ask_resend
from mountd.kernel.opens import OpenTable
from mountd.kernel.operations import Operations
from mountd.shared_state import SharedState
from mountd.work import WorkServer
from openshelf.errors import OpenshelfError

_logger = logging.getLogger(__name__)

EXIT_UNMOUNTED = 0
EXIT_NOTHING_TO_SERVE = 78
"""``EX_CONFIG`` of sysexits.h: the data side could not start; the reason is in the facts."""
_PUBLISH_EVERY_MS = 500

Build = Callable[[MountConfig], Stack]


@dataclass(frozen=True, slots=True)
class Post:
    """What a worker is given by the supervisor it was forked from."""

    config: MountConfig
    identity: Identity
    state: SharedState
    devices: tuple[int, ...]
    resend: bool
    listener: socket.socket
    work_listener: socket.socket
    build: Build
    supervisor_pid: int
    oom_score_adj: str


def run(post: Post, *, first: bool) -> int:
    """Serve until the file system is unmounted; the exit code. ``first`` False: an earlier worker has served."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor acts on it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    _be_a_fair_victim(post.oom_score_adj)
    supervisor = os.pidfd_open(post.supervisor_pid)
    try:
        stack = post.build(post.config)
        stack.start(resume=not first)
    except OpenshelfError as error:
        _logger.error("nothing to serve: %s", error.line())
        post.state.publish({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        return EXIT_NOTHING_TO_SERVE
    if post.work_listener.fileno() >= 0:  # else lazily unmounted
        WorkServer(post.work_listener, stack.work()).start()
    try:
        if post.identity.transport == "libfuse":
            return _serve_libfuse(post, stack, supervisor)
        return _serve_kernel(post, stack, supervisor, first=first)
    finally:
        stack.close()
        os.close(supervisor)


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
    channel = Channel(post.devices, post.state, operations)
    if not first and post.resend:
        ask_resend(post.devices[0])
    channel.start(answer_left_over=not first and not post.resend)
    ended = os.eventfd(0, os.EFD_CLOEXEC)

    def watch() -> None:
        channel.wait()
        os.eventfd_write(ended, 1)

    threading.Thread(target=watch, name="end", daemon=True).start()
    _stand_by(post, lambda: _facts(stack, open_files=len(opens)), supervisor, ended)
    notifier.close()
    return EXIT_UNMOUNTED


def _serve_libfuse(post: Post, stack: Stack, supervisor: int) -> int:
    from mountd import libfuse

    ended = os.eventfd(0, os.EFD_CLOEXEC)
    thread = threading.Thread(
        target=_stand_by, args=(post, lambda: _facts(stack, open_files=0), supervisor, ended), name="facts", daemon=True
    )
    thread.start()
    try:
        libfuse.serve(post.config.mountpoint, stack.tree, stack.reader, post.state.counters(0), stack.opened)
    finally:
        os.eventfd_write(ended, 1)
        thread.join()
    return EXIT_UNMOUNTED


def _facts(stack: Stack, *, open_files: int) -> dict[str, Any]:
    facts = dataclasses.asdict(stack.facts())
    return {**facts, "more": dict(facts["more"]), "open_files": open_files, "ready": True}


def _stand_by(post: Post, facts: Callable[[], dict[str, Any]], supervisor: int, ended: int) -> None:
    """Report the facts until the event descriptor ``ended`` is raised; answer the control socket once the supervisor
    is gone."""
    poll = select.poll()
    poll.register(supervisor, select.POLLIN)
    poll.register(ended, select.POLLIN)
    orphan = False
    while True:
        try:
            post.state.publish(facts())
        except OpenshelfError as error:
            _logger.error("the state cannot be reported: %s", error.line())
        ready = {descriptor for descriptor, _ in poll.poll(_PUBLISH_EVERY_MS)}
        if ended in ready:
            break
        if supervisor in ready:
            _logger.warning("the supervisor is gone; this worker serves on and answers in its place")
            poll.unregister(supervisor)
            orphan = post.listener.fileno() >= 0  # else lazily unmounted: nobody can ask any more
            if orphan:
                poll.register(post.listener.fileno(), select.POLLIN)
        if post.listener.fileno() in ready:
            control.serve_one(post.listener, lambda request: _command(post, request))
    if orphan:
        control.forget(post.config.mountpoint)


def _command(post: Post, request: Mapping[str, Any]) -> dict[str, Any]:
    return handle_command(request, post.identity, post.state, supervisor_pid=None, worker_pid=os.getpid())
