"""What would end other daemons: no memory, no descriptors, a worker that hangs. Readers notice nothing, or an errno."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mountd import control, duties
from mountd.cli.status import _lines
from mountd.duties import Identity
from mountd.kernel.mounting import mounted_at
from mountd.memory import AnonymousMemory, Memory, standing
from mountd.shared_state import SharedState
from tests.support.plain_mount import PlainMount
from tests.support.releases import pattern

MIB = 1 << 20
LARGE = pattern(16 * MIB, 3)
SMALL = 200
READER = """
import os, sys, time
expected = open(sys.argv[2], "rb").read()
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    with open(sys.argv[1], "rb", buffering=0) as stream:
        found = b"".join(iter(lambda: stream.read(1 << 18), b""))
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert found == expected, "other bytes"
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "large").write_bytes(LARGE)
    for number in range(SMALL):
        (folder / f"small-{number:03d}").write_bytes(b"%d" % number * 100)
    return folder


@contextlib.contextmanager
def served_readers(mount: PlainMount, lasts_s: float) -> Iterator[None]:
    """Two readers of a served file go on for so long, and see nothing but its bytes."""
    (mount.marks / "large.partial").touch()
    arguments = [
        sys.executable,
        "-c",
        READER,
        str(mount.mountpoint / "large"),
        str(mount.source / "large"),
        str(lasts_s),
    ]
    readers = [subprocess.Popen(arguments) for _ in range(2)]
    yield
    assert [reader.wait(timeout=60) for reader in readers] == [0, 0]


def wait(condition: Callable[[], bool], mount: PlainMount, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, mount.said()
        time.sleep(0.05)


def hoard(mount: PlainMount, mib: int, *, for_good: bool) -> None:
    """Let the worker take memory; it may die of it."""
    with contextlib.suppress(control.ControlError):
        list(control.order(mount.mountpoint, "hoard", mib=mib, for_good=for_good))


def test_memory_that_can_be_given_back_is_and_what_cannot_ends_the_worker(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source, memory_bytes=250 * MIB) as mount, served_readers(mount, 14):
        worker = mount.status()["worker_pid"]
        own = AnonymousMemory(worker)
        hoard(mount, 300, for_good=False)
        wait(lambda: "after letting go" in mount.said() and own.used_bytes() < 200 * MIB, mount)
        assert mount.status()["worker_pid"] == worker
        hoard(mount, 300, for_good=True)
        wait(lambda: mount.status()["restarts"] == 1, mount)
        assert "are more than the limit" in mount.said()
        fresh = mount.wait_for_worker(worker)
        assert AnonymousMemory(fresh).used_bytes() < 200 * MIB
    assert "read_errors" in mount.state


def test_a_worker_that_the_kernel_kills_for_memory_is_replaced(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source, memory_bytes=0) as mount, memory_group(200 * MIB) as group:
        worker = mount.status()["worker_pid"]
        for pid in (mount.process.pid, worker):  # both, as in the unit: the kernel chooses
            (group / "cgroup.procs").write_text(str(pid))
        with served_readers(mount, 6):
            hoard(mount, 400, for_good=True)
            wait(lambda: mount.status()["restarts"] == 1, mount)
            state = mount.status()
            assert "was killed by signal 9" in mount.said()
            assert state["supervisor_pid"] == mount.process.pid
            assert mount.wait_for_worker(worker) != worker


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group with a limit of memory, of either version; it must be empty at the end, or is left to its end."""
    newer = Path("/sys/fs/cgroup/cgroup.controllers")
    if newer.exists() and "memory" in newer.read_text().split():
        parent, file = Path("/sys/fs/cgroup"), "memory.max"
        (parent / "cgroup.subtree_control").write_text("+memory")
    else:
        parent, file = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    group = parent / f"openshelf-test-{os.getpid()}"
    group.mkdir()
    (group / file).write_text(str(limit_bytes))
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def test_a_worker_without_descriptors_refuses_opens_with_the_errno_and_recovers(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source, passthrough=False, files=80) as mount:
        held = []
        refused: set[int] = set()
        for number in range(SMALL):
            try:
                held.append(os.open(mount.mountpoint / f"small-{number:03d}", os.O_RDONLY))
            except OSError as error:
                refused.add(error.errno)
        assert refused <= {errno.EMFILE, errno.ENFILE}
        assert refused, "the limit was not reached"
        assert len(held) > 20
        time.sleep(1.5)  # the worker tells its state and looks at its memory meanwhile, and misses no descriptor
        assert [os.read(descriptor, 2) for descriptor in held[:3]] == [b"00", b"11", b"22"]
        waiting = control.order(mount.mountpoint, "count", to=2)  # its socket has no descriptor either, for now
        for descriptor in held:
            os.close(descriptor)
        assert [report.get("number") for report in waiting] == [0, 1, None]
        for number in range(SMALL):
            assert (mount.mountpoint / f"small-{number:03d}").read_bytes() == b"%d" % number * 100
        (mount.marks / "large.partial").touch()
        assert (mount.mountpoint / "large").read_bytes() == LARGE
        assert mount.status()["restarts"] == 0


def test_a_worker_without_a_sign_of_life_is_replaced_and_its_readers_served(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source, hung_after_s=2.0) as mount:
        worker = mount.status()["worker_pid"]
        os.kill(worker, signal.SIGSTOP)
        reader = subprocess.Popen(["cat", str(mount.mountpoint / "small-007")], stdout=subprocess.PIPE)
        output, _ = reader.communicate(timeout=60)
        assert output == b"7" * 100
        assert mount.status()["restarts"] == 1
        assert "no sign of life" in mount.said()
        assert mount.status()["worker_pid"] != worker


def test_a_busy_mount_stays_until_it_is_free_or_is_taken_away_lazily(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source) as mount, (mount.mountpoint / "large").open("rb") as held:
        with pytest.raises(control.ControlError, match="in use by"):
            control.ask(mount.mountpoint, "unmount", lazy=False)
        assert held.read(5) == LARGE[:5]
        control.ask(mount.mountpoint, "unmount", lazy=True)
        assert mounted_at(mount.mountpoint) is None
        mount.process.poll()
        assert held.read(5) == LARGE[5:10]
        worker = int(Path(f"/proc/{mount.process.pid}/task/{mount.process.pid}/children").read_text().split()[0])
        os.kill(worker, signal.SIGKILL)  # what is open goes on over a worker's death all the same
        held.seek(8 * MIB)
        assert held.read(5) == LARGE[8 * MIB : 8 * MIB + 5]


@pytest.mark.parametrize(
    ("used", "limit", "expected"),
    [(79, 100, Memory.FINE), (80, 100, Memory.SHORT), (100, 100, Memory.SHORT), (101, 100, Memory.OVER)],
)
def test_memory_is_short_from_four_fifths_of_the_limit(used: int, limit: int, expected: Memory) -> None:
    assert standing(used, limit) is expected
    assert standing(used, 0) is Memory.FINE


def test_anonymous_memory_is_what_a_process_wrote_itself(tmp_path: Path) -> None:
    own = AnonymousMemory(os.getpid())
    before = own.used_bytes()
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:  # no memory of the heap's
        fresh.write(b"\x01" * len(fresh))
        assert own.used_bytes() - before >= 60 * MIB
    own.close()


def test_status_counts_what_waits_and_shows_every_counter_in_its_group(source: Path, tmp_path: Path) -> None:
    connections = Path("/sys/fs/fuse/connections")
    mounted_here = not any(connections.iterdir())
    if mounted_here:
        subprocess.run(["mount", "-t", "fusectl", "none", str(connections)], check=True)
    try:
        with PlainMount(tmp_path, source, passthrough=False) as mount:
            assert mount.status()["waiting"] == 0
            (mount.marks / "large.slow").touch()
            reader = subprocess.Popen(["cat", str(mount.mountpoint / "large")], stdout=subprocess.DEVNULL)
            wait(lambda: mount.status()["waiting"] > 0, mount)
            (mount.marks / "large.slow").unlink()
            assert reader.wait(timeout=20) == 0
            state = mount.status()
    finally:
        if mounted_here:
            subprocess.run(["umount", str(connections)], check=True)
    assert 0 < state["worker_anonymous_bytes"] < state["memory_limit_bytes"] == 1 << 30
    more = {"bytes_fetched": 5 << 20, "evictions": 3, "ledger_waiting": 2, "something_new": 9, "chunk_latency_ms": 4}
    lines = _lines({**state, **more})
    for expected in ("network       fetched 5 MiB", "disk          evictions 3", "ledger        waiting 2"):
        assert f"  {expected}" in lines
    assert "  other         something new 9" in lines
    assert "chunk latency" not in "".join(lines)
    assert any("0 requests waiting" in line for line in lines)


def test_a_clock_set_back_or_forward_changes_no_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SharedState()
    state.beat(7, time.monotonic_ns() - 3_000_000_000)
    identity = Identity(tmp_path, tmp_path, "http://catalog", "kernel", True, "", time.monotonic() - 100)
    for jump_s in (0, -86_400 * 365, 86_400 * 365):
        real = time.time
        monkeypatch.setattr(time, "time", lambda real=real, jump_s=jump_s: real() + jump_s)
        told = duties.status(identity, state, supervisor_pid=6, worker_pid=7)
        monkeypatch.undo()
        assert 99 < told["uptime_s"] < 110
        assert 2.9 < told["worker_silent_s"] < 10
    state.close()
