"""A withdrawal from the catalog to a mounted node: names, open files, cached objects, holders, confirmations."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from catalog.client import Client
from catalog.names import ReleaseRef, parse_release
from tests.support.catalog_server import RunningCatalog, running_catalog
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount
from tests.support.releases import pattern

LARGE = pattern(9 << 20, 3)
SHARED = pattern(5 << 20, 4)
PAGE = 4096

READER = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(descriptor).st_size
mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
print("ready", flush=True)
for line in sys.stdin:
    what, place = line.split()
    try:
        data = os.pread(descriptor, 4096, int(place)) if what == "read" else mapped[int(place) : int(place) + 4096]
        print(data.hex(), flush=True)
    except OSError as error:
        print("errno", error.errno, flush=True)
"""


class Reader:
    """A process that has a file open and mapped, and reads where it is told to; ``elsewhere``: in a mount namespace of
    its own, like a container."""

    def __init__(self, path: Path, *, elsewhere: bool) -> None:
        command = [*(["unshare", "--mount"] if elsewhere else []), sys.executable, "-c", READER, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, what: str, place: int) -> str:
        """The page at ``place`` in hexadecimal, ``errno N``, or nothing when the process died of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {place}\n")
        self.process.stdin.flush()
        return self._line()

    def end(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(timeout=20)


def page(content: bytes, place: int) -> str:
    return content[place : place + PAGE].hex()


def wait_until(true: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@dataclass
class World:
    """A catalog, those who publish, and readers that are ended."""

    catalog: RunningCatalog
    people: Publisher
    auditor: Client
    base: Path
    readers: list[Reader] = field(default_factory=list)

    def publish(self, name: str, **files: bytes) -> ReleaseRef:
        ref = parse_release(name)
        self.people.publish(ref, {f"{path}.bin": content for path, content in files.items()})
        return ref

    def mount(self, name: str, **env: str) -> RealMount:
        env = {"OPENSHELF_NODE": name, "OPENSHELF_MATERIALISE": "no", **env}
        return RealMount(self.base / name, self.catalog.url, self.catalog.token("node-1", "node"), **env)

    def read(self, path: Path, *, elsewhere: bool = False) -> Reader:
        reader = Reader(path, elsewhere=elsewhere)
        self.readers.append(reader)
        return reader

    def withdraw(self, ref: ReleaseRef, *, revoke: bool = False) -> None:
        self.auditor.withdraw(ref, "takedown", revoke=revoke)

    def confirmation(self, ref: ReleaseRef, node: str) -> dict[str, Any] | None:
        found = self.auditor.confirmations(ref)
        return next((each for each in found["confirmations"] if each["node"] == node), None)

    def confirmed(self, ref: ReleaseRef, node: str) -> dict[str, Any]:
        wait_until(lambda: self.confirmation(ref, node) is not None, f"{node} has not confirmed")
        found = self.confirmation(ref, node)
        assert found is not None
        return found

    def released(self, ref: ReleaseRef, node: str) -> dict[str, Any]:
        def is_released() -> bool:
            found = self.confirmation(ref, node)
            return found is not None and found["released"] is not None

        wait_until(is_released, f"{node} says that files are held")
        return self.confirmed(ref, node)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    with running_catalog(tmp_path_factory.mktemp("catalog")) as running:
        yield running


@pytest.fixture
def world(catalog: RunningCatalog, tmp_path: Path) -> Iterator[World]:
    people = Publisher(catalog, tmp_path)
    auditor = Client(catalog.url, catalog.token("wu", "auditor"))
    made = World(catalog, people, auditor, tmp_path)
    yield made
    for reader in made.readers:
        if reader.process.poll() is None:
            reader.process.kill()
            reader.end()
    people.close()
    auditor.close()


def release_folder(mount: RealMount, ref: ReleaseRef) -> Path:
    return mount.mountpoint / str(ref.collection) / ref.version


def seal(mount: RealMount, path: Path, content: bytes) -> None:
    """Read a file until it is complete in the cache."""
    assert path.read_bytes() == content
    name = hashlib.sha256(content).hexdigest()
    wait_until((mount.cache / "objects" / name[:2] / name).exists, "the file is not sealed")


def objects(mount: RealMount) -> int:
    return sum(1 for _ in (mount.cache / "objects").glob("??/*"))


def kill_worker(mount: RealMount) -> None:
    pid = mount.status()["worker_pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: mount.status()["worker_pid"] not in (None, pid), "no new worker")


@pytest.mark.parametrize("passthrough", ["1", "0"])
def test_drained_handles_go_on_and_their_holders_are_named_until_they_close(world: World, passthrough: str) -> None:
    ref = world.publish(f"datasets/drain/p{passthrough}@1.0", large=LARGE)
    with world.mount("gpu-1", OPENSHELF_PASSTHROUGH=passthrough) as mount:
        folder = release_folder(mount, ref)
        seal(mount, folder / "large.bin", LARGE)
        reader = world.read(folder / "large.bin")
        world.withdraw(ref)
        wait_until(lambda: not folder.exists(), "the name is still there")
        told = world.confirmed(ref, "gpu-1")
        assert (told["policy"], told["open_files"], told["released"]) == ("drain", 1, None)
        [holder] = told["holders"]
        assert (holder["pid"], holder["uid"], holder["files"]) == (reader.process.pid, os.getuid(), 1)
        assert reader.ask("read", 5 << 20) == page(LARGE, 5 << 20)
        assert reader.ask("map", 6 << 20) == page(LARGE, 6 << 20)
        kill_worker(mount)
        assert reader.ask("read", 1 << 20) == page(LARGE, 1 << 20)
        assert reader.ask("map", 2 << 20) == page(LARGE, 2 << 20)
        assert reader.end() == 0
        told = world.released(ref, "gpu-1")
        assert (told["holders"], told["objects_removed"]) == ([], 1 if passthrough == "1" else 0)
        assert objects(mount) == 0
        assert list((mount.cache / "manifests").glob("*.arrow")) == []


@pytest.mark.parametrize("passthrough", ["1", "0"])
def test_files_that_were_opened_under_another_access_rule_are_held_too(world: World, passthrough: str) -> None:
    ref = world.publish(f"datasets/rules/p{passthrough}@1.0", large=LARGE)
    with world.mount("gpu-1", OPENSHELF_PASSTHROUGH=passthrough) as mount:
        folder = release_folder(mount, ref)
        seal(mount, folder / "large.bin", LARGE)
        in_public = world.read(folder / "large.bin")
        access = {"access": "restricted", "readers": ["node-1"]}
        path = f"/v1/collections/{ref.collection}/access"
        world.people.curator._session.call("PUT", path, json_body=access)
        wait_until(lambda: folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700, "everybody may still enter")
        in_restricted = world.read(folder / "large.bin")
        kill_worker(mount)
        for reader, place in ((in_public, 1 << 20), (in_restricted, 2 << 20)):
            assert reader.ask("read", place) == reader.ask("map", place) == page(LARGE, place)
        world.withdraw(ref)
        told = world.confirmed(ref, "gpu-1")
        assert (told["open_files"], told["released"]) == (2, None)  # one file by two node ids
        assert {each["pid"] for each in told["holders"]} == {in_public.process.pid, in_restricted.process.pid}
        kill_worker(mount)
        for reader, place in ((in_public, 5 << 20), (in_restricted, 6 << 20)):
            assert reader.ask("read", place) == reader.ask("map", place) == page(LARGE, place)
        assert in_public.end() == in_restricted.end() == 0
        world.released(ref, "gpu-1")
        assert objects(mount) == 0


@pytest.mark.parametrize(("passthrough", "demanded"), [("1", True), ("0", False)])
def test_revoked_handles_and_mappings_end(world: World, passthrough: str, demanded: bool) -> None:
    """Demanded by the withdrawal itself, or by the node's own setting."""
    ref = world.publish(f"datasets/revoke/p{passthrough}@1.0", large=LARGE)
    policy = "drain" if demanded else "revoke"
    with world.mount("gpu-1", OPENSHELF_PASSTHROUGH=passthrough, OPENSHELF_WITHDRAW=policy) as mount:
        path = release_folder(mount, ref) / "large.bin"
        seal(mount, path, LARGE)
        by_read, by_map = world.read(path), world.read(path, elsewhere=True)
        assert by_read.ask("read", 5 << 20) == by_map.ask("map", 5 << 20) == page(LARGE, 5 << 20)
        world.withdraw(ref, revoke=demanded)
        told = world.confirmed(ref, "gpu-1")
        assert (told["policy"], told["open_files"], told["objects_removed"]) == ("revoke", 1, 1)
        assert {holder["pid"] for holder in told["holders"]} == {by_read.process.pid, by_map.process.pid}
        # The end of the file, past the daemon; ESTALE from it.
        assert by_read.ask("read", 5 << 20) == ("" if passthrough == "1" else "errno 116")
        assert by_read.end() == 0
        assert by_map.ask("map", 5 << 20) == ""
        assert by_map.end() == -signal.SIGBUS
        world.released(ref, "gpu-1")
        assert objects(mount) == 0


def test_revoking_spares_what_another_release_needs(world: World) -> None:
    gone = world.publish("datasets/shared/gone@1.0", shared=SHARED, own=LARGE)
    stays = world.publish("datasets/shared/stays@1.0", shared=SHARED)
    with world.mount("gpu-1", OPENSHELF_WITHDRAW="revoke") as mount:
        folder = release_folder(mount, gone)
        seal(mount, folder / "shared.bin", SHARED)
        seal(mount, folder / "own.bin", LARGE)
        reader = world.read(release_folder(mount, stays) / "shared.bin")
        world.withdraw(gone)
        told = world.confirmed(gone, "gpu-1")
        assert (told["objects_removed"], told["bytes_removed"], told["open_files"]) == (1, len(LARGE), 0)
        assert reader.ask("read", 1 << 20) == page(SHARED, 1 << 20)
        assert reader.end() == 0
        assert (release_folder(mount, stays) / "shared.bin").read_bytes() == SHARED
        assert objects(mount) == 1


def test_a_materialised_release_is_cut_off_too(world: World) -> None:
    ref = world.publish("datasets/revoke/materialised@1.0", large=LARGE)
    with world.mount("gpu-1", OPENSHELF_MATERIALISE="yes", OPENSHELF_WITHDRAW="revoke") as mount:
        folder = release_folder(mount, ref)
        seal(mount, folder / "large.bin", LARGE)
        wait_until(lambda: mount.status().get("releases_materialised") == 1, "it is not materialised")
        reader = world.read(folder / "large.bin", elsewhere=True)
        world.withdraw(ref)
        told = world.confirmed(ref, "gpu-1")
        assert [holder["pid"] for holder in told["holders"]] == [reader.process.pid]
        assert reader.ask("read", 5 << 20) == ""
        assert not folder.exists()
        assert reader.end() == 0
        world.released(ref, "gpu-1")


def test_a_node_that_was_away_carries_it_out_and_confirms_when_it_is_back(world: World) -> None:
    ref = world.publish("datasets/away/chat@1.0", large=LARGE)
    mount = world.mount("gpu-away")
    with mount:
        seal(mount, release_folder(mount, ref) / "large.bin", LARGE)
    world.withdraw(ref)
    assert world.confirmation(ref, "gpu-away") is None
    with mount:
        told = world.confirmed(ref, "gpu-away")
        assert (told["objects_removed"], told["released"] is not None) == (1, True)
        assert objects(mount) == 0


def test_access_that_is_lost_removes_the_files_and_confirms_nothing(world: World) -> None:
    ref = world.publish("datasets/closed/chat@1.0", large=LARGE)
    with world.mount("gpu-1") as mount:
        folder = release_folder(mount, ref)
        seal(mount, folder / "large.bin", LARGE)
        path = f"/v1/collections/{ref.collection}/access"
        world.people.curator._session.call("PUT", path, json_body={"access": "restricted", "readers": []})
        wait_until(lambda: not folder.exists(), "the name is still there")
        wait_until(lambda: objects(mount) == 0, "the file is still there")
    world.withdraw(ref)
    assert world.auditor.confirmations(ref)["confirmations"] == []


def test_what_was_opened_and_by_whom_reaches_the_catalog_when_the_mount_ends(world: World) -> None:
    ref = world.publish("datasets/used/chat@1.0", large=LARGE, small=b"x" * 100)
    before = world.auditor.usage_groups({}, "node")["unrecorded"]
    with world.mount("gpu-used") as mount:
        folder = release_folder(mount, ref)
        for _ in range(3):
            (folder / "large.bin").read_bytes()
        (folder / "small.bin").read_bytes()
        kept = mount.status()
        kill_worker(mount)
        (folder / "small.bin").read_bytes()
        assert "ledger_opens" in kept
        mount.call("umount", str(mount.mountpoint))
    found = world.auditor.usage({"release": str(ref)})
    recorded = sum(each["opens"] for each in found)
    missing = world.auditor.usage_groups({}, "node")["unrecorded"] - before
    assert recorded + missing == 5
    assert {(each["node"], each["uid"]) for each in found} == {("gpu-used", os.getuid())}
    shown = json.loads(
        subprocess.run(
            [sys.executable, "-m", "openshelf", "usage", str(ref), "--by", "node", "--json"],
            env={**os.environ, "OPENSHELF_CATALOG": world.catalog.url, "OPENSHELF_TOKEN": world.catalog.admin_token},
            capture_output=True,
            check=True,
        ).stdout
    )
    assert [(each["key"], each["opens"]) for each in shown["groups"]] == [("gpu-used", recorded)]
