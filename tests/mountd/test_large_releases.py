"""Names of a release of many files through a real mount, without its catalog: listing, attributes, worker deaths."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.names import parse_release
from mountd import control
from scripts.lib.synthetic_manifest import make_release, prepare_cache
from tests.support.real_mount import RealMount

FILES = 72_000
FOLDERS = 4
UNLISTED = FOLDERS - 1
"""The folder that one test lists for the first time; the others are listed before it."""
SIZE_BYTES = 5000
RELEASE = parse_release("datasets/bench/names@1.0")


def name_of(number: int) -> str:
    return f"part-{number // (FILES // FOLDERS):05d}/{number:09d}.jpg"


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealMount]:
    base = tmp_path_factory.mktemp("names")
    prepare_cache(base / "cache", {RELEASE: make_release(base, FILES, FOLDERS, SIZE_BYTES)})
    with RealMount(base, "http://127.0.0.1:9", "osk_none") as mount:
        assert not mount.status()["online"]
        yield mount


@pytest.fixture
def release(mounted: RealMount) -> Path:
    return mounted.mountpoint / "datasets" / "bench" / "names" / "1.0"


def lookups(mounted: RealMount) -> int:
    return int(control.ask(mounted.mountpoint, "status")["lookups"])


def test_listing_with_attributes_has_the_true_sizes_without_a_lookup_each(mounted: RealMount, release: Path) -> None:
    """The first look at these folders: of one that it has listed before, the kernel asks for attributes one by one."""
    before = lookups(mounted)
    sizes = {}
    for folder in range(UNLISTED):
        with os.scandir(release / f"part-{folder:05d}") as entries:
            sizes |= {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}
    assert sizes == {f"{number:09d}.jpg": SIZE_BYTES + number % 1000 for number in range(FILES // FOLDERS * UNLISTED)}
    assert lookups(mounted) - before < FILES / 100


def test_a_listing_goes_on_where_it_was_when_the_worker_dies(mounted: RealMount, release: Path) -> None:
    folder = release / f"part-{UNLISTED:05d}"  # of a folder that it has listed before, the kernel asks nothing
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) in (3_000, 9_000, 15_000):
                os.kill(mounted.status()["worker_pid"], signal.SIGKILL)
    assert sorted(names) == [Path(name_of(number)).name for number in range(FILES // FOLDERS * UNLISTED, FILES)]


def test_walking_finds_every_file_once_and_looks_up_folders_only(mounted: RealMount, release: Path) -> None:
    before = lookups(mounted)
    skip = len(str(release)) + 1
    found = [f"{folder}/{name}"[skip:] for folder, _, names in os.walk(release) for name in names]
    assert sorted(found) == sorted([*map(name_of, range(FILES)), "release.json", "release.json.sig"])
    assert lookups(mounted) - before < 50


def test_every_name_is_looked_up_in_any_order(release: Path) -> None:
    for number in random.Random(5).sample(range(FILES), 2000):
        state = (release / name_of(number)).stat()
        assert (state.st_size, state.st_mode) == (SIZE_BYTES + number % 1000, 0o100444)


def test_missing_names_are_asked_for_once(mounted: RealMount, release: Path) -> None:
    missing = [release / "dataset_info.json"]
    missing += [release / name_of(number).replace("jpg", "png") for number in range(0, FILES, 1000)]
    asked = []
    for _ in range(10):
        before = lookups(mounted)
        assert not any(path.exists() for path in missing)
        asked.append(lookups(mounted) - before)
    # The folders above releases are looked up again every second; and whoever empties the kernel's caches, all are.
    assert min(asked) <= 8


def test_df_tells_files_and_bytes(mounted: RealMount) -> None:
    state = os.statvfs(mounted.mountpoint)
    total = FILES * SIZE_BYTES + sum(number % 1000 for number in range(FILES))
    assert state.f_files == FILES
    assert 0 <= state.f_blocks * state.f_frsize - total < state.f_frsize
    assert (state.f_bfree, state.f_bavail, state.f_ffree) == (0, 0, 0)
