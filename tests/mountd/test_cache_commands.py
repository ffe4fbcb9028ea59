"""``openshelf pin``, ``evict``, ``cache ls`` and ``cache verify`` on a real mount."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from catalog.names import ReleaseRef, parse_release
from tests.support.catalog_server import catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount
from tests.support.releases import pattern

SHARED = pattern(300_000, 77)
FIRST, SECOND = parse_release("datasets/belle/chat@1.0"), parse_release("datasets/belle/chat@2.0")
FILES = {
    FIRST: {
        "README.md": b"# first\n",
        "data/large.bin": pattern(9_000_000, 1),
        "data/shared.bin": SHARED,
        "data/empty": b"",
        **{f"images/{number:02d}.jpg": pattern(5000 + number, number) for number in range(30)},
    },
    SECOND: {"README.md": b"# second\n", "data/other.bin": pattern(6_000_000, 2), "data/shared.bin": SHARED},
}


def wait_until(true: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


class Shown:
    """The two releases on a mounted node."""

    def __init__(self, mount: RealMount) -> None:
        self.mount = mount

    def run(self, *arguments: str) -> Any:
        command, *rest = arguments
        words = command.split()
        return json.loads(self.mount.call(*words, str(self.mount.mountpoint), *rest, "--json").stdout)

    def path(self, ref: ReleaseRef, name: str) -> Path:
        return self.mount.mountpoint / str(ref.collection) / ref.version / name

    def read(self, ref: ReleaseRef) -> None:
        for name, content in FILES[ref].items():
            assert self.path(ref, name).read_bytes() == content, name

    def bring(self, ref: ReleaseRef) -> None:
        self.read(ref)
        wait_until(lambda: self.row(ref)["cached_files"] == len(FILES[ref]))

    def row(self, ref: ReleaseRef) -> Any:
        [row] = self.run("cache ls", str(ref))["releases"]
        return row

    def place(self, content: bytes) -> Path:
        name = hashlib.sha256(content).hexdigest()
        return self.mount.cache / "objects" / name[:2] / name


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    base = tmp_path_factory.mktemp("catalog")
    with catalog_process(base / "data") as running:
        people = Publisher(running, base)
        for ref, files in FILES.items():
            people.publish(ref, files)
        people.close()
        yield running.url, running.token("node-1", "node")


@pytest.fixture
def shown(catalog: tuple[str, str], tmp_path: Path) -> Iterator[Shown]:
    with RealMount(tmp_path, *catalog, OPENSHELF_MATERIALISE="no") as mount:
        found = Shown(mount)
        wait_until(lambda: found.path(SECOND, "README.md").exists())
        yield found


def test_ls_counts_what_is_cached_of_each_release(shown: Shown) -> None:
    sizes = {ref: sum(map(len, files.values())) for ref, files in FILES.items()}
    empty = shown.run("cache ls")
    assert [row["release"] for row in empty["releases"]] == [str(FIRST), str(SECOND)]
    assert [row["cached_files"] for row in empty["releases"]] == [1, 0], "an empty file needs nothing"
    assert [row["size_bytes"] for row in empty["releases"]] == [sizes[FIRST], sizes[SECOND]]
    shown.bring(FIRST)
    first, second = shown.run("cache ls")["releases"]
    assert (first["files"], first["cached_files"], first["cached_bytes"]) == (34, 34, sizes[FIRST])
    assert (second["files"], second["cached_files"], second["cached_bytes"]) == (3, 1, len(SHARED))
    assert first["tier"] in ("passthrough", "served") and not first["pinned"]
    text = shown.mount.call("cache", "ls", str(shown.mount.mountpoint), str(FIRST)).stdout
    assert "datasets/belle/chat@1.0  34/34" in text and "of 10 GiB used" in text
    missing = shown.mount.call("cache", "ls", str(shown.mount.mountpoint), "datasets/belle/none@1.0", check=False)
    assert missing.returncode == 1 and "datasets/belle/none@1.0" in missing.stderr
    assert missing.stderr.count("\n") == 1


def test_a_pin_survives_the_worker_and_keeps_its_files_from_evict(shown: Shown) -> None:
    shown.bring(FIRST)
    shown.bring(SECOND)
    pins = shown.run("pin", str(shown.path(SECOND, "")))["pins"]
    assert [(row["release"], row["cached_files"], row["files"]) for row in pins] == [(str(SECOND), 3, 3)]
    killed = shown.mount.status()["worker_pid"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: shown.mount.status()["worker_pid"] not in (None, killed))
    assert shown.row(SECOND)["pinned"]
    refused = shown.mount.call("evict", str(shown.mount.mountpoint), str(SECOND), check=False)
    assert refused.returncode == 1 and "--remove" in refused.stderr
    outcome = shown.run("evict", "--all")
    assert outcome["releases"] == [str(FIRST)]
    assert (outcome["files"], outcome["shared"], outcome["open"]) == (32, 1, 0)
    assert shown.place(SHARED).exists() and not shown.place(FILES[FIRST]["data/large.bin"]).exists()
    shown.read(FIRST)
    assert shown.run("pin", str(SECOND), "--remove")["pins"] == []
    assert not shown.row(SECOND)["pinned"]


def test_evict_leaves_what_is_open_and_says_so(shown: Shown) -> None:
    shown.bring(FIRST)
    with shown.path(FIRST, "data/large.bin").open("rb") as stream:
        outcome = shown.run("evict", str(FIRST))
        assert (outcome["files"], outcome["open"]) == (32, 1)
        assert stream.read() == FILES[FIRST]["data/large.bin"]
    text = shown.mount.call("evict", str(shown.mount.mountpoint), str(FIRST)).stdout
    assert text == "1 files, 8.59 MiB removed\n"


def test_a_pin_that_cannot_fit_is_refused_with_figures(catalog: tuple[str, str], tmp_path: Path) -> None:
    with RealMount(tmp_path, *catalog, size="10M") as mount:
        shown = Shown(mount)
        wait_until(lambda: shown.path(SECOND, "README.md").exists())
        shown.run("pin", str(SECOND))
        refused = mount.call("pin", str(mount.mountpoint), str(FIRST), check=False)
        assert refused.returncode == 1 and refused.stderr.count("\n") == 1
        assert "with what is pinned (6.02 MiB) it takes" in refused.stderr
        assert [row["release"] for row in shown.run("pin")["pins"]] == [str(SECOND)]
        shown.bring(SECOND)
        for _ in range(2):
            shown.read(FIRST)
        assert shown.row(SECOND)["cached_files"] == 3, "what is pinned stays, the rest comes from the store"


def test_verify_removes_what_the_disk_has_damaged_and_exits_with_1(shown: Shown) -> None:
    shown.bring(FIRST)
    shown.bring(SECOND)
    whole = shown.run("cache verify")
    assert (whole["files"], whole["damaged"]) == (35, [])
    place = shown.place(FILES[FIRST]["data/large.bin"])
    with place.open("r+b") as sink:
        sink.seek(5_000_000)
        sink.write(b"!")
    other = shown.run("cache verify", str(SECOND))
    assert (other["files"], other["damaged"]) == (3, [])
    found = shown.mount.call("cache", "verify", str(shown.mount.mountpoint), check=False)
    assert found.returncode == 1
    assert found.stdout.splitlines()[0] == f"damaged, removed: {place.name}"
    assert "35 files" in found.stdout and "1 damaged" in found.stdout
    assert not place.exists()
    shown.read(FIRST)
