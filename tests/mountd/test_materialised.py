"""Complete releases become trees of hard links over the mount: what is seen there, how long, and where."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catalog.names import ReleaseRef, parse_release
from mountd.materialise.binds import binds_below
from tests.support.catalog_server import RunningCatalog, catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount
from tests.support.releases import pattern

FILES = {
    "data/train-00000-of-00001.parquet": pattern(5_000_000, 3),
    "data/空.txt": b"",
    "data/deep/er/one.bin": pattern(1500, 4),
    "data-2/one.bin": pattern(1500, 4),
    **{f"images/{number:03d}.jpg": pattern(2000 + number, number) for number in range(60)},
}


def wait_until(true: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    with catalog_process(tmp_path_factory.mktemp("catalog") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def publisher(catalog: RunningCatalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    people = Publisher(catalog, tmp_path_factory.mktemp("uploads"))
    yield people
    people.close()


class Shown:
    """One release on one mounted node."""

    def __init__(self, mount: RealMount, ref: ReleaseRef) -> None:
        self.mount = mount
        self.ref = ref
        self.path = mount.mountpoint / str(ref.collection) / ref.version

    def read_all(self) -> None:
        for path in sorted(self.path.rglob("*")):
            if path.is_file():
                path.read_bytes()

    def is_bound(self) -> bool:
        return any(b.target == self.path for b in binds_below(self.mount.mountpoint, self.mount.cache / "trees"))

    def materialise(self) -> None:
        self.read_all()
        wait_until(self.is_bound)

    def kill_worker(self) -> None:
        """SIGKILL the worker, and wait until another serves."""
        killed = self.mount.status()["worker_pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(killed, signal.SIGKILL)
        wait_until(lambda: self.mount.status()["worker_pid"] not in (None, killed))


@pytest.fixture
def shown(
    request: pytest.FixtureRequest, catalog: RunningCatalog, publisher: Publisher, tmp_path: Path
) -> Iterator[Shown]:
    """A release of a collection named after the test, mounted on a node of its own."""
    name = request.node.name.removeprefix("test_").replace("_", "-")[:60]
    ref = parse_release(f"datasets/belle/{name}@1.0")
    publisher.publish(ref, {**FILES, "README.md": f"# {name}\n".encode()})
    with RealMount(tmp_path, catalog.url, catalog.token(name, "node")) as mount:
        wait_until((mount.mountpoint / str(ref.collection) / "1.0").is_dir)
        yield Shown(mount, ref)


def walk(root: Path) -> dict[str, tuple[int, int, int, int, int, bytes]]:
    """By path: type and mode, size (0 for a folder), mtime, uid, gid, bytes."""
    found = {}
    for path in [root, *root.rglob("*")]:
        state = path.lstat()
        size = state.st_size if path.is_file() else 0
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (
            state.st_mode, size, state.st_mtime_ns, state.st_uid, state.st_gid, content,
        )  # fmt: skip
    return found


def test_it_looks_as_through_the_daemon(shown: Shown) -> None:
    before = walk(shown.path)
    assert before["images/007.jpg"][5] == FILES["images/007.jpg"]
    wait_until(shown.is_bound)
    assert os.stat(shown.path).st_dev != os.stat(shown.path.parent).st_dev
    after = walk(shown.path)
    assert after == before
    options = next(
        line.split()[5] for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {shown.path} " in line
    )
    assert {"ro", "nosuid", "nodev"} <= set(options.split(","))


class Namespace:
    """A mount namespace with its own copy of the mounts, like a container's that was started at this moment."""

    def __init__(self, propagation: str) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", propagation, "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def run(self, *command: str) -> str:
        enter = ["nsenter", "--mount", "--target", str(self._process.pid), *command]
        done = subprocess.run(enter, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def has(self, path: Path) -> bool:
        return f" {path} " in Path(f"/proc/{self._process.pid}/mountinfo").read_text()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def test_it_outlives_workers_publications_and_tags_in_every_namespace(shown: Shown, publisher: Publisher) -> None:
    shown.materialise()
    inode = os.stat(shown.path).st_ino
    sibling = ReleaseRef(shown.ref.collection, "2.0")
    with Namespace("private") as private, Namespace("slave") as slave, Worker(shown) as inside:
        publisher.publish(sibling, {"README.md": b"# two\n"})
        publisher.curator.tag(shown.ref, "latest")
        wait_until((shown.path.parent / "2.0").is_dir)
        wait_until((shown.path.parent / "latest").is_symlink)
        publisher.curator.tag(sibling, "latest")
        wait_until(lambda: os.readlink(shown.path.parent / "latest") == "2.0")
        for _ in range(2):
            shown.kill_worker()
        time.sleep(1.2)  # the entries of the folders above have expired, and are looked up again
        assert (shown.path / "images" / "001.jpg").read_bytes() == FILES["images/001.jpg"]
        assert os.stat(shown.path).st_ino == inode
        for namespace in (private, slave):
            assert namespace.has(shown.path)
            assert namespace.run("stat", "-c", "%i", str(shown.path)) == f"{inode}\n"
            assert namespace.run("head", "-c", "2", f"{shown.path}/README.md") == "# "
        assert inside.ask("os.getcwd()") == str(shown.path / "data")
        assert inside.ask("open('deep/er/one.bin', 'rb').read(3)") == repr(FILES["data/deep/er/one.bin"][:3])
        assert shown.mount.status()["releases_materialised"] == 1


class Worker:
    """A process whose working directory is a folder of the release."""

    def __init__(self, shown: Shown) -> None:
        script = "import os, sys\nfor line in sys.stdin: print(eval(line), flush=True)"
        self._process = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=shown.path / "data",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, expression: str) -> str:
        """What an expression gives there, as text."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip("\n")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def test_a_process_that_worked_in_the_folder_before_goes_on(shown: Shown) -> None:
    with Worker(shown) as inside:
        shown.materialise()
        assert inside.ask("os.getcwd()") == str(shown.path / "data")
        assert inside.ask("len(open('train-00000-of-00001.parquet', 'rb').read())") == "5000000"
        assert inside.ask("os.listdir('..') == os.listdir('../../1.0')") == "True"


def test_withdrawal_takes_it_away_everywhere_and_frees_its_files(shown: Shown, publisher: Publisher) -> None:
    shown.materialise()
    objects = shown.mount.cache / "objects"
    before = len(list(objects.glob("??/*")))
    with Namespace("private") as private, Namespace("slave") as slave:
        held = (shown.path / "images" / "001.jpg").open("rb")
        publisher.curator.withdraw(shown.ref, "privacy")
        started = time.monotonic()
        wait_until(lambda: not shown.path.exists())
        assert time.monotonic() - started < 2
        for namespace in (private, slave):
            assert not namespace.has(shown.path)
            assert "No such file" in namespace.run("ls", str(shown.path))
        assert held.read() == FILES["images/001.jpg"]
        held.close()
        wait_until(lambda: len(list(objects.glob("??/*"))) < before)
        wait_until(lambda: not any((shown.mount.cache / "trees").glob("[!.]*")))
        assert not shown.is_bound()
        assert shown.mount.status()["releases_materialised"] == 0


def test_the_tree_is_there_again_after_unmounting_and_mounting(shown: Shown) -> None:
    shown.materialise()
    mount = shown.mount
    [tree] = [path for path in (mount.cache / "trees").iterdir() if path.is_dir() and path.name[0] != "."]
    inode = tree.stat().st_ino
    half_built = mount.cache / "trees" / f".new-{tree.name}"
    mount.call("umount", str(mount.mountpoint))
    assert not binds_below(mount.mountpoint, mount.cache / "trees")
    (half_built / "data").mkdir(parents=True)
    (mount.cache / "trees" / "without-a-record").mkdir()
    with mount:
        wait_until(shown.is_bound)
        assert shown.path.stat().st_ino == inode
        assert walk(shown.path)["images/007.jpg"][5] == FILES["images/007.jpg"]
        assert mount.status()["opens_served"] == 0
        assert sorted(path.name for path in (mount.cache / "trees").iterdir() if path.is_dir()) in (
            [".stage", tree.name],
            [tree.name],
        )
        mount.call("umount", str(mount.mountpoint))


def test_switched_off_nothing_is_made_and_old_trees_go(shown: Shown) -> None:
    shown.materialise()
    mount = shown.mount
    mount.call("umount", str(mount.mountpoint))
    assert any((mount.cache / "trees").iterdir())
    with RealMount(mount.mountpoint.parent, mount.url, mount.token, OPENSHELF_MATERIALISE="no") as other:
        shown.read_all()
        assert not any(path for path in (mount.cache / "trees").iterdir() if path.name != ".stage")
        assert other.status()["releases_materialised"] == 0
        other.call("umount", str(mount.mountpoint))


def test_opens_are_seen_in_every_namespace(shown: Shown) -> None:
    shown.materialise()
    before = shown.mount.status()["opens_materialised"]
    with Namespace("private") as private:
        private.run("sh", "-c", f"cat {shown.path}/images/*.jpg > /dev/null")
        wait_until(lambda: shown.mount.status()["opens_materialised"] >= before + 60)


def test_evicted_by_order_its_files_are_freed_and_the_daemon_serves_it_again(shown: Shown) -> None:
    shown.materialise()
    mount = shown.mount
    with Namespace("private") as private, Worker(shown) as inside:
        answer = json.loads(mount.call("evict", str(mount.mountpoint), str(shown.ref), "--json").stdout)
        assert answer["files"] > 0
        assert not shown.is_bound()
        assert not private.has(shown.path)
        assert not [path for path in (mount.cache / "trees").iterdir() if path.name not in (".stage",)]
        assert walk(shown.path)["images/007.jpg"][5] == FILES["images/007.jpg"]
        assert private.run("cat", f"{shown.path}/data/空.txt") == ""
        assert inside.ask("os.path.exists('/')") == "True"
    shown.read_all()
    rows = json.loads(mount.call("cache", "ls", str(mount.mountpoint), "--json").stdout)["releases"]
    assert {row["tier"] for row in rows if row["release"] == str(shown.ref)} == {"passthrough"}


def test_a_damaged_file_is_not_shown_any_longer(shown: Shown) -> None:
    shown.materialise()
    mount = shown.mount
    digest = hashlib.sha256(FILES["images/001.jpg"]).hexdigest()
    path = mount.cache / "objects" / digest[:2] / digest
    times = path.stat()
    with path.open("r+b") as stream:
        stream.write(b"flipped")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    mount.call("cache", "verify", str(mount.mountpoint), "--json", check=False)
    wait_until(lambda: (shown.path / "images" / "001.jpg").read_bytes() == FILES["images/001.jpg"])
    assert not shown.is_bound()
