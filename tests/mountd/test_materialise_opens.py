"""Opens in trees of hard links are told of: which file and process, in any mount namespace; the cache's own are not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catalog.manifest import DEFAULT_MTIME_NS, Manifest
from catalog.names import parse_release
from mountd.cache.layout import Layout
from mountd.cache.store import Cache
from mountd.interfaces import MountConfig, Opened
from mountd.materialise import opens
from mountd.materialise.fanotify import Fanotify
from mountd.materialise.ground import has_passthrough, may_mount, why_not_materialised
from mountd.materialise.opens import OpenWatch
from mountd.materialise.trees import Trees, tree_name
from mountd.options import Options
from mountd.releases import ListedRelease, ReleaseTree
from mountd.rows import Rows
from tests.support.releases import make_release

FILES = {"README.md": b"# chat\n", **{f"data/{number:02d}.bin": b"%d" % number * 100 for number in range(30)}}


def wait_until(true: Callable[[], object], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


class Watched:
    """The tree of a release, and what was told of opens in it."""

    def __init__(self, base: Path) -> None:
        layout = Layout.prepare(base / "cache")
        made = make_release(parse_release("datasets/belle/chat@1.0"), FILES, base)
        rows = Rows(Manifest.open(made.manifest))
        self.objects = []
        for path, content in FILES.items():
            place = layout.object_path(made.entries[path].sha256)
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o444)
            os.utime(place, ns=(0, DEFAULT_MTIME_NS))
            self.objects.append(place)
        listed = ListedRelease(made.ref, made.digest, len(FILES), 1, 0, None, b"{}", b"s", lambda: rows)
        self.release = ReleaseTree(7, 5, listed)
        trees = Trees(layout)
        marker = trees.build(listed, rows, 1000, lambda: False)
        self.root = trees.path(tree_name(listed))
        self.told: list[Opened] = []
        self.watch = OpenWatch(Fanotify(), self.told.append)
        self.watch.mark(self.release, self.root, marker.folders)
        self.watch.start()

    def paths(self) -> list[str]:
        """The paths that were told, as the release has them."""
        return [self._path(opened.node.nodeid) for opened in self.told]

    def _path(self, nodeid: int) -> str:
        parts: list[str] = []
        while (place := self.release.place(nodeid)) is not None and nodeid != self.release.nodeid:
            parts.insert(0, place[1].decode())
            nodeid = place[0]
        return "/".join(parts)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.watch.close()


def test_an_open_is_told_with_file_process_and_user(watched: Watched) -> None:
    names = ["README.md", "data/07.bin", "release.json"]
    # It lives a moment longer than its opens: its owner is asked for while it does.
    script = """
import os, sys, time
root = os.open(sys.argv[1], os.O_RDONLY)
os.setuid(1234)
for name in sys.argv[2:]:
    os.close(os.open(name, os.O_RDONLY, dir_fd=root))
time.sleep(5)
"""
    reader = subprocess.Popen([sys.executable, "-c", script, watched.root, *names])
    (watched.root / "README.md").read_bytes()  # this process is the daemon here
    wait_until(lambda: len(watched.told) == 3)
    reader.kill()
    reader.wait()
    assert sorted(watched.paths()) == ["README.md", "data/07.bin", "release.json"]
    assert {(each.pid, each.uid, each.tier) for each in watched.told} == {(reader.pid, 1234, "materialised")}
    sizes = {watched._path(each.node.nodeid): each.node.size for each in watched.told}
    assert sizes["data/07.bin"] == len(FILES["data/07.bin"])
    assert all(each.node.release == watched.release.listed.ref for each in watched.told)
    assert watched.watch.last_open[watched.release] > 0
    assert (watched.watch.count, watched.watch.lost) == (3, 0)


def test_a_bind_mount_in_another_namespace_is_seen_and_the_caches_own_names_are_not(
    watched: Watched, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    script = f"mount --bind {watched.root} {place} && cat {place}/data/*.bin > /dev/null"
    subprocess.run(["unshare", "--mount", "sh", "-c", script], check=True)
    wait_until(lambda: len(watched.told) == 30)
    assert set(watched.paths()) == set(FILES) - {"README.md"}
    subprocess.run(["cat", *watched.objects], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cat", watched.root / "README.md"], check=True, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(watched.told) > 30)
    time.sleep(0.1)
    assert watched.paths()[30:] == ["README.md"]


def test_a_queue_that_runs_over_is_counted_and_telling_goes_on(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = int(Path("/proc/sys/fs/fanotify/max_queued_events").read_text())
    monkeypatch.setattr(opens, "MOST_WAITING", 0)  # nothing is read
    time.sleep(0.1)
    # Equal opens of one process become one event, so each round is a process of its own.
    script = """
import os, sys
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        for path in sys.argv[2:]:
            os.close(os.open(path, os.O_RDONLY))
        os._exit(0)
    os.waitpid(child, 0)
"""
    files = sorted((watched.root / "data").iterdir())
    subprocess.run([sys.executable, "-c", script, str(most // len(files) + 2), *files], check=True)
    monkeypatch.undo()
    wait_until(lambda: watched.watch.lost == 1)
    before = len(watched.told)
    assert before <= most
    wait_until(lambda: len(watched.told) >= most * 0.9)
    subprocess.run(["cat", watched.root / "README.md"], check=True, stdout=subprocess.DEVNULL)
    wait_until(lambda: watched.paths()[-1] == "README.md")


def test_names_that_are_remembered_are_bounded(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opens, "KEPT_ROWS", 5)
    for _ in range(2):
        subprocess.run(["sh", "-c", f"cat {watched.root}/data/*.bin"], check=True, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(watched.told) == 60)
    assert set(watched.paths()) == set(FILES) - {"README.md"}
    assert sum(len(names) for names in watched.watch._rows.values()) <= 6


def test_an_exception_of_who_is_told_does_not_end_the_telling(watched: Watched) -> None:
    told: list[Opened] = []

    def refuse(opened: Opened) -> None:
        told.append(opened)
        raise RuntimeError("no")

    watched.watch._opened = refuse
    for number in (1, 2):
        subprocess.run(["cat", watched.root / "README.md"], check=True, stdout=subprocess.DEVNULL)
        wait_until(lambda number=number: len(told) == number)


def test_where_releases_are_not_materialised_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = MountConfig(tmp_path / "mnt", tmp_path / "cache", 1 << 30, "", None, None)
    cache = Cache.open(config.cache, config.cache_size_bytes)
    try:

        def why(**options: str) -> str:
            return why_not_materialised(Options(**options), config.mountpoint, cache)  # type: ignore[arg-type]

        assert "switched off" in why(materialise="no")
        assert "ledger = required" in why(ledger="required")
        assert "libfuse" in why()  # nothing of the kernel transport is mounted there
        assert may_mount()
        assert has_passthrough(cache) == (tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 9))
        monkeypatch.setenv("OPENSHELF_PASSTHROUGH", "0")
        assert not has_passthrough(cache)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert "CAP_SYS_ADMIN" in why()
        cache.overlay = True
        assert "overlayfs" in why()
    finally:
        monkeypatch.undo()
        cache.close()
