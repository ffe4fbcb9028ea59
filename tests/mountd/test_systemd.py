"""As a service: readiness, watchdog, and a mount that outlives the service, by descriptors that the manager keeps."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mountd import control, handover, systemd
from mountd.children import has_ended
from mountd.kernel.mounting import mounted_at, unmount
from mountd.shared_state import SharedState
from mountd.supervisor import LEAVE_SIGNAL
from tests.support.plain_mount import PlainMount
from tests.support.releases import pattern
from tests.support.service_manager import WATCHDOG_S, StandInManager
from tests.support.shared_data import ROOT

UNIT = ROOT / "deploy" / "systemd" / "openshelf-mount.service"
LARGE = pattern(40 << 20, 5)
NAMES = {"device-0", "device-1", "device-2", "device-3", "state", "control", "work"}

READER = """
import sys, time
expected = open(sys.argv[2], "rb").read()
with open(sys.argv[1], "rb", buffering=0) as stream:
    found = b""
    while data := stream.read(1 << 18):
        found += data
        time.sleep(0.025)
assert found == expected, "other bytes"
"""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[StandInManager]:
    with StandInManager(tmp_path) as made:
        yield made


@pytest.fixture
def mount(tmp_path: Path, manager: StandInManager) -> Iterator[PlainMount]:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("sealed", "partial"):
        (source / name).write_bytes(LARGE)
    made = PlainMount(tmp_path, source).under(manager)
    (made.marks / "partial.partial").touch()
    with made:
        yield made


def wait(what: str, condition: object, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_it_says_when_it_is_ready_alive_and_stopping(mount: PlainMount, manager: StandInManager) -> None:
    wait("readiness", lambda: manager.count("READY=1") == 1)
    assert manager.count(f"STATUS=1 releases at {mount.mountpoint}, passthrough") == 1
    assert set(manager.kept) == NAMES
    assert manager.count("FDPOLL=0") == len(NAMES)
    before = manager.count("WATCHDOG=1")
    time.sleep(WATCHDOG_S * 3)
    assert manager.count("WATCHDOG=1") >= before + 3
    mount.process.send_signal(signal.SIGTERM)
    assert mount.process.wait(timeout=20) == 0
    wait("the end of the store", lambda: not manager.kept)
    assert manager.count("STOPPING=1") == 1
    assert mounted_at(mount.mountpoint) is None


@pytest.mark.parametrize("how", ["restart", "crash", "crash of the supervisor alone"])
def test_the_next_start_goes_on_with_the_mount_under_readers(
    mount: PlainMount, manager: StandInManager, how: str
) -> None:
    first = mount.status()
    readers = [
        subprocess.Popen([sys.executable, "-c", READER, str(mount.mountpoint / name), str(mount.source / name)])
        for name in ("sealed", "partial")
    ]
    time.sleep(0.7)
    if how == "restart":
        mount.process.send_signal(signal.SIGUSR2)
        assert mount.process.wait(timeout=20) == 0
    else:
        mount.process.kill()
        mount.process.wait()
        if how == "crash":
            os.kill(first["worker_pid"], signal.SIGKILL)
    assert mounted_at(mount.mountpoint) is not None
    assert set(manager.kept) == NAMES
    time.sleep(0.5)
    mount.start_again()
    after = mount.state
    assert after["takeovers"] == 1
    assert after["supervisor_pid"] == mount.process.pid != first["supervisor_pid"]
    assert after["worker_pid"] != first["worker_pid"]
    wait("the end of the first worker", lambda: has_ended(first["worker_pid"]))
    assert after["opens_passthrough"] >= 1
    assert [reader.wait(timeout=60) for reader in readers] == [0, 0]
    assert mount.status()["read_errors"] == 0
    assert manager.count("FDSTORE=1") == len(NAMES)  # what is kept already is not kept twice
    assert control.ask(mount.mountpoint, "upgrade", python=sys.executable)["takeovers"] == 1
    wait("the upgrade", lambda: mount.status()["takeovers"] == 2)
    assert (mount.mountpoint / "sealed").read_bytes() == LARGE


def test_what_another_version_left_is_let_go_and_the_mount_made_anew(
    mount: PlainMount, manager: StandInManager
) -> None:
    mount.process.send_signal(signal.SIGUSR2)
    mount.process.wait(timeout=20)
    os.pwrite(manager.kept["state"], b"\xff", 7)  # the number of the layout
    mount.start_again()
    assert mount.state["takeovers"] == 0
    assert (mount.mountpoint / "sealed").read_bytes() == LARGE
    wait("the new descriptors", lambda: set(manager.kept) == NAMES and manager.count("FDSTORE=1") == 2 * len(NAMES))
    assert manager.count("FDSTOREREMOVE=1") == len(NAMES)


def test_a_mount_unmounted_while_no_daemon_ran_is_made_anew(mount: PlainMount) -> None:
    mount.process.send_signal(signal.SIGUSR2)
    mount.process.wait(timeout=20)
    unmount(mount.mountpoint, lazy=True)
    mount.start_again()
    assert mount.state["takeovers"] == 0
    assert (mount.mountpoint / "partial").read_bytes() == LARGE


def test_descriptors_meant_for_another_process_are_not_taken() -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b", "PATH": "/bin"}
    assert systemd.taken_descriptors(environ) == {}
    assert environ == {"PATH": "/bin"}
    mine = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "state:device-0"}
    assert systemd.taken_descriptors(mine) == {"state": 3, "device-0": 4}


def test_half_of_a_hand_over_is_none() -> None:
    reading, writing = os.pipe()
    assert handover.adopt({handover.HELD_VARIABLE: f"device-0={reading},control={writing}"}) is None
    for descriptor in (reading, writing):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_manager_that_does_not_listen_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = systemd.ServiceManager.from_environment({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "5"})
    manager.ready("well")
    assert "did not take READY=1" in caplog.text
    assert systemd.ServiceManager.from_environment({}).present is False
    assert systemd.ServiceManager.from_environment({"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}).watchdog_s is None


def test_an_abstract_socket_and_many_lines_are_understood() -> None:
    name = f"openshelf-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0" + name)
        systemd.ServiceManager("@" + name).status("two\nlines")
        assert heard.recv(100) == b"STATUS=two lines"


def test_the_token_comes_as_a_credential(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("osk_secret\n")
    assert systemd.credential("token", {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == "osk_secret"
    assert systemd.credential("other", {"CREDENTIALS_DIRECTORY": str(tmp_path)}) is None
    assert systemd.credential("token", {}) is None


def test_shared_memory_of_another_layout_is_refused() -> None:
    state = SharedState()
    state.keep({"mount": "x", "理由": "无"})
    again = SharedState(os.dup(state.descriptor))
    assert again.kept() == {"mount": "x", "理由": "无"}
    state.enlist(7, 70)
    state.beat(7, 700)
    assert (again.enlisted(), again.last_beat()) == ((7, 70), (7, 700))
    os.pwrite(state.descriptor, b"\xff", 7)
    with pytest.raises(ValueError, match="layout"):
        SharedState(state.descriptor)
    again.close()
    state.close()


def test_the_unit_file_names_real_options_and_the_signal_to_leave() -> None:
    lines = [line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] not in "#["]
    unit = dict(lines)
    command = unit["ExecStart"].split()
    shown = subprocess.run(
        [sys.executable, "-m", "openshelf", "mount", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert command[1] == "mount"
    assert all(option in shown for option in command if option.startswith("--"))
    assert unit["RestartKillSignal"] == LEAVE_SIGNAL.name
    assert int(unit["FileDescriptorStoreMax"]) >= len(NAMES)
    assert unit["Type"] == "notify"
    assert unit["LoadCredential"].startswith("token:")
    # The supervisor must have its turn well within the watchdog's patience, also while it tries new code.
    assert int(unit["WatchdogSec"]) > handover.CHECK_WITHIN_S
