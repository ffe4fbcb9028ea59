"""The parts of a shelf are killed while others depend on them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.client import Client, DraftAbout, DraftFile
from catalog.manifest import DEFAULT_MTIME_NS
from catalog.names import parse_release
from scripts import sample_corpus
from tests.e2e.shelf import OPENSHELF, Shelf, running_shelf, wait_until

BIG = "datasets/big/numbers@1.0"
BIG_BYTES = 2 << 30
HASH_SCRIPT = (
    "import hashlib, sys; print(hashlib.file_digest(open(sys.argv[1], 'rb', buffering=0), 'sha256').hexdigest())"
)

READERS = 16
STORM_S = 12.0
CHECKING_READER = """
import mmap, os, random, sys, time
path, way, lasts_s, seed = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
until = time.monotonic() + lasts_s
checked = 0
while checked == 0 or time.monotonic() < until:
    with open(path, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if way == "mmap" else None
        for _ in range(20):
            start = chance.randrange(size >> 20) << 20
            data = mapping[start : start + 65536] if mapping else os.pread(stream.fileno(), 65536, start)
            assert data == start.to_bytes(8, "big") * 8192, start
            checked += 1
            time.sleep(0.002)
        if mapping:
            mapping.close()
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
print(checked)
"""
"""Random places of the file, by read or by mapping, each compared with what must stand there."""


def write_numbers(path: Path, size_bytes: int) -> str:
    """Fill ``path`` with content that depends on the position; returns its SHA-256."""
    hasher = hashlib.sha256()
    with path.open("wb") as sink:
        for start in range(0, size_bytes, 1 << 20):
            block = start.to_bytes(8, "big") * (1 << 17)
            sink.write(block)
            hasher.update(block)
    return hasher.hexdigest()


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shelf, str]]:
    """A shelf with a published release of one file of 2 GiB, and that file's SHA-256."""
    home = tmp_path_factory.mktemp("big")
    with running_shelf(home) as shelf:
        source = home / "numbers.bin"
        digest = write_numbers(source, BIG_BYTES)
        ref = parse_release(BIG)
        with Client(shelf.url, shelf.tokens["curator"]) as client:
            client.create_draft(ref, DraftAbout(created="2000-01-01T00:00:00Z", licence_expression="CC0-1.0"))
            sent = client.upload(ref, source)
            assert sent.sha256 == digest
            client.seal(ref, [DraftFile("numbers.bin", sent.sha256, mtime_ns=DEFAULT_MTIME_NS)])
        source.unlink()
        shelf.publish(BIG)
        yield shelf, digest


def workers_of(supervisor: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]


@pytest.mark.parametrize("passthrough", ["1", "0"])
def test_a_reader_never_sees_the_worker_die(big: tuple[Shelf, str], passthrough: str) -> None:
    shelf, digest = big
    name = f"killed-{passthrough}"
    point = shelf.mount(name, OPENSHELF_PASSTHROUGH=passthrough)
    path = point / "datasets" / "big" / "numbers" / "1.0" / "numbers.bin"
    status = shelf.status(point)
    assert status["passthrough"] is (passthrough == "1")
    killed: set[int] = set()
    for _ in range(2):  # first from the store, then from the cache
        reader = subprocess.Popen([sys.executable, "-c", HASH_SCRIPT, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(10):
            for worker in workers_of(status["supervisor_pid"]):
                os.kill(worker, signal.SIGKILL)
                killed.add(worker)
            time.sleep(0.75)
        output, _ = reader.communicate(timeout=240)
        assert reader.returncode == 0
        assert output.strip() == digest
    assert len(killed) >= 15
    after = shelf.status(point)
    assert after["supervisor_pid"] == status["supervisor_pid"]
    assert after["restarts"] >= 15
    shelf.umount(point)


@pytest.mark.parametrize("passthrough", ["1", "0"])
def test_sixteen_readers_and_mappings_never_see_the_worker_die(big: tuple[Shelf, str], passthrough: str) -> None:
    shelf, _ = big
    name = f"storm-{passthrough}"
    point = shelf.mount(name, OPENSHELF_PASSTHROUGH=passthrough)
    path = point / "datasets" / "big" / "numbers" / "1.0" / "numbers.bin"
    status = shelf.status(point)
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", CHECKING_READER, str(path), ("read", "mmap")[number % 2], str(STORM_S), str(number)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(READERS)
    ]  # fmt: skip
    killed: set[int] = set()
    until = time.monotonic() + STORM_S
    while time.monotonic() < until:
        for worker in workers_of(status["supervisor_pid"]):
            os.kill(worker, signal.SIGKILL)
            killed.add(worker)
        time.sleep(0.6)
    for reader in readers:
        output, said = reader.communicate(timeout=120)
        assert (reader.returncode, said) == (0, "")
        assert int(output) >= 20
    assert len(killed) >= 10
    after = shelf.status(point)
    assert after["supervisor_pid"] == status["supervisor_pid"]
    assert after["read_errors"] == 0
    shelf.umount(point)


def test_what_is_cached_is_read_while_the_catalog_is_dead(big: tuple[Shelf, str]) -> None:
    shelf, digest = big
    point = shelf.mount("offline")
    folder = point / "datasets" / "big" / "numbers" / "1.0"
    hash_file = [sys.executable, "-c", HASH_SCRIPT, str(folder / "numbers.bin")]
    assert subprocess.run(hash_file, capture_output=True, text=True, check=True).stdout.strip() == digest
    shelf.kill_catalog()
    try:
        subprocess.run(["sh", "-c", "echo 3 > /proc/sys/vm/drop_caches"], check=True)
        assert subprocess.run(hash_file, capture_output=True, text=True, check=True).stdout.strip() == digest
        assert sorted(os.listdir(folder)) == ["numbers.bin", "release.json", "release.json.sig"]
        shelf.umount(point)
        point = shelf.mount("offline")  # starts from what it has seen last
        assert subprocess.run(hash_file, capture_output=True, text=True, check=True).stdout.strip() == digest
        assert shelf.status(point)["online"] is False
    finally:
        shelf.umount(point)
        shelf.start()


def test_a_sealed_file_is_read_without_the_daemon(big: tuple[Shelf, str]) -> None:
    shelf, digest = big
    point = shelf.mount("sealed", OPENSHELF_MATERIALISE="no")
    path = point / "datasets" / "big" / "numbers" / "1.0" / "numbers.bin"
    hash_file = [sys.executable, "-c", HASH_SCRIPT, str(path)]
    subprocess.run(hash_file, capture_output=True, check=True)
    wait_until("the object to be sealed", lambda: any(shelf.cache("sealed").glob(f"objects/*/{digest}")))
    before = shelf.status(point)
    assert subprocess.run(hash_file, capture_output=True, text=True, check=True).stdout.strip() == digest
    after = shelf.status(point)
    assert after["opens_passthrough"] == before["opens_passthrough"] + 1
    assert after["reads_served"] == before["reads_served"]
    assert after["opens_served"] == before["opens_served"]
    shelf.umount(point)


def test_an_ingest_killed_at_any_moment_ends_with_the_same_manifest(tmp_path: Path) -> None:
    sample_corpus.write(tmp_path / "sample", 20_000, 7)
    sources = [str(tmp_path / "sample" / "texts.jsonl")]
    release = "datasets/killed/texts"
    arguments = ["ingest", *sources, "--to", release, "--version", "1.0", "--licence", "CC-BY-4.0", "--json"]
    with running_shelf(tmp_path / "calm") as calm:
        undisturbed = calm.ok("curator", *arguments).json
    with running_shelf(tmp_path / "stormy") as stormy:
        for delay_s in (0.5, 0.9, 1.3, 1.8, 2.4, 3.0):
            process = subprocess.Popen(
                [OPENSHELF, *arguments], env=stormy.env("curator"), stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            time.sleep(delay_s)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        final = stormy.ok("curator", *arguments).json
    assert final["manifest_digest"] == undisturbed["manifest_digest"]
    for count in ("rows_in", "rows_out", "rejected", "duplicates", "findings", "files", "bytes"):
        assert final[count] == undisturbed[count]
