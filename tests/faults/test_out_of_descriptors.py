"""A node whose worker has no descriptor left: opens are refused with the errno that says so, all that is open goes on,
and once there are descriptors again, so does everything that needed one meanwhile."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catalog.names import parse_release
from tests.support.catalog_server import RunningCatalog, catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount
from tests.support.releases import pattern

REF = parse_release("datasets/belle/opened@1.0")
NEXT = parse_release("datasets/belle/opened@2.0")
FILES = {f"{number:02d}.bin": pattern(1_200_000 + number, number) for number in range(80)}
FREE = 30
"""Descriptors that the worker may take beyond those that it has when the test begins."""


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[RunningCatalog]:
    with catalog_process(tmp_path / "catalog") as running:
        yield running


def wait_until(true: Callable[[], bool], said: Callable[[], str], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)


def content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


@pytest.mark.parametrize("orphan", [False, True], ids=["", "its supervisor gone"])
def test_a_node_without_descriptors_recovers_in_everything(
    catalog: RunningCatalog, tmp_path: Path, orphan: bool
) -> None:
    people = Publisher(catalog, tmp_path)
    people.publish(REF, FILES)
    with RealMount(tmp_path, catalog.url, catalog.token("node", "node"), OPENSHELF_MATERIALISE="no") as mount:
        folder = mount.mountpoint / str(REF.collection)
        said = (mount.cache / "mountd.log").read_text
        cached = list(FILES)[: len(FILES) // 2]
        for path in cached:
            assert (folder / "1.0" / path).read_bytes() == FILES[path]
        wait_until(lambda: len(list(mount.cache.glob("objects/*/*"))) == len(cached), said)
        worker = mount.status()["worker_pid"]
        taken = len(os.listdir(f"/proc/{worker}/fd"))
        most = resource.prlimit(worker, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (taken + FREE, most))
        held: dict[str, int] = {}
        refused: set[int] = set()
        for path in cached:
            try:
                held[path] = os.open(folder / "1.0" / path, os.O_RDONLY)
            except OSError as error:
                refused.add(error.errno)
        assert held and refused <= {errno.EMFILE, errno.ENFILE}, said()
        assert "no descriptor is left" in said()
        people.publish(NEXT, {"new.bin": b"a second version"})
        if orphan:
            os.kill(mount.status()["supervisor_pid"], signal.SIGKILL)
        time.sleep(6)  # the state is told, memory looked at, the feed followed, caches kept, the ledger delivered
        if not orphan:
            mount.status()
        for path in list(FILES)[-3:]:  # never read before
            assert content(folder / "1.0" / path) in (None, FILES[path])
        for path, descriptor in held.items():
            assert os.pread(descriptor, 1 << 21, 0) == FILES[path]
            os.close(descriptor)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (most, most))
        wait_until(lambda: content(folder / "2.0" / "new.bin") == b"a second version", said)
        assert {path: (folder / "1.0" / path).read_bytes() for path in FILES} == FILES
        people.curator.withdraw(NEXT, "other", "gone")
        wait_until(lambda: not (folder / "2.0").exists(), said)
        now = mount.status()
        assert (now["worker_pid"], now["restarts"]) == (worker, 0), said()
        assert (now["supervisor_pid"] is None) is orphan, said()
    people.close()
