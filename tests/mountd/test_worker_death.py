"""Readers never see a worker die: passthrough and served, mapped and read, with RESEND and on kernels without it."""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mountd import control
from mountd.kernel.mounting import mounted_at
from tests.support.plain_mount import PlainMount
from tests.support.service_manager import StandInManager

LARGE_BYTES = 256 << 20
BLOCK_BYTES = 8 << 20
KILLS = 10
KILLS_WITHIN_S = 8.0

READER = """
import hashlib, sys, time
digest = hashlib.sha256()
with open(sys.argv[1], "rb", buffering=0) as stream:
    while data := stream.read(1 << 20):
        digest.update(data)
        time.sleep(float(sys.argv[2]))
print(digest.hexdigest())
"""


def block_of(number: int) -> bytes:
    """Block ``number`` of the large file: every 8 bytes hold their own position."""
    words = BLOCK_BYTES // 8
    return np.arange(number * words, (number + 1) * words, dtype="<u8").tobytes()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a 256 MiB file in which every 8 bytes are different, and its SHA-256."""
    folder = tmp_path_factory.mktemp("large")
    digest = hashlib.sha256()
    with (folder / "large.bin").open("wb") as sink:
        for number in range(LARGE_BYTES // BLOCK_BYTES):
            block = block_of(number)
            digest.update(block)
            sink.write(block)
    for number in range(200):
        (folder / f"small-{number:03d}").write_bytes(b"%d" % number * 1000)
    yield folder, digest.hexdigest()
    (folder / "large.bin").unlink()


def drop_pages(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("passthrough", "resend"),
    [
        pytest.param(True, True, id="passthrough"),
        pytest.param(False, True, id="served"),
        pytest.param(False, False, id="served, kernel without RESEND"),
    ],
)
def test_ten_kills_in_eight_seconds_leave_a_large_read_whole(
    large: tuple[Path, str], tmp_path: Path, passthrough: bool, resend: bool
) -> None:
    folder, expected = large
    with PlainMount(tmp_path, folder, passthrough=passthrough, resend=resend) as mount:
        path = mount.mountpoint / "large.bin"
        drop_pages(path)
        # 256 reads with 32 ms between them last at least as long as the killing does.
        reader = subprocess.Popen([sys.executable, "-c", READER, str(path), "0.032"], stdout=subprocess.PIPE, text=True)
        names_failed: list[OSError] = []
        stop = threading.Event()

        def look_at_names() -> None:
            while not stop.is_set():
                for number in range(0, 200, 7):
                    small = mount.mountpoint / f"small-{number:03d}"
                    try:
                        assert small.read_bytes() == b"%d" % number * 1000
                        assert len(os.listdir(mount.mountpoint)) == 201
                    except OSError as error:
                        names_failed.append(error)

        looker = threading.Thread(target=look_at_names)
        looker.start()
        started = time.monotonic()
        killed = set()
        for _ in range(KILLS):
            killed.add(mount.kill_worker())
            time.sleep(KILLS_WITHIN_S / KILLS * 0.9)
        took = time.monotonic() - started
        stop.set()
        looker.join()
        output, _ = reader.communicate(timeout=120)
        state = mount.status()
        assert took <= KILLS_WITHIN_S
        assert len(killed - {None}) >= KILLS - 1
        assert reader.returncode == 0
        assert output.strip() == expected
        assert names_failed == []
        assert state["restarts"] == len(killed - {None})
        assert state["read_errors"] == 0
        assert state["worker_pid"] not in killed


def test_a_mapping_survives_and_open_files_of_both_kinds_go_on(large: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = large
    with PlainMount(tmp_path, folder) as mount:
        (mount.marks / "small-001.partial").touch()
        with (mount.mountpoint / "large.bin").open("rb") as sealed, (mount.mountpoint / "small-001").open("rb") as part:
            with mmap.mmap(sealed.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
                for number in (0, 5, 20, 31):
                    mount.wait_for_worker(mount.kill_worker())
                    block = block_of(number)
                    start = number * BLOCK_BYTES
                    assert mapping[start : start + BLOCK_BYTES] == block
                    assert os.pread(sealed.fileno(), 1000, start) == block[:1000]
            assert part.read() == b"1" * 1000
        assert mount.status()["restarts"] == 4


def test_status_answers_while_no_worker_lives_and_back_off_grows(large: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = large
    with PlainMount(tmp_path, folder) as mount:
        (mount.marks / "die").touch()  # every new worker ends at its start
        mount.kill_worker()
        deadline = time.monotonic() + 20
        while mount.status()["restarts"] < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        state = mount.status()
        assert state["supervisor_pid"] == mount.process.pid
        assert state["restarts"] >= 4
        assert state["transport"] == "kernel"
        seen = [mount.status()["worker_pid"] for _ in range(20) if time.sleep(0.01) is None]
        assert None in seen
        # A reader that comes now waits, and is answered as soon as a worker lives.
        waiting = subprocess.Popen(["cat", str(mount.mountpoint / "small-002")], stdout=subprocess.PIPE)
        time.sleep(0.2)
        assert waiting.poll() is None
        (mount.marks / "die").unlink()
        output, _ = waiting.communicate(timeout=20)
        assert output == b"2" * 1000
        assert mount.status()["worker_pid"] is not None


def test_the_worker_serves_on_when_its_supervisor_is_killed_and_no_other_can_start(
    large: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = large
    with StandInManager(tmp_path) as manager, PlainMount(tmp_path, folder).under(manager) as mount:
        worker = mount.status()["worker_pid"]
        held = (mount.mountpoint / "small-003").open("rb")
        mount.process.send_signal(signal.SIGKILL)
        mount.process.wait()
        with held:
            assert held.read() == b"3" * 1000
        assert (mount.mountpoint / "small-004").read_bytes() == b"4" * 1000
        deadline = time.monotonic() + 5
        state = mount.status()
        while state["supervisor_pid"] is not None and time.monotonic() < deadline:
            state = mount.status()
        assert state["supervisor_pid"] is None
        assert state["worker_pid"] == worker
        assert "unmounted" in control.ask(mount.mountpoint, "unmount", lazy=False)
        assert mounted_at(mount.mountpoint) is None
        deadline = time.monotonic() + 5
        while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{worker}").exists()
