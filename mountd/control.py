"""The control sockets: how ``openshelf`` speaks to the processes behind a mount.

Each mount has two, in a folder that only its owner may enter, under names made from the mount's path, so that they are
found without touching the mount. ``<name>.sock`` is the supervisor's: one JSON line is asked, one answered, at once
and whatever the worker does (status, umount). ``<name>.work`` is the worker's (:mod:`mountd.work`): one line is asked,
and lines come as the work goes on. Both sockets outlive a worker; who connects meanwhile waits for the next one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from openshelf.errors import OpenshelfError

_logger = logging.getLogger(__name__)

_LINE_BYTES = 64 << 10
_PATIENCE_S = 1.0
"""How long a client may take to send its line: the supervisor does nothing else meanwhile."""
ANSWER_WITHIN_S = 10.0

Handler = Callable[[Mapping[str, Any]], dict[str, Any]]


class NotMounted(OpenshelfError):
    """No process answers for this mount."""


class ControlError(OpenshelfError):
    """The processes behind a mount refused or failed a command."""


def runtime_folder() -> Path:
    """Where the sockets lie: ``/run/openshelf`` for root, the user's runtime folder otherwise."""
    if os.geteuid() == 0:
        return Path("/run/openshelf")
    own = os.environ.get("XDG_RUNTIME_DIR")
    return Path(own) / "openshelf" if own else Path(f"/tmp/openshelf-{os.geteuid()}")  # noqa: S108 (owner is checked)


def socket_path(mountpoint: Path) -> Path:
    """The socket of the mount at ``mountpoint`` (canonical)."""
    return runtime_folder() / (hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:24] + ".sock")


def work_socket_path(mountpoint: Path) -> Path:
    """The worker's socket of the mount at ``mountpoint`` (canonical)."""
    return socket_path(mountpoint).with_suffix(".work")


def listen(mountpoint: Path) -> socket.socket:
    """The supervisor's listening socket for ``mountpoint``; a left-over of a dead daemon is replaced. Raises
    ControlError."""
    folder = runtime_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ControlError(
            "unsafe_runtime_folder", f"{folder} is not a folder of ours alone", f"Remove it, or: chmod 700 {folder}"
        )
    if answers(mountpoint):
        raise ControlError(
            "already_mounted",
            f"{mountpoint} is already served by another daemon",
            f"Unmount it first: openshelf umount {mountpoint}",
        )
    return _bind(socket_path(mountpoint))


def listen_for_work(mountpoint: Path) -> socket.socket:
    """The worker's listening socket, for who has :func:`listen` for the same mount."""
    return _bind(work_socket_path(mountpoint))


def _bind(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(16)
    listener.setblocking(False)
    return listener


def forget(mountpoint: Path) -> None:
    """Remove the sockets' names."""
    socket_path(mountpoint).unlink(missing_ok=True)
    work_socket_path(mountpoint).unlink(missing_ok=True)


def serve_one(listener: socket.socket, handler: Handler) -> None:
    """Accept one connection and answer it; a client that misbehaves is dropped."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return  # it went away again
    with connection:
        connection.settimeout(_PATIENCE_S)
        try:
            request = json.loads(read_line(connection))
            answer = handler(request) if isinstance(request, dict) else {"error": {"message": "not an object"}}
        except OpenshelfError as error:
            answer = failure_of(error)
        except (OSError, ValueError) as error:
            _logger.warning("a control request could not be read: %s", error)
            return
        try:
            connection.sendall(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            _logger.warning("a control answer was not taken: %s", error)


def failure_of(error: OpenshelfError) -> dict[str, Any]:
    """An error as it travels over a socket."""
    return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}


def read_line(connection: socket.socket) -> bytes:
    """The one line that a request is, as far as it came."""
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(_LINE_BYTES)
        line += part
        if not part or len(line) > _LINE_BYTES:
            break
    return line


def ask(mountpoint: Path, command: str, **arguments: object) -> dict[str, Any]:
    """Send a command to whoever serves ``mountpoint`` (canonical) and return its answer.

    Raises NotMounted when nobody answers, ControlError with the other side's words when it refuses.
    """
    return ask_within(ANSWER_WITHIN_S, mountpoint, command, **arguments)


def ask_within(within_s: float, mountpoint: Path, command: str, **arguments: object) -> dict[str, Any]:
    """:func:`ask` with a patience of its own, in seconds."""
    for answer in _exchange(socket_path(mountpoint), mountpoint, command, arguments, within_s):
        return answer
    raise ControlError("no_answer", f"The daemon of {mountpoint} did not answer", "See the log in its cache folder.")


def order(mountpoint: Path, command: str, **arguments: object) -> Iterator[dict[str, Any]]:
    """Have the worker carry out a command: what it reports on the way, the outcome last. Raises like :func:`ask`.

    Waits as long as the work takes; the worker gives it up when this is closed early.
    """
    if not answers(mountpoint):
        raise _not_mounted(mountpoint)
    return _exchange(work_socket_path(mountpoint), mountpoint, command, arguments, None)


def _exchange(
    path: Path, mountpoint: Path, command: str, arguments: Mapping[str, object], within_s: float | None
) -> Iterator[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(within_s)
        try:
            connection.connect(str(path))
            connection.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    yield _checked(json.loads(line), mountpoint)
        except PermissionError as error:
            raise NotMounted(
                "not_allowed", f"The daemon of {mountpoint} belongs to another user", "Try it as root."
            ) from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise _not_mounted(mountpoint) from error
        except (OSError, ValueError) as error:
            raise ControlError(
                "no_answer", f"The daemon of {mountpoint} does not answer: {error}", "See the log in its cache folder."
            ) from error


def _not_mounted(mountpoint: Path) -> NotMounted:
    return NotMounted(
        "not_mounted",
        f"{mountpoint} is not an openshelf mount",
        f"Mount it: openshelf mount {mountpoint} --cache DIR --cache-size SIZE",
    )


def _checked(answer: object, mountpoint: Path) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise ControlError("no_answer", f"The daemon of {mountpoint} answered something else")
    if "error" in answer:
        failure = answer["error"]
        raise ControlError(failure.get("code", "failed"), failure.get("message", "It failed"), failure.get("hint", ""))
    return answer


def answers(mountpoint: Path) -> bool:
    """Whether somebody listens for this mount."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE_S)
        try:
            connection.connect(str(socket_path(mountpoint)))
        except OSError:
            return False
    return True
