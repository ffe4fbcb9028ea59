"""Several disks: where objects go, what happens when one comes, goes or fails."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from catalog.manifest import CHUNK_BYTES
from mountd.cache import layout
from mountd.cache.disk import Disk, Disks
from mountd.cache.layout import CacheError
from mountd.cache.store import Cache
from mountd.cache.upkeep import Upkeep
from mountd.cache.verify import verify_sealed
from openshelf.units import MIB
from tests.mountd.conftest import Bench, MakeBench
from tests.mountd.test_cache import HUGE_LIMIT
from tests.mountd.test_settling import spec_of
from tests.support.releases import pattern
from tests.support.shared_data import ROOT
from tests.support.small_disks import FailingDisk, failing_disk, memory_disk

FILES = {f"{number}.bin": pattern(CHUNK_BYTES + 1 + number, number) for number in range(8)}


@pytest.fixture(autouse=True)
def identities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks of known identity, so that each has some of the files."""
    given = iter(f"{number:016x}" for number in itertools.count(7))
    monkeypatch.setattr(layout, "secrets", SimpleNamespace(token_hex=lambda _: next(given)))


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Path]:
    with memory_disk(tmp_path / "first", "size=128m") as folder:
        yield folder


@pytest.fixture
def second(tmp_path: Path) -> Iterator[FailingDisk]:
    with failing_disk(tmp_path / "second", 128 * MIB) as disk:
        yield disk


def bring(bench: Bench) -> None:
    for path, content in FILES.items():
        assert bench.read_all(path) == content
        bench.wait_sealed(path)


def on(folder: Path) -> set[str]:
    return {path.name for path in (folder / "cache" / "objects").rglob("*") if path.is_file()}


def test_objects_are_shared_out_by_the_size_of_the_disks() -> None:
    disks = Disks(Disk(0, Path("/a"), "00000000000000a1", 100))
    disks.add(Disk(1, Path("/b"), "00000000000000b2", 300))
    digests = [spec_of(b"%d" % number).sha256 for number in range(20_000)]
    homes = [disks.home(sha256).number for sha256 in digests]
    assert abs(homes.count(1) / len(homes) - 0.75) < 0.02
    disks.add(Disk(2, Path("/c"), "00000000000000c3", 400))
    moved = [disks.home(sha256).number for sha256 in digests]
    assert {after for before, after in zip(homes, moved, strict=True) if before != after} == {2}
    assert abs(moved.count(2) / len(moved) - 0.5) < 0.02


def test_files_lie_on_both_disks_and_are_read_from_them(
    make_bench: MakeBench, first: Path, second: FailingDisk
) -> None:
    bench = make_bench(FILES, base=first, more=[second.folder / "cache"])
    bring(bench)
    here, there = on(first), on(second.folder)
    assert here and there and not here & there and len(here | there) == len(FILES)
    asked = len(bench.store.requests)
    assert {path: bench.read_all(path) for path in FILES} == FILES
    assert len(bench.store.requests) == asked
    for path in FILES:
        disk = bench.cache.disk_of(bench.sha256(path))
        assert disk is not None and disk.object_path(bench.sha256(path)).exists()
    assert [verdict.intact for verdict in verify_sealed(bench.cache)] == [True] * len(FILES)
    bench.close()


def test_a_disk_that_cannot_be_read_is_taken_out_and_refilled_elsewhere(
    make_bench: MakeBench, first: Path, second: FailingDisk
) -> None:
    bench = make_bench(FILES, base=first, more=[second.folder / "cache"])
    bring(bench)
    there = on(second.folder)
    second.lose_content()
    for _ in range(2):
        assert {path: bench.read_all(path) for path in FILES} == FILES
    # A bad place or two cost a file each; a disk with more is broken.
    lost = [path for path in FILES if bench.sha256(path).hex() in there]
    assert len(lost) >= 3
    assert f"{second.folder / 'cache'} is out (Input/output error)" in bench.cache.failure()
    for path in lost:
        bench.wait_until(
            lambda path=path: bench.read_all(path) == FILES[path] and bench.cache.is_sealed(bench.sha256(path))
        )  # type: ignore[misc]
    assert len(on(first)) == len(FILES)
    Upkeep(bench.cache).step(pressed=False)
    assert bench.cache.counts() == (len(FILES), 0)
    bench.close()


def test_a_disk_that_became_read_only_is_taken_out_and_comes_back_at_the_next_mount(
    make_bench: MakeBench, first: Path, second: FailingDisk
) -> None:
    more = second.folder / "cache"
    bench = make_bench(FILES, base=first, more=[more])
    bring(bench)
    there = on(second.folder)
    moved = next(path for path in FILES if bench.sha256(path).hex() in there)
    bench.cache.discard(bench.sha256(moved))
    second.refuse_writes()
    assert bench.read_all(moved) == FILES[moved]
    assert "Read-only file system" in bench.cache.failure()
    assert bench.read_all(moved) == FILES[moved]
    bench.wait_sealed(moved)
    bench.close()
    again = make_bench(FILES, base=first, more=[more])
    assert "is out" in again.cache.failure(), "it is still read-only: left out, and said so"
    assert {path: again.read_all(path) for path in FILES} == FILES
    again.close()


def test_a_disk_left_away_counts_as_missing_and_is_taken_in_again(make_bench: MakeBench, tmp_path: Path) -> None:
    more = tmp_path / "more"
    both = make_bench(FILES, more=[more])
    bring(both)
    total, there = both.cache.total_bytes, {path.name for path in (more / "objects").rglob("*") if path.is_file()}
    assert there
    both.close()
    alone = make_bench(FILES)
    assert alone.cache.counts() == (len(FILES) - len(there), 0)
    back = next(path for path in FILES if alone.sha256(path).hex() in there)
    assert alone.read_all(back) == FILES[back]
    alone.wait_sealed(back)
    alone.close()
    again = make_bench(FILES, more=[more])
    assert (again.cache.counts(), again.cache.total_bytes) == ((len(FILES), 0), total)
    assert not (more / "objects" / again.sha256(back).hex()[:2] / again.sha256(back).hex()).exists(), "kept once"
    assert {path: again.read_all(path) for path in FILES} == FILES, "also what does not lie at its home"
    assert again.store.requests == []
    again.cache.discard(again.sha256(back))
    assert not again.cache.is_sealed(again.sha256(back))


def test_a_disk_whose_folder_vanishes_is_taken_out(make_bench: MakeBench, tmp_path: Path) -> None:
    bench = make_bench(FILES, more=[tmp_path / "more"])
    bring(bench)
    (tmp_path / "more").rename(tmp_path / "gone")
    assert {path: bench.read_all(path) for path in FILES} == FILES
    assert f"{tmp_path / 'more'} is out" in bench.cache.failure()
    for path in FILES:
        bench.read_all(path)
        bench.wait_sealed(path)


def test_a_damaged_index_is_made_anew_from_all_disks(make_bench: MakeBench, tmp_path: Path) -> None:
    bench = make_bench(FILES, more=[tmp_path / "more"])
    bring(bench)
    total = bench.cache.total_bytes
    bench.close()
    bench.cache.layout.index.write_bytes(b"not a database" * 1000)
    again = make_bench(FILES, more=[tmp_path / "more"])
    assert (again.cache.counts(), again.cache.total_bytes) == ((len(FILES), 0), total)


def test_folders_that_must_not_be_shared_are_refused(tmp_path: Path) -> None:
    more = tmp_path / "more"
    cache = Cache.open(tmp_path / "cache", HUGE_LIMIT, more=[more])
    code = (
        "import sys; from pathlib import Path; from mountd.cache.store import Cache\n"
        "Cache.open(Path(sys.argv[1]), 1, more=[Path(sys.argv[2])])"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "other", more], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert f"The cache {more} is in use by another mount (process {os.getpid()})" in other.stderr
    cache.close()
    for folder, expected in (
        (tmp_path / "other", "the same, or one lies in the other"),
        (tmp_path / "other" / "objects", "the same, or one lies in the other"),
        (tmp_path / "cache", "is the cache of another mount"),
    ):
        with pytest.raises(CacheError, match=expected):
            Cache.open(tmp_path / "other", HUGE_LIMIT, more=[folder])
    with pytest.raises(CacheError, match="the same, or one lies in the other"):
        Cache.open(tmp_path / "other", HUGE_LIMIT, more=[more, tmp_path / "." / "more"])
    (more / "format").write_text("99\n")
    with pytest.raises(CacheError, match="format '99'"):
        Cache.open(tmp_path / "other", HUGE_LIMIT, more=[more])
    Cache.open(tmp_path / "other", HUGE_LIMIT).close()
