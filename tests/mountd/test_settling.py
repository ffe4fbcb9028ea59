"""Small files: sealed at once, on the disk a moment later, and not believed after an end in between."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest
from blake3 import blake3

from mountd.cache import settling
from mountd.cache.partial import FileSpec
from mountd.cache.store import Cache
from tests.mountd.conftest import MakeBench
from tests.support.releases import pattern

FILES = {f"images/{number:03d}.jpg": pattern(3000 + number, number) for number in range(30)}


def spec_of(content: bytes) -> FileSpec:
    return FileSpec(hashlib.sha256(content).digest(), len(content), 10**9, (blake3(content).digest(),))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_small_files_are_settled_together_soon_after_they_are_read(make_bench: MakeBench) -> None:
    bench = make_bench(FILES)
    assert {path: bench.read_all(path) for path in FILES} == FILES
    places = [bench.cache.layout.object_path(bench.sha256(path)) for path in FILES]
    assert all(path.exists() for path in places)
    assert list(bench.cache.layout.partial.iterdir()) == []
    bench.wait_until(lambda: {mode(path) for path in places} == {0o444})
    assert bench.cache.counts() == (30, 0)


def test_closing_settles_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "WINDOW_S", 3600.0)
    cache = Cache.open(tmp_path / "cache", 1 << 30)
    descriptor = cache.store_whole(spec_of(b"small"), b"small")
    assert descriptor is not None
    assert os.pread(descriptor, 10, 0) == b"small"
    os.close(descriptor)
    path = cache.layout.object_path(spec_of(b"small").sha256)
    assert mode(path) == 0o400
    cache.close()
    assert mode(path) == 0o444


def test_what_a_power_cut_left_unsettled_is_hashed_before_it_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache.open(tmp_path / "cache", 1 << 30)
    specs = {name: spec_of(name * 100) for name in (b"whole", b"zeros", b"short", b"other")}
    for name, spec in specs.items():
        descriptor = cache.store_whole(spec, name * 100)
        assert descriptor is not None
        os.close(descriptor)
    cache.close()
    paths = {name: cache.layout.object_path(spec.sha256) for name, spec in specs.items()}
    for path in paths.values():
        path.chmod(0o600)
    paths[b"zeros"].write_bytes(bytes(500))
    paths[b"short"].write_bytes(b"short")
    for path in paths.values():
        path.chmod(0o400)
    cache = Cache.open(tmp_path / "cache", 1 << 30)
    found = {name: cache.open_sealed(spec.sha256, spec.size) for name, spec in specs.items()}
    assert found[b"zeros"] is None and found[b"short"] is None
    for name in (b"whole", b"other"):
        descriptor = found[name]
        assert descriptor is not None
        os.close(descriptor)
        assert mode(paths[name]) == 0o444
    assert not paths[b"zeros"].exists() and not paths[b"short"].exists()
    assert cache.counts() == (2, 0)
    assert "was not whole on the disk" in caplog.text
    cache.close()


def test_files_that_cannot_be_settled_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(settling, "_sync_file_system", fail)
    cache = Cache.open(tmp_path / "cache", 1 << 30)
    contents = [b"%d" % number * 50 for number in range(20)]
    for content in contents:
        descriptor = cache.store_whole(spec_of(content), content)
        assert descriptor is not None
        os.close(descriptor)
    cache._settling.close()
    assert cache.counts() == (0, 0)
    assert cache.total_bytes == 0
    assert "fails" in cache.failure()
    assert [path for path in cache.layout.objects.rglob("*") if path.is_file()] == []
    cache.close()


def test_a_file_withdrawn_before_it_is_settled_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache.open(tmp_path / "cache", 1 << 30)
    spec = spec_of(b"gone")
    descriptor = cache.store_whole(spec, b"gone")
    assert descriptor is not None
    cache.discard(spec.sha256)
    assert os.pread(descriptor, 10, 0) == b"gone", "who has it open reads on"
    os.close(descriptor)
    cache.close()
    assert not cache.layout.object_path(spec.sha256).exists()
    assert cache.total_bytes == 0


def test_a_large_file_whose_bytes_the_disk_lost_is_fetched_again(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = pattern(9_000_000, 5)
    bench = make_bench({"big.bin": content})
    failed: list[int] = []

    def fsync(descriptor: int) -> None:
        failed.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert bench.read_all("big.bin") == content
        bench.wait_until(lambda: bool(failed) and bench.cache.counts() == (0, 0))
    assert not bench.cache.is_sealed(bench.sha256("big.bin"))
    assert bench.cache.total_bytes == 0
    assert bench.read_all("big.bin") == content
