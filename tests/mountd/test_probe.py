"""``openshelf probe`` answers whatever happens, with an exit code that tells what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mountd.kernel.mounting import mounted_at, unmount
from tests.support.plain_mount import PlainMount


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[PlainMount]:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "file").write_bytes(b"content")
    with PlainMount(tmp_path, source) as made:
        yield made


def probe(directory: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and what it says. Whoever runs it waits for the end of its output, as a kubelet does."""
    done = subprocess.run(
        [sys.executable, "-m", "openshelf", "probe", str(directory), "--json"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    return done.returncode, found


def state(task: Path) -> str:
    """The letter that tells what a thread does (proc_pid_stat(5))."""
    return (task / "stat").read_text().rpartition(") ")[2][0]


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        # A thread that has not noticed yet may still take a request, whose sender cannot be killed then.
        while any(state(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
            time.sleep(0.01)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_mount_that_serves_is_zero(mount: PlainMount) -> None:
    code, found = probe(mount.mountpoint)
    assert (code, found["standing"], found["reasons"]) == (0, "serves", [])
    assert found["answered_ms"] < 1000
    assert found["supervisor_pid"] == mount.process.pid


def test_nothing_mounted_is_one_and_wrong_usage_two(mount: PlainMount, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing", mount.mountpoint / "folder", Path("/proc")):
        assert probe(place)[0] == 1, place
    done = subprocess.run([sys.executable, "-m", "openshelf", "probe"], capture_output=True, check=False)
    assert done.returncode == 2


def test_a_stopped_worker_is_hung_also_for_what_lies_inside(mount: PlainMount) -> None:
    worker = mount.status()["worker_pid"]
    with stopped(worker):
        time.sleep(1.2)  # until the kernel no longer knows the root's attributes by itself
        assert probe(mount.mountpoint)[0] == 3
        assert probe(mount.mountpoint / "folder")[0] == 3
        with stopped(mount.process.pid):
            code, found = probe(mount.mountpoint)
            assert code == 3
            assert len(found["reasons"]) == 2
    assert probe(mount.mountpoint)[0] == 0


def test_a_stopped_supervisor_an_offline_catalog_and_a_worker_that_does_not_start_are_degraded(
    mount: PlainMount,
) -> None:
    with stopped(mount.process.pid):
        code, found = probe(mount.mountpoint)
        assert code == 4
        assert "supervisor does not answer" in found["reasons"][0]
    (mount.marks / "offline").touch()
    time.sleep(1)
    code, found = probe(mount.mountpoint)
    assert code == 4
    assert found["reasons"] == ["offline: the catalog cannot be reached"]


def test_a_dead_mount_is_broken(mount: PlainMount) -> None:
    worker = mount.status()["worker_pid"]
    os.kill(mount.process.pid, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    mount.process.wait()
    code, found = probe(mount.mountpoint)
    assert code == 5
    assert "not connected" in found["reasons"][0]
    assert mounted_at(mount.mountpoint) is not None
    unmount(mount.mountpoint, lazy=True)


@pytest.mark.parametrize("kind", ["passthrough", "served"])
def test_closing_a_file_waits_for_no_daemon(mount: PlainMount, kind: str) -> None:
    if kind == "served":
        (mount.marks / "file.partial").touch()
    script = (
        "import os, sys; descriptor = os.open(sys.argv[1], os.O_RDONLY); print('open', flush=True);"
        "sys.stdin.readline(); os.close(descriptor); print('closed', flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(mount.mountpoint / "file")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with stopped(mount.status()["worker_pid"]):  # it is the first close of this mount: the kernel knows of no other
            output, _ = holder.communicate("now\n", timeout=20)
            assert output == "closed\n"


def test_readers_of_a_stopped_worker_can_be_killed(mount: PlainMount) -> None:
    with stopped(mount.status()["worker_pid"]):
        readers = [
            subprocess.Popen(["cat", str(mount.mountpoint / name)], stderr=subprocess.DEVNULL)
            for name in ("file", "folder/missing", "other")
        ]
        time.sleep(0.5)
        assert [reader.poll() for reader in readers] == [None, None, None]
        for reader in readers:
            reader.kill()
        assert [reader.wait(timeout=10) for reader in readers] == [-signal.SIGKILL] * 3
    assert (mount.mountpoint / "file").read_bytes() == b"content"
