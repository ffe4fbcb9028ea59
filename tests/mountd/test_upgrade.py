"""Another program takes the mount over in place, under load, and nobody notices; so does a worker whose supervisor is
killed."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mountd import control
from mountd.children import has_ended
from mountd.kernel.mounting import mounted_at
from tests.support.plain_mount import PlainMount
from tests.support.releases import pattern

FILES = 6
FILE_BYTES = 24 << 20

READER = """
import hashlib, mmap, os, sys, time
path, way, until = sys.argv[1], sys.argv[2], float(sys.argv[3])
expected = sys.argv[4]
rounds = 0
while rounds == 0 or time.monotonic() < until:
    with open(path, "rb", buffering=0) as stream:
        if way == "mmap":
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
                digest = hashlib.sha256()
                for start in range(0, len(mapping), 1 << 20):
                    digest.update(mapping[start : start + (1 << 20)])
                    time.sleep(0.001)
        else:
            digest = hashlib.sha256()
            while data := stream.read(1 << 20):
                digest.update(data)
                time.sleep(0.001)
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    os.listdir(os.path.dirname(path))
    assert digest.hexdigest() == expected, "other bytes"
    rounds += 1
print(rounds)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("files")
    for number in range(FILES):
        (folder / f"file-{number}").write_bytes(pattern(FILE_BYTES, number))
    yield folder
    for path in folder.iterdir():
        path.unlink()


def load(mount: PlainMount, lasts_s: float) -> list[subprocess.Popen[str]]:
    """Readers of sealed and of served files, by read and by mapping."""
    until = str(time.monotonic() + lasts_s)
    readers = []
    for number in range(8):
        name = f"file-{number % FILES}"
        digest = hashlib.sha256((mount.source / name).read_bytes()).hexdigest()
        way = "mmap" if number % 2 else "read"
        arguments = [sys.executable, "-c", READER, str(mount.mountpoint / name), way, until, digest]
        readers.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return readers


def assert_none_noticed(readers: list[subprocess.Popen[str]]) -> None:
    for reader in readers:
        output, said = reader.communicate(timeout=90)
        assert (reader.returncode, said) == (0, "")
        assert int(output) >= 1


def wait_for(mount: PlainMount, takeovers: int) -> dict[str, object]:
    """The status once a worker serves after so many take-overs."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        state = mount.status()
        if state["takeovers"] == takeovers and state["worker_silent_s"] is not None:
            return state
        time.sleep(0.05)
    raise AssertionError(mount.said())


def test_three_upgrades_under_eight_readers_are_not_noticed(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source) as mount:
        for number in (0, 1, 2):
            (mount.marks / f"file-{number}.partial").touch()  # served; the others bypass the daemon
        before = mount.status()
        with (mount.mountpoint / "file-0").open("rb") as held:
            readers = load(mount, 8.0)
            workers = {before["worker_pid"]}
            for count in (1, 2, 3):
                time.sleep(0.8)
                answer = control.ask(mount.mountpoint, "upgrade", python=sys.executable)
                assert answer["takeovers"] == count - 1
                workers.add(wait_for(mount, count)["worker_pid"])
            assert_none_noticed(readers)
            assert held.read() == pattern(FILE_BYTES, 0)
        after = mount.status()
        assert len(workers) == 4
        assert after["supervisor_pid"] == mount.process.pid
        assert (after["restarts"], after["read_errors"]) == (0, 0)
        assert after["opens_passthrough"] > 0
        assert after["opens_served"] > 0
        assert after["uptime_s"] >= before["uptime_s"]


def test_a_program_that_does_not_start_changes_nothing(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source) as mount:
        before = mount.status()
        for python in ("/nonexistent/python", "/bin/false"):
            with pytest.raises(control.ControlError, match=r"Repair|start"):
                control.ask(mount.mountpoint, "upgrade", python=python)
        other = tmp_path / "python"
        other.write_text("#!/bin/sh\necho 999999\n")
        other.chmod(0o755)
        with pytest.raises(control.ControlError, match="shared memory differently"):
            control.ask(mount.mountpoint, "upgrade", python=str(other))
        after = mount.status()
        assert (after["worker_pid"], after["takeovers"]) == (before["worker_pid"], 0)
        assert (mount.mountpoint / "file-0").read_bytes() == pattern(FILE_BYTES, 0)


def test_a_worker_whose_supervisor_is_killed_becomes_the_supervisor(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source) as mount:
        (mount.marks / "file-0.partial").touch()
        before = mount.status()
        with (mount.mountpoint / "file-0").open("rb") as held:
            readers = load(mount, 4.0)
            time.sleep(0.5)
            mount.process.send_signal(signal.SIGKILL)
            mount.process.wait()
            state = wait_for(mount, 1)
            assert state["supervisor_pid"] == before["worker_pid"]
            assert state["worker_pid"] != before["worker_pid"]
            # It is a supervisor like any other: its worker may die.
            mount.wait_for_worker(mount.kill_worker())
            assert_none_noticed(readers)
            assert held.read() == pattern(FILE_BYTES, 0)
        supervisor, worker = (mount.status()[name] for name in ("supervisor_pid", "worker_pid"))
        assert "unmounted" in control.ask(mount.mountpoint, "unmount", lazy=False)
        assert mounted_at(mount.mountpoint) is None
        deadline = time.monotonic() + 10
        while not all(map(has_ended, (supervisor, worker))) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert has_ended(supervisor)
        assert has_ended(worker)
        assert not control.answers(mount.mountpoint)
        assert os.listdir(mount.mountpoint) == []
