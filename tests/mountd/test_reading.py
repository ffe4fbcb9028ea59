"""Reading through the cache from a store that misbehaves."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from catalog.manifest import CHUNK_BYTES
from openshelf.units import KIB, MIB
from tests.mountd.conftest import MakeBench
from tests.support.faulty_store import Fault
from tests.support.releases import pattern

BIG = pattern(3 * CHUNK_BYTES + 12_345)


def test_a_file_is_read_whole_and_then_sealed(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG, "small.txt": b"small"})
    assert bench.read_all("big.bin") == BIG
    assert bench.read_all("small.txt") == b"small"
    bench.wait_sealed("big.bin")
    bench.wait_sealed("small.txt")
    path = bench.cache.layout.object_path(bench.sha256("big.bin"))
    state = path.stat()
    assert (state.st_mode & 0o777, state.st_size, state.st_mtime_ns) == (0o444, len(BIG), 946_684_800 * 10**9)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    assert list(bench.cache.layout.partial.iterdir()) == []


def test_a_sealed_file_is_read_without_the_store(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG})
    bench.read_all("big.bin")
    bench.wait_sealed("big.bin")
    asked = len(bench.store.requests)
    bench.store.always = "error"
    handle = bench.reader.open(bench.node("big.bin"))
    descriptor = handle.sealed_fd()
    assert descriptor is not None
    assert os.pread(descriptor, len(BIG), 0) == BIG
    assert bytes(handle.read(CHUNK_BYTES - 10, 20)) == BIG[CHUNK_BYTES - 10 : CHUNK_BYTES + 10]
    handle.close()
    assert len(bench.store.requests) == asked


def test_reading_one_byte_completes_the_file_in_the_background(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG})
    handle = bench.reader.open(bench.node("big.bin"))
    assert handle.sealed_fd() is None
    assert bytes(handle.read(CHUNK_BYTES * 2 + 5, 1)) == BIG[CHUNK_BYTES * 2 + 5 :][:1]
    bench.wait_sealed("big.bin")
    bench.wait_until(lambda: handle.sealed_fd() is not None)
    handle.close()


def test_a_lazy_reader_fetches_only_what_is_read(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG}, eager=False)
    handle = bench.reader.open(bench.node("big.bin"))
    handle.read(2 * CHUNK_BYTES + 100, 10)
    assert bytes(handle.read(2 * CHUNK_BYTES + 200, 10)) == BIG[2 * CHUNK_BYTES + 200 :][:10]
    handle.close()
    assert [(start, stop) for _, start, stop in bench.store.requests] == [(2 * CHUNK_BYTES, 3 * CHUNK_BYTES)]
    bench.wait_until(lambda: bench.reader.cached_bytes(bench.node("big.bin")) == CHUNK_BYTES)


def test_a_sequential_reader_has_neighbouring_chunks_fetched_together(make_bench: MakeBench) -> None:
    content = pattern(20 * MIB + 1, 3)
    bench = make_bench({"big.bin": content}, eager=False)
    assert bench.read_all("big.bin", 128 * KIB) == content
    assert sum(stop - start for _, start, stop in bench.store.requests) == len(content)
    assert len(bench.store.requests) < 6
    bench.wait_sealed("big.bin")


def test_many_readers_of_one_chunk_cause_one_request(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG}, eager=False)
    bench.store.delay_s = 0.2
    handles = [bench.reader.open(bench.node("big.bin")) for _ in range(16)]
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda handle: bytes(handle.read(CHUNK_BYTES + 5, 100)), handles))
    for handle in handles:
        handle.close()
    assert set(found) == {BIG[CHUNK_BYTES + 5 : CHUNK_BYTES + 105]}
    assert len(bench.store.requests) == 1


def test_opening_a_parquet_file_sends_for_its_tail(make_bench: MakeBench) -> None:
    bench = make_bench({"train.parquet": BIG}, eager=False)
    handle = bench.reader.open(bench.node("train.parquet"))
    bench.wait_until(lambda: len(bench.store.requests) == 1)
    assert bench.store.requests[0][1:] == (3 * CHUNK_BYTES, len(BIG))
    handle.close()


def test_a_file_of_a_pack_is_read_from_its_place_in_the_pack(make_bench: MakeBench) -> None:
    files = {f"images/{number:03d}.jpg": pattern(1000 + number, number) for number in range(50)}
    bench = make_bench(files)
    for path in ("images/000.jpg", "images/037.jpg", "images/049.jpg"):
        assert bench.read_all(path) == files[path]
        bench.wait_sealed(path)
    assert len({name for name, *_ in bench.store.requests}) == 1


def test_the_files_of_a_pack_come_with_one_request_for_many(make_bench: MakeBench) -> None:
    files = {f"images/{number:03d}.jpg": pattern(20_000 + number, number) for number in range(400)}
    files["images/500.jpg"] = files["images/007.jpg"]
    bench = make_bench(files)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(bench.read_all, files)) == list(files.values())
    assert len(bench.store.requests) <= 8, "8 MB in windows of up to 4 MiB, several readers at once"
    for path in files:
        bench.wait_sealed(path)


def test_a_damaged_window_costs_only_the_damaged_file_another_request(make_bench: MakeBench) -> None:
    files = {f"images/{number:03d}.jpg": pattern(20_000 + number, number) for number in range(50)}
    bench = make_bench(files)
    bench.store.faults.append("wrong")
    assert {path: bench.read_all(path) for path in files} == files
    assert len(bench.store.requests) == 2
    assert bench.fetcher.counters["chunks_corrupt"] == 1


def test_a_large_file_inside_another_object_is_read_by_the_manifests_word(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG, "small.txt": b"small"})
    node, outer = bench.node("big.bin"), b"before" + BIG + b"after"
    assert node.entry is not None
    stored = hashlib.sha256(outer).digest()
    bench.store.objects[stored.hex()] = outer
    entry = dataclasses.replace(node.entry, object=stored, offset=6)
    handle = bench.reader.open(node._replace(entry=entry))
    assert b"".join(bytes(handle.read(at, MIB)) for at in range(0, len(BIG), MIB)) == BIG
    handle.close()


def test_an_empty_file_needs_no_store(make_bench: MakeBench) -> None:
    bench = make_bench({"empty": b"", "x": b"x"})
    assert bench.read_all("empty") == b""
    assert bench.store.requests == []
    assert bench.reader.cached_bytes(bench.node("empty")) == 0


@pytest.mark.parametrize("faults", [["error"], ["short"], ["error", "short", "error"], ["silent"]])
def test_a_passing_fault_is_not_seen_by_the_reader(make_bench: MakeBench, faults: list[str]) -> None:
    bench = make_bench({"big.bin": BIG})
    bench.store.faults.extend(faults)  # type: ignore[arg-type]
    assert bench.read_all("big.bin") == BIG


def test_a_chunk_with_wrong_bytes_is_fetched_again_and_counted(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench({"big.bin": BIG}, eager=False)
    bench.store.faults.append("wrong")
    assert bench.read_all("big.bin") == BIG
    assert bench.fetcher.counters["chunks_corrupt"] == 1
    assert bench.sha256("big.bin").hex() in caplog.text


def test_a_chunk_that_stays_wrong_is_an_error_and_never_shown(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench({"big.bin": BIG}, eager=False)
    bench.store.always = "wrong"
    handle = bench.reader.open(bench.node("big.bin"))
    with pytest.raises(OSError, match="wrong bytes") as caught:
        handle.read(0, 100)
    assert caught.value.errno == errno.EIO
    assert "wrong bytes twice" in caplog.text
    bench.store.always = None
    assert bytes(handle.read(0, 100)) == BIG[:100]
    handle.close()


def test_a_store_that_is_gone_gives_an_error_within_the_deadline(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG}, deadline_s=1.0)
    bench.store.always = "error"
    handle = bench.reader.open(bench.node("big.bin"))
    started = time.monotonic()
    with pytest.raises(OSError, match=bench.sha256("big.bin").hex()):
        handle.read(0, 10)
    assert time.monotonic() - started < 4
    handle.close()


def test_a_store_that_drips_gives_an_error_within_the_deadline(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG}, deadline_s=1.0, eager=False)
    bench.store.always = "drip"
    handle = bench.reader.open(bench.node("big.bin"))
    started = time.monotonic()
    with pytest.raises(OSError, match="did not come within 1 s"):
        handle.read(0, 10)
    assert time.monotonic() - started < 2
    assert bench.fetcher.counters["reads_timed_out"] == 1
    handle.close()


@pytest.mark.parametrize("fault", ["error", "drip"])
def test_a_chunk_that_did_not_come_fails_again_at_once_and_comes_later(make_bench: MakeBench, fault: Fault) -> None:
    bench = make_bench({"big.bin": BIG}, deadline_s=0.8, fail_again_s=1.5, eager=False)
    bench.store.always = fault
    handle = bench.reader.open(bench.node("big.bin"))
    with pytest.raises(OSError):
        handle.read(0, 10)
    asked = len(bench.store.requests)
    started = time.monotonic()
    for _ in range(20):  # as the kernel does, page by page
        with pytest.raises(OSError) as caught:
            handle.read(0, 10)
        assert caught.value.errno == errno.EIO
    assert time.monotonic() - started < 0.3
    assert fault == "drip" or len(bench.store.requests) == asked
    bench.store.always = None
    bench.wait_until(bench.source_is_asked)
    assert bytes(handle.read(3 * CHUNK_BYTES, 10)) == BIG[3 * CHUNK_BYTES :][:10], "another chunk is asked for"
    bench.wait_until(lambda: time.monotonic() - started > 1.6)
    if fault == "error":
        assert bytes(handle.read(0, 10)) == BIG[:10]
    handle.close()


def test_who_waits_for_what_was_fetched_ahead_in_vain_has_it_fetched_once_more(make_bench: MakeBench) -> None:
    bench = make_bench({"big.bin": BIG}, deadline_s=1.6, fail_again_s=60.0, eager=False)
    bench.store.always = "silent"
    handle = bench.reader.open(bench.node("big.bin"))
    failed: list[int | None] = []

    def first() -> None:
        try:
            handle.read(0, 10)
        except OSError as error:
            failed.append(error.errno)

    def asked_twice(where: int) -> bool:
        return sum(start == where for _, start, _ in bench.store.requests) >= 2

    thread = threading.Thread(target=first)
    thread.start()
    bench.wait_until(lambda: asked_twice(0) and asked_twice(CHUNK_BYTES))  # the first time each is given up after 1 s
    time.sleep(0.05)
    bench.store.always = None
    assert bytes(handle.read(CHUNK_BYTES, 10)) == BIG[CHUNK_BYTES:][:10]
    thread.join()
    assert failed == [errno.EIO]
    handle.close()


def test_an_object_that_the_catalog_does_not_have_fails_at_once(
    make_bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    bench = make_bench({"big.bin": BIG}, eager=False)
    bench.store.always = "missing"
    handle = bench.reader.open(bench.node("big.bin"))
    with pytest.raises(OSError, match="Errno 5"):
        handle.read(2 * CHUNK_BYTES, 10)
    handle.close()
    assert len(bench.store.requests) == 1
    assert bench.sha256("big.bin").hex() in caplog.text


def test_readers_that_wait_are_not_held_up_by_background_work(make_bench: MakeBench) -> None:
    files = {f"{number}.bin": pattern(CHUNK_BYTES * 6, number) for number in range(4)}
    bench = make_bench(files)
    bench.store.delay_s = 0.3
    handles = [bench.reader.open(bench.node(path)) for path in files]
    for handle in handles:
        handle.read(0, 1)
    started = time.monotonic()
    handles[0].read(5 * CHUNK_BYTES, 1)
    assert time.monotonic() - started < 1.2
    for handle in handles:
        handle.close()


def test_files_end_closed_when_nobody_uses_them(make_bench: MakeBench) -> None:
    files = {f"{number}.bin": pattern(2000 + number, number) for number in range(100)}
    bench = make_bench(files)
    before = len(os.listdir("/proc/self/fd"))
    threads = [threading.Thread(target=bench.read_all, args=(path,)) for path in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path in files:
        bench.wait_sealed(path)
    bench.wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 30)
    assert bench.cache.counts() == (100, 0)
