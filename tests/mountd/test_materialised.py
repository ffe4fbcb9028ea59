"""Complete releases become trees of hard links over the mount: what is seen there, how long, and where."""

from __future__ import annotations

import os
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
    "README.md": b"# chat\n",
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


@pytest.fixture
def shown(
    request: pytest.FixtureRequest, catalog: RunningCatalog, publisher: Publisher, tmp_path: Path
) -> Iterator[Shown]:
    """A release of a collection named after the test, mounted on a node of its own."""
    name = request.node.name.removeprefix("test_").replace("_", "-")[:60]
    ref = parse_release(f"datasets/belle/{name}@1.0")
    publisher.publish(ref, FILES)
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
