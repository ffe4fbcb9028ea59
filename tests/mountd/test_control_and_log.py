"""The control socket and the shared log by themselves."""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from mountd import control, log
from mountd.duties import Identity, status
from mountd.shared_state import Counter, SharedState
from openshelf.errors import UsageError


@pytest.fixture(autouse=True)
def own_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    monkeypatch.setattr(control, "runtime_folder", lambda: folder)
    return folder


def serve(listener: socket.socket, handler: control.Handler) -> threading.Thread:
    listener.setblocking(True)
    thread = threading.Thread(target=control.serve_one, args=(listener, handler))
    thread.start()
    return thread


def test_a_command_is_answered_and_only_its_owner_may_ask(tmp_path: Path, own_runtime_folder: Path) -> None:
    mountpoint = tmp_path / "public"
    with control.listen(mountpoint) as listener:
        assert stat.S_IMODE(own_runtime_folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(control.socket_path(mountpoint).stat().st_mode) == 0o600
        thread = serve(listener, lambda request: {"heard": dict(request)})
        assert control.ask(mountpoint, "unmount", lazy=True) == {"heard": {"command": "unmount", "lazy": True}}
        thread.join()


def test_an_error_reaches_the_asker_in_its_own_words(tmp_path: Path) -> None:
    def refuse(_: Any) -> dict[str, Any]:
        raise UsageError("mount_busy", "It is in use", "Wait.")

    with control.listen(tmp_path) as listener:
        thread = serve(listener, refuse)
        with pytest.raises(control.ControlError) as caught:
            control.ask(tmp_path, "unmount")
        assert (caught.value.code, caught.value.line()) == ("mount_busy", "It is in use. Wait.")
        thread.join()


def test_nobody_there_and_a_left_over_socket_are_told_apart_from_a_living_daemon(tmp_path: Path) -> None:
    with pytest.raises(control.NotMounted, match="is not an openshelf mount"):
        control.ask(tmp_path, "status")
    control.listen(tmp_path).close()  # a daemon that died leaves its socket behind
    with pytest.raises(control.NotMounted):
        control.ask(tmp_path, "status")
    with control.listen(tmp_path), pytest.raises(control.ControlError, match="already served"):
        control.listen(tmp_path)


def test_a_client_that_sends_nonsense_is_dropped(tmp_path: Path) -> None:
    with control.listen(tmp_path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(control.socket_path(tmp_path)))
        client.sendall(b"\xff{]\n")
        control.serve_one(listener, lambda _: {})
        assert client.recv(100) == b""


def test_a_runtime_folder_of_somebody_else_is_refused(tmp_path: Path, own_runtime_folder: Path) -> None:
    own_runtime_folder.mkdir(mode=0o777)
    own_runtime_folder.chmod(0o777)
    with pytest.raises(control.ControlError, match="not a folder of ours alone"):
        control.listen(tmp_path)


def test_a_log_that_is_full_is_rotated_by_whoever_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_BYTES", 2000)
    path = tmp_path / log.LOG_NAME
    handlers = [log.SharedLogHandler(path, encoding="utf-8") for _ in range(2)]
    for number in range(300):
        record = logging.LogRecord("x", logging.INFO, "", 0, f"line {number:04d} {'.' * 50}", None, None)
        handlers[number % 2].emit(record)
    for handler in handlers:
        handler.close()
    names = sorted(name for name in os.listdir(tmp_path) if name.startswith(log.LOG_NAME))
    assert names == ["mountd.log", "mountd.log.1", "mountd.log.2", "mountd.log.3"]
    assert all((tmp_path / name).stat().st_size < 2200 for name in names)
    assert "line 0299" in log.last_line(tmp_path)
    kept = [line for name in reversed(names) for line in (tmp_path / name).read_text().splitlines()]
    assert [int(line.split()[1]) for line in kept] == list(range(300 - len(kept), 300))


def test_the_last_line_of_no_log_is_empty(tmp_path: Path) -> None:
    assert log.last_line(tmp_path) == ""


def test_no_counter_of_the_data_side_hides_a_field_of_the_status(tmp_path: Path) -> None:
    state = SharedState()
    try:
        state.counters(3)[Counter.REQUESTS] = 41
        state.publish({"cache_bytes": 5, "more": {"requests": 7, "cache_bytes": 8, "fetch_requests": 9}})
        identity = Identity(tmp_path / "m", tmp_path / "c", "http://127.0.0.1:1", "kernel", True, "", 0.0)
        told = status(identity, state, supervisor_pid=1, worker_pid=2)
        assert (told["requests"], told["cache_bytes"], told["fetch_requests"]) == (41, 5, 9)
    finally:
        state.close()
