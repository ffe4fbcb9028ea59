"""Limits of the cache: bytes, files and free space, what stays, and what goes when."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from catalog.manifest import CHUNK_BYTES, Manifest
from mountd.cache import reverify
from mountd.cache.columns import sealed_keys, share
from mountd.cache.guard import Guard, keys_of_all
from mountd.cache.own import index_log_bytes
from mountd.cache.partial import FileSpec
from mountd.cache.reverify import Reverify
from mountd.cache.store import Cache
from mountd.cache.upkeep import Upkeep
from mountd.rows import Rows
from openshelf.units import MIB
from tests.mountd.conftest import MakeBench
from tests.mountd.test_cache import BIG, HUGE_LIMIT, OWN_BYTES
from tests.mountd.test_settling import spec_of
from tests.support.releases import pattern
from tests.support.small_disks import memory_disk


def kept(cache: Cache, content: bytes) -> FileSpec:
    """Put a small file into the cache."""
    spec = spec_of(content)
    descriptor = cache.store_whole(spec, content)
    if descriptor is not None:
        os.close(descriptor)
    return spec


def on_disk(root: Path) -> tuple[int, int]:
    """Bytes and inodes of everything below, as du counts them."""
    seen = {
        (state.st_dev, state.st_ino): state.st_blocks * 512 for state in (p.lstat() for p in [root, *root.rglob("*")])
    }
    return sum(seen.values()), len(seen)


def test_everything_in_the_folder_counts(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG, **{f"{number}.jpg": pattern(3000, number) for number in range(50)}})
    (bench.cache.layout.manifests / "x.arrow").write_bytes(bytes(3 * MIB))
    for path in bench.made.entries:
        bench.read_all(path)
        bench.wait_sealed(path)
    Upkeep(bench.cache).step(pressed=False)
    size, files = on_disk(bench.cache.layout.root)
    assert bench.cache.used_files == files
    assert 0 <= bench.cache.used_bytes - size < index_log_bytes(bench.cache.limit_bytes) * 5 // 4
    assert bench.cache.used_bytes > bench.cache.total_bytes + 3 * MIB


def test_manifests_that_come_make_objects_go(make_bench: MakeBench) -> None:
    files = {f"{number}.bin": pattern(CHUNK_BYTES, number) for number in range(5)}
    bench = make_bench(files, limit_bytes=5 * CHUNK_BYTES + OWN_BYTES + MIB)
    for path in files:
        bench.read_all(path)
        bench.wait_sealed(path)
    assert bench.cache.evictions == 0
    (bench.cache.layout.manifests / "x.arrow").write_bytes(bytes(CHUNK_BYTES))
    Upkeep(bench.cache).step(pressed=False)
    assert bench.cache.evictions >= 1
    assert on_disk(bench.cache.layout.root)[0] <= bench.cache.limit_bytes


def test_the_number_of_files_is_never_exceeded(tmp_path: Path) -> None:
    cache = Cache.open(tmp_path / "cache", HUGE_LIMIT, files=400)
    upkeep = Upkeep(cache)
    for number in range(300):
        spec = kept(cache, b"%d" % number * 20)
        assert cache.is_sealed(spec.sha256)
        assert cache.used_files <= 400
    upkeep.step(pressed=True)
    assert on_disk(tmp_path / "cache")[1] <= 400
    assert cache.used_files <= 360, "down to the low-water mark"
    assert cache.is_sealed(spec.sha256) and not cache.is_sealed(spec_of(b"0" * 20).sha256)
    cache.close()


def test_so_much_of_the_disk_stays_free_whoever_fills_it(make_bench: MakeBench, tmp_path: Path) -> None:
    files = {f"{number}.bin": pattern(CHUNK_BYTES, number) for number in range(24)}
    with memory_disk(tmp_path / "disk", "size=64m") as folder:
        bench = make_bench(files, base=folder, free_bytes=1 << 40)

        def free() -> int:
            state = os.statvfs(folder)
            return state.f_bavail * state.f_frsize

        floor = 64 * MIB // 10
        for path, content in files.items():
            assert bench.read_all(path) == content
            assert free() >= floor
        assert bench.cache.evictions > 0
        before = bench.cache.evictions
        (folder / "others").write_bytes(bytes(free() - 1 * MIB))
        time.sleep(1.1)
        Upkeep(bench.cache).step(pressed=False)
        assert free() >= floor and bench.cache.evictions > before
        bench.close()


def test_many_writers_at_once_stay_within_the_limit(tmp_path: Path) -> None:
    limit, size = 8 * MIB, 16384
    written: list[int] = []
    cache = Cache.open(tmp_path / "cache", limit)
    upkeep = Upkeep(cache)
    upkeep.start()
    most = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.0005):
            most[0] = max(most[0], cache.used_bytes)

    def write(base: int) -> None:
        for number in range(200):
            content = (base + number).to_bytes(8, "big") * (size // 8)
            descriptor = cache.store_whole(spec_of(content), content)
            if descriptor is not None:
                os.close(descriptor)
                written.append(base + number)

    watcher = threading.Thread(target=watch)
    writers = [threading.Thread(target=write, args=(1000 * number,)) for number in range(4)]
    for thread in (watcher, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    watcher.join()
    upkeep.close()
    assert most[0] <= limit
    assert on_disk(tmp_path / "cache")[0] <= limit
    assert len(written) > limit // size, "more was kept, one after the other, than fits at once"
    assert cache.evictions == len(written) - sum(cache.counts())
    cache.close()


def test_protected_files_stay_until_protection_is_given_up(make_bench: MakeBench) -> None:
    files = {f"{number}.bin": pattern(CHUNK_BYTES, number) for number in range(4)}
    bench = make_bench(files, limit_bytes=2 * (CHUNK_BYTES + 8192) + OWN_BYTES + MIB)
    cache, upkeep = bench.cache, Upkeep(bench.cache)
    for path in ("0.bin", "1.bin"):
        bench.read_all(path)
        bench.wait_sealed(path)
    cache.protect("tree", Rows(Manifest.open(bench.made.manifest)).sha256_column())
    asked: list[str] = []

    def give_up() -> bool:
        asked.append("tree")
        cache.unprotect("tree")
        return True

    cache.before_evict.append(give_up)
    assert bench.read_all("2.bin") == files["2.bin"]
    assert cache.is_sealed(bench.sha256("0.bin")) and cache.is_sealed(bench.sha256("1.bin"))
    assert "pinned or protected" in cache.failure() and asked == []
    upkeep.step(pressed=True)
    assert asked == ["tree"]
    assert bench.read_all("3.bin") == files["3.bin"]
    bench.wait_sealed("3.bin")
    assert not cache.is_sealed(bench.sha256("0.bin"))


def test_pins_are_read_again_before_the_first_eviction(tmp_path: Path, make_bench: MakeBench) -> None:
    files = {f"{number}.jpg": pattern(100_000, number) for number in range(10)}
    bench = make_bench(files)
    for path in files:
        bench.read_all(path)
        bench.wait_sealed(path)
    digest = bench.made.digest
    os.link(bench.made.manifest, bench.cache.layout.manifest_path(digest))
    bench.cache.pins.add("datasets/belle/chat@1.0", digest)
    root = bench.cache.layout.root
    bench.close()
    cache = Cache.open(root, 4 * MIB)
    assert cache.pins.all() == {"datasets/belle/chat@1.0": digest}
    last = [kept(cache, bytes([number]) * 200_000) for number in range(20)][-1]
    assert cache.evictions > 0 and cache.is_sealed(last.sha256)
    assert all(cache.is_sealed(bench.sha256(path)) for path in files)
    cache.close()


def test_a_share_is_counted_as_the_manifest_lists_it(make_bench: MakeBench) -> None:
    twice = pattern(5000, 1)
    files = {"a/one": twice, "b/two": twice, "c": pattern(70_000, 2), "empty": b"", "not": b"not cached"}
    bench = make_bench(files)
    for path in ("a/one", "c"):
        bench.read_all(path)
        bench.wait_sealed(path)
    bench.wait_until(lambda: bench.cache.counts()[0] >= 2)
    for path in ("not",):
        bench.cache.discard(bench.sha256(path))
    found = share(bench.made.manifest, bench.made.digest, sealed_keys(bench.cache.index))
    assert (found.files, found.size_bytes) == (5, sum(map(len, files.values())))
    assert (found.cached_files, found.cached_bytes) == (4, 2 * 5000 + 70_000)


def test_ten_thousand_protected_digests_are_found_and_no_other() -> None:
    guard = Guard()
    rng = np.random.default_rng(7)
    digests = rng.integers(0, 256, (10_000, 32), np.uint8)
    others = [rng.bytes(32) for _ in range(1000)]
    guard.protect("a", [digests[:6000]])
    guard.protect("b", [digest.tobytes() for digest in digests[5000:]])
    asked = keys_of_all([*[digest.tobytes() for digest in digests], *others])
    assert guard.covers(asked).tolist() == [True] * 10_000 + [False] * 1000
    assert guard.covers(asked, without=["b"]).sum() == 6000
    guard.unprotect("a")
    assert guard.covers(asked).sum() == 5000 and guard.owners() == ["b"]


def test_hashing_again_goes_on_where_it_was_and_tells_of_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reverify, "_PRESSURE", tmp_path / "none")
    cache = Cache.open(tmp_path / "cache", HUGE_LIMIT)
    specs = sorted((kept(cache, b"%d" % number * 3000) for number in range(20)), key=lambda spec: spec.sha256)
    cache._settling.close()
    path = cache.layout.object_path(specs[15].sha256)
    path.chmod(0o600)
    path.write_bytes(bytes(specs[15].size))
    told: list[bytes] = []
    cache.damaged.append(told.append)
    stop = threading.Event()
    first = Reverify(cache, stop)
    cache.index.execute("INSERT OR REPLACE INTO standing VALUES ('verified_up_to', ?)", (specs[9].sha256,))
    cache.index.execute("INSERT OR REPLACE INTO standing VALUES ('verifying_since', ?)", (int(time.time()),))
    again = Reverify(cache, stop)
    again.round()
    assert (first.files, again.files, again.damaged) == (0, 10, 1)
    assert told == [specs[15].sha256] and not path.exists()
    assert specs[15].sha256.hex() in caplog.text
    later = Reverify(cache, stop)
    assert (later.files, later.damaged) == (10, 1)
    later.round()
    assert later.files == 10 + 19, "a new round begins at the beginning"
    cache.close()
