"""The object store in a local folder: how files lie, crashes, a full disk."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.objects import StoreFull, StoreUnavailable, open_store
from openshelf.errors import UsageError

MIB = 1 << 20


def test_an_object_is_a_read_only_file_named_by_its_digest(tmp_path: Path) -> None:
    content = b"open shelf"
    digest = hashlib.sha256(content).hexdigest()
    open_store(None, tmp_path).put([content], None, None)
    path = tmp_path / "objects" / "sha256" / digest[:2] / digest[2:4] / digest
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o444


def test_an_object_damaged_on_disk_is_healed_by_putting_it_again(tmp_path: Path) -> None:
    store = open_store(None, tmp_path)
    digest = store.put([b"right"], None, None).sha256
    path = next((tmp_path / "objects" / "sha256").rglob(digest))
    path.unlink()
    path.write_bytes(b"wrong")
    store.put([b"right"], 5, digest)
    assert path.read_bytes() == b"right"


def test_an_object_cut_short_on_disk_is_an_error_for_its_reader(tmp_path: Path) -> None:
    store = open_store(None, tmp_path)
    digest = store.put([b"0123456789"], None, None).sha256
    path = next((tmp_path / "objects" / "sha256").rglob(digest))
    path.chmod(0o644)
    path.write_bytes(b"01234")
    with pytest.raises(StoreUnavailable):
        list(store.open(digest, 0, 10))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_said_so_and_gives_its_space_back(small_disk: Path) -> None:
    store = open_store(None, small_disk)
    kept = store.put([b"kept"], None, None).sha256
    with pytest.raises(StoreFull, match="full"):
        store.put((os.urandom(MIB) for _ in range(20)), 20 * MIB, None)
    assert [path.name for path in small_disk.rglob("*") if path.is_file()] == [kept]
    assert b"".join(store.open(kept)) == b"kept"
    store.put((os.urandom(MIB) for _ in range(6)), 6 * MIB, None)


def test_a_folder_that_cannot_be_written_is_said_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where the folder must be")
    with pytest.raises(StoreUnavailable):
        open_store(None, tmp_path)


def test_what_a_killed_writer_left_is_swept_and_what_still_grows_is_not(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from catalog.objects import open_store\n"
        "def body():\n"
        "    yield b'x' * 1000\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "open_store(None, Path(sys.argv[1])).put(body(), None, None)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer.stdout:
        assert writer.stdout.readline() == "writing\n"
        incoming = tmp_path / "objects" / "incoming"
        open_store(None, tmp_path)
        assert len(list(incoming.iterdir())) == 1
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    open_store(None, tmp_path)
    assert list(incoming.iterdir()) == []


@pytest.mark.parametrize("url", ["s3://", "http://bucket", "bucket", "s3:///x", ""])
def test_an_address_that_is_no_store_is_wrong_usage(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url, tmp_path)


def test_many_threads_may_put_the_same_object(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    store = open_store(None, tmp_path)
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: store.put([b"same"] * 1000, 4000, None), range(32)))
    assert len(set(done)) == 1
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
