"""The cache folder: who may use it, what survives a kill, damage, a full disk, and its limit."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.manifest import CHUNK_BYTES, digest_stream
from mountd.cache.chunks import ChunkMap, ChunkState
from mountd.cache.layout import CacheError, filesystem_type, is_overlay
from mountd.cache.partial import FileSpec, chunks_path
from mountd.cache.store import Cache
from mountd.cache.verify import verify_sealed
from openshelf.units import MIB
from tests.mountd.conftest import MakeBench
from tests.support.releases import pattern
from tests.support.shared_data import ROOT

BIG = pattern(3 * CHUNK_BYTES + 12_345)
HUGE_LIMIT = 1 << 40
OWN_BYTES = 3 * MIB
"""More than what an almost empty cache has beside its objects."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def taken(cache: Cache) -> int:
    """Bytes on disk of objects and partial files."""
    folders = (cache.layout.objects, cache.layout.partial)
    return sum(path.stat().st_blocks * 512 for folder in folders for path in folder.rglob("*") if path.is_file())


def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    first = Cache.open(tmp_path / "cache", HUGE_LIMIT)
    code = (
        "import sys; from pathlib import Path; from mountd.cache.store import Cache; Cache.open(Path(sys.argv[1]), 1)"
    )
    second = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "cache"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert f"in use by another mount (process {os.getpid()})" in second.stderr
    first.close()
    Cache.open(tmp_path / "cache", HUGE_LIMIT).close()


def test_the_lock_of_a_killed_daemon_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from mountd.cache.store import Cache\n"
        "cache = Cache.open(Path(sys.argv[1]), 1); print('open', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "cache"], stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"open\n"
        with pytest.raises(CacheError, match="in use"):
            Cache.open(tmp_path / "cache", HUGE_LIMIT)
        process.kill()
    Cache.open(tmp_path / "cache", HUGE_LIMIT).close()


def test_a_cache_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    with pytest.raises(CacheError, match="mode 0755"):
        Cache.open(tmp_path / "cache", HUGE_LIMIT)


def test_a_cache_of_another_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    Cache.open(tmp_path / "cache", HUGE_LIMIT).close()
    (tmp_path / "cache" / "format").write_text("99\n")
    with pytest.raises(CacheError, match="format '99'"):
        Cache.open(tmp_path / "cache", HUGE_LIMIT)
    assert (tmp_path / "cache" / "format").read_text() == "99\n"


def test_a_chunk_map_that_is_short_or_odd_counts_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "x.chunks"
    path.write_bytes(bytes([1, 7, 1]))
    chunks = ChunkMap.open(path, 5)
    expected = [ChunkState.PRESENT, ChunkState.ABSENT, ChunkState.PRESENT, ChunkState.ABSENT, ChunkState.ABSENT]
    assert [chunks[index] for index in range(5)] == expected
    chunks.close()
    assert path.stat().st_size == 5


def test_transitions_that_are_not_allowed_are_refused(tmp_path: Path) -> None:
    chunks = ChunkMap.open(tmp_path / "x.chunks", 2)
    chunks.written(0)
    for forbidden in (chunks.written, chunks.confirmed, chunks.dropped):
        with pytest.raises(AssertionError):
            forbidden(0)
    with pytest.raises(AssertionError):
        chunks.confirmed(1)
    assert (chunks.verified, chunks.complete) == (1, False)
    chunks.close()


def test_chunks_of_an_earlier_worker_are_hashed_again_and_damaged_ones_fetched_again(
    make_bench: MakeBench, tmp_path: Path
) -> None:
    first = make_bench({"big.bin": BIG}, eager=False)
    handle = first.reader.open(first.node("big.bin"))
    handle.read(CHUNK_BYTES * 1, 10)
    handle.read(CHUNK_BYTES * 3, 10)
    handle.close()
    first.close()
    partial = first.cache.layout.partial_path(first.sha256("big.bin"))
    with partial.open("r+b") as sink:
        sink.seek(CHUNK_BYTES + 77)
        sink.write(b"\0")
    second = make_bench({"big.bin": BIG}, eager=False)
    assert second.read_all("big.bin") == BIG
    fetched = sum(stop - start for _, start, stop in second.store.requests)
    assert fetched == 3 * CHUNK_BYTES, "the intact chunk is kept, the damaged one and the missing two are fetched"
    second.wait_sealed("big.bin")


def test_a_truncated_chunk_map_only_costs_another_fetch(make_bench: MakeBench) -> None:
    first = make_bench({"big.bin": BIG}, eager=False)
    handle = first.reader.open(first.node("big.bin"))
    handle.read(CHUNK_BYTES * 2, 10)
    handle.close()
    first.close()
    os.truncate(chunks_path(first.cache.layout.partial_path(first.sha256("big.bin"))), 1)
    second = make_bench({"big.bin": BIG}, eager=False)
    assert second.read_all("big.bin") == BIG


WRITER = """
import sys
from pathlib import Path
from mountd.cache.store import Cache
from tests.mountd.test_cache import spec_of, BIG
from catalog.manifest import CHUNK_BYTES
cache = Cache.open(Path(sys.argv[1]), 1 << 40)
while True:
    spec = spec_of(BIG)
    partial = cache.open_partial(spec)
    for index in range(len(spec.chunks)):
        start, stop = spec.chunk_range(index)
        if partial.state(index) == 0:
            assert cache.write_chunk(partial, index, BIG[start:stop])
            print(index, flush=True)
    assert cache.seal(partial)
    partial.close()
    cache.discard(spec.sha256)
"""


def spec_of(content: bytes) -> FileSpec:
    digest = digest_stream(io.BytesIO(content))
    return FileSpec(digest.sha256, digest.size, 946_684_800 * 10**9, digest.chunks)


def test_a_writer_killed_at_any_moment_leaves_no_wrong_bytes(tmp_path: Path) -> None:
    spec = spec_of(BIG)
    for after_lines in range(1, 10, 2):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path / "cache"], stdout=subprocess.PIPE, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            for _ in range(after_lines):
                process.stdout.readline()
            time.sleep(0.0007 * (after_lines % 4))
            os.kill(process.pid, signal.SIGKILL)
        cache = Cache.open(tmp_path / "cache", HUGE_LIMIT)
        descriptor = cache.open_sealed(spec.sha256, spec.size)
        if descriptor is not None:
            assert os.pread(descriptor, spec.size, 0) == BIG
            os.close(descriptor)
            cache.discard(spec.sha256)
        else:
            partial = cache.open_partial(spec)
            assert partial is not None
            for index in range(len(spec.chunks)):
                start, stop = spec.chunk_range(index)
                if partial.state(index) is ChunkState.VERIFIED:
                    assert os.pread(partial.descriptor, stop - start, start) == BIG[start:stop]
            partial.close()
        assert taken(cache) <= cache.total_bytes + MIB
        cache.close()


def test_verify_finds_and_removes_a_flipped_bit_in_a_sealed_file(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG, "other.bin": BIG[::-1]})
    for path in ("big.bin", "other.bin"):
        bench.read_all(path)
        bench.wait_sealed(path)
    sealed = bench.cache.layout.object_path(bench.sha256("big.bin"))
    with sealed.open("r+b") as sink:
        sink.seek(9 * MIB)
        byte = sink.read(1)
        sink.seek(9 * MIB)
        sink.write(bytes([byte[0] ^ 4]))
    verdicts = {verdict.sha256: verdict.intact for verdict in verify_sealed(bench.cache)}
    assert verdicts == {bench.sha256("big.bin"): False, bench.sha256("other.bin"): True}
    assert not sealed.exists()
    assert bench.read_all("big.bin") == BIG


def test_a_sealed_file_of_the_wrong_size_is_never_given_out(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG})
    bench.read_all("big.bin")
    bench.wait_sealed("big.bin")
    bench.wait_until(lambda: bench.reader._fills.peek(bench.sha256("big.bin")) is None)  # type: ignore[attr-defined]
    sealed = bench.cache.layout.object_path(bench.sha256("big.bin"))
    sealed.chmod(0o600)
    os.truncate(sealed, 100)
    assert bench.read_all("big.bin") == BIG


def test_a_cached_file_removed_by_hand_is_fetched_again_and_not_counted(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG})
    bench.read_all("big.bin")
    bench.wait_sealed("big.bin")
    bench.cache.layout.object_path(bench.sha256("big.bin")).unlink()
    assert bench.read_all("big.bin") == BIG
    bench.wait_sealed("big.bin")
    assert bench.cache.total_bytes == -(-len(BIG) // 4096) * 4096


def test_the_limit_is_never_exceeded_and_the_least_recently_used_go(make_bench: MakeBench) -> None:
    files = {f"{number:02d}.bin": pattern(CHUNK_BYTES + number, number) for number in range(12)}
    limit = 6 * (CHUNK_BYTES + 8192)
    bench = make_bench(files, limit_bytes=limit)
    for path, content in files.items():
        assert bench.read_all(path) == content
        bench.wait_sealed(path)
        bench.read_all("00.bin")
        assert taken(bench.cache) <= bench.cache.total_bytes <= limit
    assert bench.cache.evictions > 0
    assert bench.cache.is_sealed(bench.sha256("00.bin")), "it was used all the time"
    assert not bench.cache.is_sealed(bench.sha256("01.bin"))


def test_open_files_are_not_evicted_and_what_does_not_fit_comes_from_the_store(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{number}.bin": pattern(CHUNK_BYTES + number, number) for number in range(4)}
    bench = make_bench(files, limit_bytes=2 * (CHUNK_BYTES + 8192 + 4096) + OWN_BYTES)
    handles = []
    for path in ("0.bin", "1.bin"):
        bench.read_all(path)
        bench.wait_sealed(path)
        handles.append(bench.reader.open(bench.node(path)))
    assert bench.read_all("2.bin") == files["2.bin"]
    bench.wait_until(lambda: "files in use" in bench.cache.failure())
    assert taken(bench.cache) <= bench.cache.limit_bytes
    assert bench.cache.is_sealed(bench.sha256("0.bin")) and bench.cache.is_sealed(bench.sha256("1.bin"))
    for handle in handles:
        handle.close()
    assert bench.read_all("3.bin") == files["3.bin"]
    bench.wait_sealed("3.bin")
    monkeypatch.setattr("mountd.cache.trouble.SHOWN_S", 0.0)
    assert bench.cache.failure() == ""


def test_a_file_larger_than_the_cache_is_read_whole(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG}, limit_bytes=2 * CHUNK_BYTES)
    assert bench.read_all("big.bin") == BIG
    assert taken(bench.cache) <= 2 * CHUNK_BYTES


def test_a_full_disk_is_said_and_reads_go_on_from_the_store(make_bench: MakeBench, small_disk: Path) -> None:
    content = pattern(6 * CHUNK_BYTES, 9)
    bench = make_bench({"big.bin": content}, base=small_disk)
    (small_disk / "big-manifest-neighbour").write_bytes(b"x" * (1 * MIB))
    assert bench.read_all("big.bin") == content
    assert "disk is full" in bench.cache.failure()
    handle = bench.reader.open(bench.node("big.bin"))
    assert bytes(handle.read(5 * CHUNK_BYTES, 100)) == content[5 * CHUNK_BYTES :][:100]
    assert handle.sealed_fd() is None
    handle.close()


def test_opening_a_large_cache_scans_nothing(tmp_path: Path) -> None:
    cache = Cache.open(tmp_path / "cache", HUGE_LIMIT)
    cache.index._db.execute("BEGIN")
    for number in range(200_000):
        cache.index.put(number.to_bytes(32, "big"), 4096, sealed=True)
    cache.index._db.execute("COMMIT")
    cache.close()
    started = time.monotonic()
    cache = Cache.open(tmp_path / "cache", HUGE_LIMIT)
    assert time.monotonic() - started < 1
    assert cache.total_bytes == 200_000 * 4096
    cache.close()


def test_a_damaged_index_is_made_anew_from_the_files(make_bench: MakeBench, caplog: pytest.LogCaptureFixture) -> None:
    first = make_bench({"big.bin": BIG})
    first.read_all("big.bin")
    first.wait_sealed("big.bin")
    total = first.cache.total_bytes
    first.close()
    first.cache.layout.index.write_bytes(b"not a database" * 1000)
    second = make_bench({"big.bin": BIG})
    assert (second.cache.total_bytes, second.cache.counts()) == (total, (1, 0))
    assert "made anew" in caplog.text
    assert second.read_all("big.bin") == BIG
    assert second.store.requests == []


def test_overlayfs_is_recognised_and_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, tmp_path / "merged"], check=True)
    try:
        assert is_overlay(tmp_path / "merged") and not is_overlay(tmp_path)
        cache = Cache.open(tmp_path / "merged" / "cache", HUGE_LIMIT)
        cache.close()
        assert caplog.text.count("is on overlayfs") == 1
    finally:
        subprocess.run(["umount", tmp_path / "merged"], check=True)


def test_mount_points_with_spaces_are_understood(tmp_path: Path) -> None:
    text = (
        "21 1 254:0 / / rw - ext4 /dev/vda rw\n"
        f"30 21 0:40 / {tmp_path}/with\\040space rw - overlay overlay rw\n"
        "31 21 0:41 / /other rw - tmpfs tmpfs rw\n"
    )
    assert filesystem_type(tmp_path / "with space" / "cache", text) == "overlay"
    assert filesystem_type(tmp_path / "with", text) == "ext4"
