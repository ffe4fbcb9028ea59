"""Chunks on their way: shown from memory before the disk has them, and never more of them than wanted."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from catalog.manifest import CHUNK_BYTES
from mountd.cache.partial import PartialFile
from mountd.fetch.memory import ChunkMemory
from mountd.fetch.pool import Pool, Priority
from openshelf.units import MIB
from tests.mountd.conftest import MakeBench
from tests.support.releases import pattern

BIG = pattern(5 * CHUNK_BYTES + 4097, 11)


def test_a_reader_does_not_wait_for_the_disk(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()
    real = PartialFile.write

    def write(self: PartialFile, index: int, data: memoryview) -> None:
        assert written.wait(10)
        real(self, index, data)

    monkeypatch.setattr(PartialFile, "write", write)
    bench = make_bench({"big.bin": BIG})
    handle = bench.reader.open(bench.node("big.bin"))
    assert bytes(handle.read(5, MIB)) == BIG[5 : 5 + MIB]
    assert handle.locate(5, MIB) is None, "not on the disk yet"
    assert not bench.cache.is_sealed(bench.sha256("big.bin"))
    written.set()
    bench.wait_sealed("big.bin")
    bench.wait_until(lambda: handle.sealed_fd() is not None)
    assert bytes(handle.read(CHUNK_BYTES, 10)) == BIG[CHUNK_BYTES : CHUNK_BYTES + 10]
    handle.close()


def test_what_is_at_hand_is_the_rest_of_the_chunk_that_was_read_last(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()
    real = PartialFile.write

    def write(self: PartialFile, index: int, data: memoryview) -> None:
        assert written.wait(10)
        real(self, index, data)

    monkeypatch.setattr(PartialFile, "write", write)
    bench = make_bench({"big.bin": BIG})
    handle = bench.reader.open(bench.node("big.bin"))
    last = 5 * CHUNK_BYTES
    assert handle.at_hand(0, MIB) is None, "nothing was fetched yet"
    handle.read(0, MIB)
    assert bytes(handle.at_hand(MIB, MIB) or b"") == BIG[MIB : 2 * MIB]
    assert handle.at_hand(CHUNK_BYTES - 1, 2) is None, "in two chunks"
    assert handle.at_hand(CHUNK_BYTES, 1) is None, "entering a chunk, more is to be fetched"
    handle.read(last, 1)
    assert bytes(handle.at_hand(last + 1, MIB) or b"") == BIG[last + 1 :]
    assert handle.at_hand(len(BIG), MIB) is None
    written.set()
    bench.wait_sealed("big.bin")
    bench.wait_until(lambda: handle.sealed_fd() is not None)
    assert handle.at_hand(last + 1, 10) is None, "in the page cache perhaps, perhaps not"
    handle.close()


def test_what_is_written_past_the_page_cache_is_the_file(make_bench: MakeBench, tmp_path: Path) -> None:
    for number, size in enumerate((CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES - 4095, 3 * CHUNK_BYTES + 4096)):
        content = pattern(size, number)
        (tmp_path / str(number)).mkdir()
        bench = make_bench({"big.bin": content}, base=tmp_path / str(number))
        assert bench.read_all("big.bin") == content
        bench.wait_sealed("big.bin")
        path = bench.cache.layout.object_path(bench.sha256("big.bin"))
        assert path.stat().st_size == size
        assert path.read_bytes() == content


def test_without_direct_writes_the_file_is_the_same(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountd.cache.partial._open_direct", lambda _: None)
    bench = make_bench({"big.bin": BIG})
    assert bench.read_all("big.bin") == BIG
    bench.wait_sealed("big.bin")
    assert bench.cache.layout.object_path(bench.sha256("big.bin")).read_bytes() == BIG


def test_a_chunk_that_was_dropped_from_memory_is_read_from_the_disk(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG}, eager=False)
    handle = bench.reader.open(bench.node("big.bin"))
    handle.read(3 * CHUNK_BYTES, 10)
    bench.wait_until(lambda: bench.reader.cached_bytes(bench.node("big.bin")) == CHUNK_BYTES)
    bench.supply.memory.clear()
    asked = len(bench.store.requests)
    place = handle.locate(3 * CHUNK_BYTES + 7, 100)
    assert place is not None
    assert os.pread(place[0], 100, place[1]) == BIG[3 * CHUNK_BYTES + 7 :][:100]
    assert len(bench.store.requests) == asked
    handle.close()


def test_buffers_are_bounded_and_all_given_back(make_bench: MakeBench) -> None:
    content = pattern(40 * CHUNK_BYTES, 5)
    bench = make_bench({"big.bin": content}, eager=False)
    object.__setattr__(bench.supply, "memory", ChunkMemory(8 * CHUNK_BYTES))
    handle = bench.reader.open(bench.node("big.bin"))
    most = 0
    for offset in range(0, len(content), MIB):
        assert bytes(handle.read(offset, MIB)) == content[offset : offset + MIB]
        most = max(most, bench.supply.buffers.in_use)
    handle.close()
    assert most <= 8 + 2 * 6 + 1, "what is kept, two for each thread that fetches, and one that is read"
    bench.wait_sealed("big.bin")
    bench.wait_until(lambda: bench.supply.buffers.in_use == 0)


def test_tasks_for_later_wait_and_others_do_not() -> None:
    pool = Pool(threads=2, reserved=1)
    done: list[str] = []
    ended = threading.Event()
    try:
        assert pool.submit(Priority.BACKGROUND, lambda: (done.append("later"), ended.set()), 0.2)
        assert pool.submit(Priority.BACKGROUND, lambda: done.append("now"))
        assert ended.wait(5)
        assert done == ["now", "later"]
    finally:
        pool.close()
    assert not pool.submit(Priority.BACKGROUND, lambda: None, 0.1)


def test_fetching_what_nobody_waits_for_begins_at_random_while_a_daemon_is_young(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(threads=1, reserved=0)
    try:
        delays = [pool.start_delay_s() for _ in range(50)]
        assert 0 <= min(delays) < max(delays) <= 1
        monkeypatch.setattr("mountd.fetch.pool.YOUNG_S", 0.0)
        assert pool.start_delay_s() == 0
    finally:
        pool.close()
