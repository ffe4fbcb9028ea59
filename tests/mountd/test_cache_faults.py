"""A full, failing or damaged disk below the cache: what a reader gets is right all the same."""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catalog.manifest import CHUNK_BYTES
from catalog.names import parse_release
from mountd.cache import trouble
from mountd.cache.store import Cache
from openshelf.units import MIB
from tests.mountd.conftest import MakeBench
from tests.mountd.test_cache import HUGE_LIMIT, spec_of, taken
from tests.support.catalog_server import catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount
from tests.support.releases import pattern
from tests.support.small_disks import FailingDisk, failing_disk, memory_disk


def wait_until(true: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


BIG = pattern(3 * CHUNK_BYTES + 12_345)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    with failing_disk(tmp_path / "disk") as made:
        yield made


def test_a_disk_without_inodes_is_said_and_reads_go_on_from_the_store(make_bench: MakeBench, tmp_path: Path) -> None:
    files = {f"images/{number:03d}.jpg": pattern(2000 + number, number) for number in range(900)}
    with memory_disk(tmp_path / "disk", "size=64m,nr_inodes=1000") as folder:
        bench = make_bench(files, base=folder)
        assert {path: bench.read_all(path) for path in files} == files
        state = os.statvfs(folder)
        assert state.f_ffree >= state.f_files // 10, "a tenth of the inodes stays free"
        # Others take the inodes that were left: the cache goes on with none.
        names = []
        while os.statvfs(folder).f_ffree:
            names.append(folder / f"other{len(names)}")
            names[-1].touch()
        assert {path: bench.read_all(path) for path in files} == files
        bench.close()


def test_the_sealed_files_of_a_disk_that_cannot_be_read_come_from_the_store(
    make_bench: MakeBench, disk: FailingDisk
) -> None:
    bench = make_bench({"big.bin": BIG, "other.bin": BIG[::-1]}, base=disk.folder)
    for path in ("big.bin", "other.bin"):
        bench.read_all(path)
        bench.wait_sealed(path)
    opened = bench.reader.open(bench.node("big.bin"))
    assert opened.sealed_fd() is not None
    disk.lose_content()
    with pytest.raises(OSError) as caught:
        os.pread(opened.sealed_fd() or 0, MIB, 8 * MIB)
    assert caught.value.errno == errno.EIO, "the disk does fail"
    asked = len(bench.store.requests)
    assert b"".join(bytes(opened.read(at, MIB)) for at in range(0, len(BIG), MIB)) == BIG
    opened.close()
    assert len(bench.store.requests) > asked
    assert bench.read_all("other.bin") == BIG[::-1]
    assert "fails" in bench.cache.failure()


def test_a_partial_file_that_cannot_be_read_comes_from_the_store(make_bench: MakeBench, disk: FailingDisk) -> None:
    bench = make_bench({"big.bin": BIG}, base=disk.folder, eager=False)
    handle = bench.reader.open(bench.node("big.bin"))
    handle.read(0, 10)
    handle.read(2 * CHUNK_BYTES, 10)
    disk.lose_content()
    assert b"".join(bytes(handle.read(at, MIB)) for at in range(0, len(BIG), MIB)) == BIG
    handle.close()


def test_a_disk_that_became_read_only_is_said_and_reads_go_on_from_the_store(
    make_bench: MakeBench, disk: FailingDisk
) -> None:
    bench = make_bench({"big.bin": BIG, "small": b"small", "other.bin": BIG[::-1]}, base=disk.folder)
    bench.read_all("big.bin")
    bench.wait_sealed("big.bin")
    disk.refuse_writes()
    assert bench.read_all("other.bin") == BIG[::-1]
    assert bench.read_all("small") == b"small"
    assert "fails" in bench.cache.failure()
    asked = len(bench.store.requests)
    assert bench.read_all("big.bin") == BIG, "what is sealed is still read from the disk"
    assert len(bench.store.requests) == asked


def test_a_disk_that_recovers_is_used_again(
    make_bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble, "RETRY_S", 0.2)
    with memory_disk(tmp_path / "disk", "size=32m") as folder:
        bench = make_bench({"big.bin": BIG, "other.bin": BIG[::-1]}, base=folder)
        filler = folder / "filler"
        filler.write_bytes(bytes(os.statvfs(folder).f_bavail * 4096))
        assert bench.read_all("big.bin") == BIG
        assert "full" in bench.cache.failure()
        filler.unlink()
        time.sleep(1.3)  # what is free is asked once a second
        assert bench.read_all("other.bin") == BIG[::-1]
        bench.wait_sealed("other.bin")
        bench.close()


def test_format_1_is_opened_and_brought_up_to_date_in_place(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    cache = Cache.open(root, HUGE_LIMIT)
    descriptor = cache.store_whole(spec_of(b"kept"), b"kept")
    assert descriptor is not None
    os.close(descriptor)
    cache.close()
    # As format 1 left it: no disk's identity, one table, another index.
    (root / "format").write_text("1\n")
    (root / "disk").unlink()
    (root / "index.sqlite").unlink()
    old = sqlite3.connect(root / "index.sqlite", isolation_level=None)
    old.executescript(
        "PRAGMA journal_mode = WAL;"
        "CREATE TABLE objects (sha256 BLOB PRIMARY KEY, disk_bytes INTEGER NOT NULL, sealed INTEGER NOT NULL,"
        " last_use INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE INDEX by_last_use ON objects (last_use, sha256, disk_bytes, sealed);"
        "CREATE INDEX partial_files ON objects (sha256, disk_bytes) WHERE sealed = 0;"
    )
    old.execute("INSERT INTO objects VALUES (?, 4096, 1, 7)", (spec_of(b"kept").sha256,))
    old.close()
    for _ in range(2):
        cache = Cache.open(root, HUGE_LIMIT)
        assert (cache.counts(), cache.total_bytes, taken(cache)) == ((1, 0), 4096, 4096)
        opened = cache.open_sealed(spec_of(b"kept").sha256, 4)
        assert opened is not None and os.pread(opened, 10, 0) == b"kept"
        os.close(opened)
        assert (root / "format").read_text() == "2\n"
        cache.close()


def test_a_mount_goes_on_when_one_of_its_disks_fails(tmp_path: Path) -> None:
    ref = parse_release("datasets/belle/chat@1.0")
    files = {f"{number}.bin": pattern(5_000_000 + number, number) for number in range(6)}
    with (
        memory_disk(tmp_path / "cache", "size=90m"),
        failing_disk(tmp_path / "more", 96 * MIB) as disk,
        catalog_process(tmp_path / "data") as catalog,
    ):
        people = Publisher(catalog, tmp_path)
        people.publish(ref, files)
        people.close()
        more = disk.folder / "cache"
        env = {"OPENSHELF_MORE_CACHES": str(more), "OPENSHELF_MATERIALISE": "no", "OPENSHELF_PASSTHROUGH": "0"}
        with RealMount(tmp_path, catalog.url, catalog.token("node-1", "node"), **env) as mount:
            folder = mount.mountpoint / "datasets/belle/chat/1.0"
            wait_until(folder.exists)
            for name, content in files.items():
                assert (folder / name).read_bytes() == content
            wait_until(lambda: all(os.getxattr(folder / name, "user.openshelf.cached") == b"yes" for name in files))
            there = {path.name for path in (more / "objects").rglob("*") if path.is_file()}
            lost = [name for name, content in files.items() if hashlib.sha256(content).hexdigest() in there]
            assert 0 < len(lost) < len(files)
            with (folder / lost[0]).open("rb", buffering=0) as stream:
                assert stream.read(100) == files[lost[0]][:100]
                disk.lose_content()
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                stream.seek(0)
                assert b"".join(iter(lambda: stream.read(MIB), b"")) == files[lost[0]]
            for name, content in files.items():
                descriptor = os.open(folder / name, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
                assert (folder / name).read_bytes() == content
            status = mount.status()
            assert status["read_errors"] == 0
            worker = status["worker_pid"]
            mount.call("cache", "verify", str(mount.mountpoint), check=False)
            assert mount.status()["worker_pid"] == worker
