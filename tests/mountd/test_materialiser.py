"""Which releases are materialised, and which are undone. The mount is a plain folder here, so that a name that is
looked up anew changes nothing, and what is mounted must be taken away on this host."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catalog.manifest import DEFAULT_MTIME_NS, Manifest
from catalog.names import ReleaseRef, parse_release
from mountd.cache.guard import keys_of_all
from mountd.cache.store import Cache
from mountd.inodes import InodeTable
from mountd.interfaces import Node, Opened
from mountd.kernel.mounting import unmount_below
from mountd.materialise import covers, materialiser
from mountd.materialise.binds import binds_below
from mountd.materialise.materialiser import Materialiser
from mountd.options import Options
from mountd.releases import ListedRelease
from mountd.rows import Rows
from mountd.tree import CollectionState, MountTree
from tests.support.releases import MadeRelease, make_release


def wait_until(true: Callable[[], object], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


class Host:
    """A cache, a tree of releases ``1.0``, ``2.0``, … and a folder in the place of a mount."""

    def __init__(self, base: Path, releases: int) -> None:
        self.cache = Cache.open(base / "cache", 1 << 30)
        self.table = InodeTable.open(self.cache.layout.inodes)
        self.mountpoint = base / "public"
        self.told: list[Opened] = []
        self.made = [self._make(base, number) for number in range(1, releases + 1)]
        self.start(self.made)

    def _make(self, base: Path, number: int) -> MadeRelease:
        files = {"README.md": b"# %d\n" % number, "data/a": b"a%d" % number, "data/b": b"b%d" % number}
        made = make_release(parse_release(f"datasets/belle/chat@{number}.0"), files, base)
        (self.mountpoint / "datasets/belle/chat" / f"{number}.0").mkdir(parents=True)
        for path, entry in made.entries.items():
            place = self.cache.layout.object_path(entry.sha256)
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(files[path])
            place.chmod(0o444)
            os.utime(place, ns=(0, DEFAULT_MTIME_NS))
            self.cache.index.put(entry.sha256, 4096, sealed=True)
        return made

    def start(self, listed: list[MadeRelease]) -> None:
        """A worker that shows these releases."""
        self.tree = MountTree(self.table)
        self.list(listed)
        self.materialiser = Materialiser(
            Options(),
            self.mountpoint,
            self.cache,
            self.tree,
            self.told.append,
        )
        self.materialiser.start()

    def list(self, made: list[MadeRelease]) -> None:
        """Show these releases and no others."""
        self.tree.update([CollectionState(ref(1).collection, [_listed(each) for each in made], {})])

    def object(self, number: int) -> Path:
        return self.cache.layout.object_path(self.made[number - 1].entries["data/a"].sha256)

    def bound(self) -> set[str]:
        """The versions that a tree is mounted over."""
        return {bind.target.name for bind in binds_below(self.mountpoint, self.cache.layout.root / "trees")}

    def materialised(self) -> set[str]:
        """The versions that are said to be materialised."""
        return {each.ref.version for each in self.made if self.materialiser.tier_of(each.ref) == "materialised"}

    def is_protected(self, number: int) -> bool:
        digest = self.made[number - 1].entries["data/a"].sha256
        return bool(self.cache.room.guard.covers(keys_of_all([digest]))[0])

    def close(self) -> None:
        self.materialiser.close()
        unmount_below(self.mountpoint, lazy=True)
        self.table.close()
        self.cache.close()


def _listed(made: MadeRelease) -> ListedRelease:
    rows = Rows(Manifest.open(made.manifest))
    record = str(made.ref).encode()
    return ListedRelease(made.ref, made.digest, len(made.entries), 1, 0, None, record, b"s", lambda: rows)


def ref(number: int) -> ReleaseRef:
    return parse_release(f"datasets/belle/chat@{number}.0")


@pytest.fixture
def make_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Host]]:
    monkeypatch.setattr(materialiser, "why_not_materialised", lambda *_: "")
    monkeypatch.setattr(materialiser, "TICK_S", 0.05)
    monkeypatch.setattr(covers, "_GONE_WITHIN_S", 0.05)
    hosts: list[Host] = []

    def make(releases: int) -> Host:
        hosts.append(Host(tmp_path, releases))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


def test_complete_releases_are_materialised_and_protected(make_host: Callable[[int], Host]) -> None:
    host = make_host(2)
    wait_until(lambda: host.materialised() == host.bound() == {"1.0", "2.0"})
    assert host.is_protected(1) and host.is_protected(2)
    assert (host.mountpoint / "datasets/belle/chat/1.0/data/a").read_bytes() == b"a1"
    assert host.materialiser.figures()["releases_materialised"] == 2
    subprocess.run(["cat", host.mountpoint / "datasets/belle/chat/2.0/data/b"], check=True, capture_output=True)
    wait_until(lambda: host.told)
    assert host.told[0].node.release == ref(2)


def test_one_whose_last_file_comes_later_is_materialised_then(make_host: Callable[[int], Host]) -> None:
    host = make_host(2)
    wait_until(lambda: len(host.bound()) == 2)
    host.materialiser.undo(ref(1))
    assert host.bound() == {"2.0"}
    assert not host.is_protected(1)
    host.materialiser.close()
    unmount_below(host.mountpoint, lazy=True)
    path, aside = host.object(1), host.object(1).with_suffix(".aside")
    path.rename(aside)
    host.start(host.made)
    wait_until(lambda: host.bound() == {"2.0"})
    time.sleep(0.3)
    assert host.bound() == {"2.0"}
    aside.chmod(0o400)
    aside.rename(path)  # sealed, but not on the disk yet
    time.sleep(0.3)
    assert host.bound() == {"2.0"}
    path.chmod(0o444)
    wait_until(lambda: host.bound() == host.materialised() == {"1.0", "2.0"})


def test_no_more_releases_than_the_limit(make_host: Callable[[int], Host], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialiser, "MAX_RELEASES", 2)
    host = make_host(3)
    wait_until(lambda: len(host.materialised()) == 2)
    time.sleep(0.2)
    [left_out] = {"1.0", "2.0", "3.0"} - host.bound()
    gone = min(host.bound())
    host.materialiser.undo(parse_release(f"datasets/belle/chat@{gone}"))
    wait_until(lambda: left_out in host.bound())
    assert len(host.bound()) == 2


def test_too_many_folders_leave_a_release_out(
    make_host: Callable[[int], Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialiser, "_inode_budget", lambda *_: 6)  # one tree has 4 inodes of its own
    host = make_host(2)
    wait_until(lambda: len(host.bound()) == 1)
    wait_until(lambda: "inodes" in host.materialiser.why_not(ref(1)) + host.materialiser.why_not(ref(2)))


def test_room_is_made_with_the_one_used_least_recently_unless_pinned(
    make_host: Callable[[int], Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialiser, "IDLE_S", 0)
    host = make_host(3)
    wait_until(lambda: len(host.bound()) == 3)
    host.cache.pins.add(str(ref(3)), host.made[2].digest)
    subprocess.run(["cat", host.mountpoint / "datasets/belle/chat/1.0/data/b"], check=True, capture_output=True)
    wait_until(lambda: host.told)
    host.materialiser.want_room()
    wait_until(lambda: host.bound() == {"1.0", "3.0"})
    wait_until(lambda: not host.is_protected(2))
    assert host.object(2).stat().st_nlink == 1
    monkeypatch.setattr(materialiser, "IDLE_S", 600)
    host.materialiser.want_room()  # 1.0 was used just now
    time.sleep(0.1)
    assert host.bound() == {"1.0", "3.0"}


def test_what_is_listed_no_more_goes(make_host: Callable[[int], Host]) -> None:
    host = make_host(3)
    wait_until(lambda: len(host.bound()) == 3)
    host.list(host.made[1:])
    wait_until(lambda: host.bound() == {"2.0", "3.0"})
    wait_until(lambda: host.object(1).stat().st_nlink == 1)
    host.materialiser.close()
    host.start(host.made[2:])  # 2.0 was withdrawn while no worker lived
    wait_until(lambda: host.bound() == host.materialised() == {"3.0"})
    assert host.object(2).stat().st_nlink == 1


def test_a_damaged_file_undoes_every_release_that_has_it(make_host: Callable[[int], Host]) -> None:
    host = make_host(2)
    wait_until(lambda: len(host.bound()) == 2)
    host.materialiser.note_damage(host.made[0].entries["data/a"].sha256)
    wait_until(lambda: host.bound() == {"2.0"})


def test_the_process_that_mounts_may_be_killed(make_host: Callable[[int], Host]) -> None:
    host = make_host(2)
    wait_until(lambda: len(host.bound()) == 2)
    held = host.materialiser._covers
    assert held is not None and held.mounter._process is not None
    os.kill(held.mounter._process.pid, signal.SIGKILL)
    held.mounter._process.wait()
    host.list(host.made[1:])
    wait_until(lambda: host.bound() == {"2.0"})


def test_opens_of_other_tiers_and_of_the_mounts_own_files_are_taken(make_host: Callable[[int], Host]) -> None:
    host = make_host(1)
    node = Node(9, 9, "file", 0o444, 1, 0, 1.0, content=b"x")
    host.materialiser.note_open(Opened(node, 1, 0, "served"))
    host.materialiser.note_open(Opened(node._replace(release=ref(5)), 1, 0, "served"))
    wait_until(lambda: host.materialised() == {"1.0"})
    assert host.materialiser.tier_of(ref(5)) in ("passthrough", "served")
