"""Packs: one request brings them, each file is checked and becomes a file of the cache, whatever happens meanwhile."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from blake3 import blake3

from mountd.cache.scribe import WRONG
from mountd.cache.scribes import Scribe, ScribeLost
from mountd.fetch import packs
from openshelf.units import KIB, MIB
from tests.mountd.conftest import Bench, MakeBench
from tests.support.releases import pattern
from tests.support.shared_data import ROOT
from tests.support.small_disks import memory_disk


def images(count: int, size: int) -> dict[str, bytes]:
    """Files of nearly the same size, all different; together one pack when they are less than 64 MiB."""
    return {f"images/{number:05d}.jpg": pattern(size + number % 7, number) for number in range(count)}


def intact(bench: Bench, files: Mapping[str, bytes]) -> bool:
    """Whether the cache holds exactly these files, each under its own digest, all of them on the disk."""
    there = {path.name: path for path in bench.cache.layout.objects.rglob("*") if path.is_file()}
    assert set(there) == {hashlib.sha256(content).hexdigest() for content in files.values()}
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == name for name, path in there.items())
    return bench.cache.counts() == (len(there), 0)


def unpacked(bench: Bench) -> bool:
    return not bench.reader._packs._streams


def scribes() -> list[int]:
    """The processes that write for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            named = b"scribe.py" in (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getpid() and named:
            found.append(int(folder.name))
    return found


def test_an_epoch_costs_one_request_a_pack(make_bench: MakeBench) -> None:
    large = {f"large/{number:02d}.bin": pattern(MIB - number, 10_000 + number) for number in range(70)}
    files = images(2000, 3 * KIB) | large
    bench = make_bench(files)
    assert len(bench.made.objects) == 2
    assert {path: bench.read_all(path) for path in sorted(files)} == files
    bench.wait_until(lambda: unpacked(bench))
    assert sorted(name for name, *_ in bench.store.requests) == sorted(bench.made.objects)
    assert bench.fetcher.counters["bytes_fetched"] == sum(map(len, files.values()))
    assert intact(bench, files)
    bench.store.always = "error"
    assert {path: bench.read_all(path) for path in random.Random(1).sample(sorted(files), 50)}.items() <= files.items()


def test_files_come_into_the_cache_with_the_date_of_the_manifest_and_settle(make_bench: MakeBench) -> None:
    files = images(40, 2 * KIB)
    bench = make_bench(files)
    bench.read_all("images/00000.jpg")
    places = [bench.cache.layout.object_path(bench.sha256(path)) for path in files]
    bench.wait_until(lambda: all(path.exists() and path.stat().st_mode & 0o777 == 0o444 for path in places))
    assert {path.stat().st_mtime_ns for path in places} == {946_684_800 * 10**9}


def test_the_touched_file_comes_before_its_neighbours(make_bench: MakeBench) -> None:
    files = images(600, 20 * KIB)
    bench = make_bench(files)
    bench.store.faults.append("half")
    assert bench.read_all("images/00500.jpg") == files["images/00500.jpg"], "half of the answer is enough"
    start = bench.made.entries["images/00500.jpg"].offset
    assert bench.store.requests[0][1] == start
    assert bench.read_all("images/00010.jpg") == files["images/00010.jpg"], "not waited for behind the stalled answer"


def test_the_same_content_twice_is_one_file_of_the_cache(make_bench: MakeBench) -> None:
    files = images(30, KIB)
    files["images/twice.jpg"] = files["images/00003.jpg"]
    bench = make_bench(files)
    assert {path: bench.read_all(path) for path in files} == files
    bench.wait_until(lambda: unpacked(bench))
    assert intact(bench, files) and bench.cache.counts() == (30, 0)


def test_wrong_bytes_of_one_file_cost_the_others_nothing(make_bench: MakeBench) -> None:
    files = images(300, 4 * KIB)
    bench = make_bench(files)
    [(name, right)] = bench.made.objects.items()
    damaged = bench.made.entries["images/00150.jpg"].offset
    bench.store.objects[name] = right[:damaged] + bytes([right[damaged] ^ 1]) + right[damaged + 1 :]
    for path, content in files.items():
        if path != "images/00150.jpg":
            assert bench.read_all(path) == content
    assert len(bench.store.requests) == 1
    with pytest.raises(OSError, match="wrong bytes") as caught:
        bench.read_all("images/00150.jpg")
    assert caught.value.errno == errno.EIO
    assert not bench.cache.is_sealed(bench.sha256("images/00150.jpg"))
    bench.store.objects[name] = right
    assert bench.read_all("images/00150.jpg") == files["images/00150.jpg"]


def test_a_lazy_reader_gets_a_window_not_the_pack(make_bench: MakeBench) -> None:
    files = images(700, 20 * KIB)
    bench = make_bench(files, eager=False)
    assert bench.read_all("images/00010.jpg") == files["images/00010.jpg"]
    bench.wait_until(lambda: unpacked(bench))
    [(_, start, stop)] = bench.store.requests
    assert start == bench.made.entries["images/00010.jpg"].offset
    assert 3 * MIB < stop - start <= packs.WINDOW_BYTES
    assert bench.read_all("images/00100.jpg") == files["images/00100.jpg"]
    assert len(bench.store.requests) == 1


def test_what_was_evicted_comes_back_by_the_window(make_bench: MakeBench) -> None:
    files = images(700, 20 * KIB)
    bench = make_bench(files)
    bench.read_all("images/00000.jpg")
    bench.wait_until(lambda: bench.cache.counts() == (700, 0))
    for path in files:
        bench.cache.discard(bench.sha256(path))
    assert bench.read_all("images/00000.jpg") == files["images/00000.jpg"]
    bench.wait_until(lambda: unpacked(bench))
    assert bench.store.requests[-1][2] <= packs.WINDOW_BYTES


def test_a_cache_too_small_for_the_pack_serves_what_is_read(make_bench: MakeBench) -> None:
    files = images(400, 20 * KIB)
    bench = make_bench(files, limit_bytes=2 * MIB)
    for path in random.Random(2).sample(sorted(files), 60):
        assert bench.read_all(path) == files[path]
        assert bench.cache.total_bytes <= 2 * MIB
    biggest = max(stop - start for _, start, stop in bench.store.requests)
    assert biggest <= packs.WINDOW_BYTES


def test_a_full_disk_is_read_past(make_bench: MakeBench, tmp_path: Path) -> None:
    files = images(400, 20 * KIB)
    with memory_disk(tmp_path / "disk", "size=2m") as disk:
        bench = make_bench(files, base=disk)
        assert {path: bench.read_all(path) for path in files} == files
        assert bench.cache.failure()
        for path in bench.cache.layout.objects.rglob("*"):
            if path.is_file():
                assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        bench.close()


def test_killed_while_unpacking_the_next_reader_goes_on(make_bench: MakeBench, tmp_path: Path) -> None:
    files = images(2000, 5 * KIB)
    bench = make_bench(files)
    bench.store.faults.append("half")
    (tmp_path / "node").mkdir()
    cache = tmp_path / "node" / "cache"
    command = [sys.executable, "-m", "tests.support.packed_reader"]
    arguments = [str(cache), str(bench.made.manifest), bench.store.url]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == b"True\n"
        bench.wait_until(lambda: sum(1 for _ in (cache / "objects").glob("*/*")) > 300)
        process.kill()
    again = make_bench(files, base=tmp_path / "node")
    kept = again.cache.counts()[0]
    assert 300 < kept < 2000
    assert {path: again.read_all(path) for path in files} == files
    again.wait_until(lambda: unpacked(again))
    assert intact(again, files)
    assert again.fetcher.counters["bytes_fetched"] < sum(map(len, files.values())) * 0.9


def test_a_file_cut_short_by_the_end_of_the_process_is_not_served(make_bench: MakeBench) -> None:
    files = images(50, 5 * KIB)
    bench = make_bench(files)
    sha256 = bench.sha256("images/00007.jpg")
    entered = bench.cache.small.enter([(sha256, len(files["images/00007.jpg"]))])
    place = bench.cache.layout.object_path(sha256)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    place.write_bytes(files["images/00007.jpg"][:100])
    assert entered.digests == {sha256}
    assert not bench.cache.is_sealed(sha256)
    assert bench.cache.open_sealed(sha256, len(files["images/00007.jpg"])) is None
    bench.close()
    again = make_bench(files)
    assert {path: again.read_all(path) for path in files} == files
    again.wait_until(lambda: unpacked(again))
    assert intact(again, files)


def test_withdrawn_while_unpacking_nothing_stays(make_bench: MakeBench) -> None:
    files = images(1500, 5 * KIB)
    bench = make_bench(files)
    bench.store.faults.append("half")
    bench.read_all("images/00000.jpg")
    bench.cache.discard_all([bench.sha256(path) for path in files])
    bench.wait_until(lambda: unpacked(bench))
    left = {path.name for path in bench.cache.layout.objects.rglob("*") if path.is_file()}
    assert bench.cache.counts() == (len(left), 0), "nothing lies there that the index does not know"


def test_a_scribe_that_is_killed_is_done_without(make_bench: MakeBench) -> None:
    files = images(1500, 5 * KIB)
    bench = make_bench(files)
    bench.store.faults.append("half")
    bench.read_all("images/00000.jpg")
    [pid] = scribes()
    os.kill(pid, signal.SIGKILL)
    assert {path: bench.read_all(path) for path in files} == files
    bench.wait_until(lambda: unpacked(bench))
    assert intact(bench, files)


def test_scribes_end_with_the_reader(make_bench: MakeBench) -> None:
    files = images(20, KIB)
    bench = make_bench(files)
    bench.read_all("images/00000.jpg")
    bench.wait_until(lambda: unpacked(bench))
    assert len(scribes()) == 1
    bench.close()
    assert scribes() == []


def test_a_scribe_writes_what_is_right_and_says_what_is_not(tmp_path: Path) -> None:
    scribe = Scribe(1000)
    scribe.memory[:5] = b"right"
    digest = blake3(b"right").digest()
    target, there = tmp_path / "ab" / "new", tmp_path / "there"
    there.write_bytes(b"before")
    orders = [(str(target), 0, 5, 7, digest), (str(tmp_path / "x"), 1, 4, 7, digest), (str(there), 0, 5, 7, digest)]
    scribe.order(orders)
    assert list(scribe.answer(3)) == [0, WRONG, errno.EEXIST]
    assert (target.read_bytes(), target.stat().st_mode & 0o777, target.stat().st_mtime_ns) == (b"right", 0o400, 7)
    assert there.read_bytes() == b"before" and not (tmp_path / "x").exists()
    scribe.close()
    with pytest.raises(ScribeLost):
        scribe.order(orders)
