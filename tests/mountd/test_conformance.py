"""What every transport must do alike: a published release under a real mount, compared with a plain folder."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from catalog.names import parse_release
from tests.support.catalog_server import RunningCatalog, catalog_process
from tests.support.publishing import MTIME_NS, Publisher
from tests.support.real_mount import RealMount
from tests.support.releases import pattern

CHAT = parse_release("datasets/belle/chat@1.0")
FILES = {
    "README.md": "# 对话\n".encode(),
    "LICENSE": b"",
    "data/train-00000-of-00001.parquet": pattern(11 << 20, 5),
    "诗/床前明月光.txt": "疑是地上霜".encode(),
    **{f"images/{number:04d}.jpg": pattern(500 + number, number) for number in range(60)},
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    with catalog_process(tmp_path_factory.mktemp("catalog") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def publisher(catalog: RunningCatalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    people = Publisher(catalog, tmp_path_factory.mktemp("uploads"))
    people.publish(CHAT, FILES)
    people.curator.tag(CHAT, "latest")
    yield people
    people.close()


@pytest.fixture(scope="module", params=["kernel", "libfuse"])
def mounted(
    request: pytest.FixtureRequest,
    catalog: RunningCatalog,
    publisher: Publisher,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealMount]:
    base = tmp_path_factory.mktemp(request.param)
    with RealMount(base, catalog.url, catalog.token("node", "node"), transport=request.param) as mount:
        assert mount.status()["transport"] == request.param
        yield mount


@pytest.fixture
def release(mounted: RealMount) -> Path:
    return mounted.mountpoint / "datasets" / "belle" / "chat" / "1.0"


def wait_until(true: Callable[[], bool], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def test_the_top_has_the_folders_of_the_kinds(mounted: RealMount) -> None:
    assert sorted(os.listdir(mounted.mountpoint)) == [
        ".openshelf",
        "code",
        "datasets",
        "images",
        "models",
        "templates",
    ]


def test_a_copy_equals_the_files_byte_for_byte(release: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", release, tmp_path / "copy"], check=True)
    found = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert found == set(FILES) | {"release.json", "release.json.sig"}
    for path, content in FILES.items():
        assert (tmp_path / "copy" / path).read_bytes() == content


def test_attributes_are_those_of_the_manifest(release: Path) -> None:
    for path, content in FILES.items():
        state = (release / path).stat()
        assert (stat.S_IMODE(state.st_mode), state.st_size, state.st_uid) == (0o444, len(content), 0)
        assert state.st_mtime_ns == MTIME_NS
    assert stat.S_IMODE(release.stat().st_mode) == 0o555
    inodes = {(release / path).stat().st_ino for path in FILES}
    assert len(inodes) == len(FILES)


def test_walking_finds_every_file_once(release: Path) -> None:
    found = [str(Path(folder, name).relative_to(release)) for folder, _, names in os.walk(release) for name in names]
    assert sorted(found) == sorted([*FILES, "release.json", "release.json.sig"])


def test_a_tag_is_a_relative_link(release: Path) -> None:
    latest = release.parent / "latest"
    assert os.readlink(latest) == "1.0"
    assert (latest / "README.md").read_bytes() == FILES["README.md"]


def test_many_readers_at_once_read_the_right_bytes(release: Path) -> None:
    content = FILES["data/train-00000-of-00001.parquet"]
    path = release / "data" / "train-00000-of-00001.parquet"

    def read(seed: int) -> bool:
        with path.open("rb") as stream:
            for step in range(30):
                offset = (seed * 7_919_333 + step * 1_234_567) % (len(content) - 70_000)
                stream.seek(offset)
                if stream.read(65_536) != content[offset : offset + 65_536]:
                    return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))


def test_a_mapping_and_sendfile_show_the_same_bytes(release: Path, tmp_path: Path) -> None:
    path = release / "data" / "train-00000-of-00001.parquet"
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert hashlib.sha256(mapping).digest() == hashlib.sha256(FILES[str(path.relative_to(release))]).digest()
    with path.open("rb") as source, (tmp_path / "sent").open("wb") as sink:
        shutil.copyfileobj(source, sink)
        os.sendfile(sink.fileno(), source.fileno(), 5 << 20, 1000)
    assert (tmp_path / "sent").read_bytes()[-1000:] == FILES[str(path.relative_to(release))][5 << 20 :][:1000]


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (lambda release: (release / "README.md").open("ab"), errno.EROFS),
        (lambda release: (release / "new").touch(), errno.EROFS),
        (lambda release: (release / "README.md").unlink(), errno.EROFS),
        (lambda release: (release / "images").rmdir(), errno.EROFS),
        (lambda release: (release / "README.md").rename(release / "x"), errno.EROFS),
        (lambda release: (release / "README.md").chmod(0o600), errno.EROFS),
        (lambda release: (release / "sub").mkdir(), errno.EROFS),
        (lambda release: (release / "absent").open("rb"), errno.ENOENT),
        (lambda release: (release / "README.md" / "x").open("rb"), errno.ENOTDIR),
        (lambda release: os.open(release / ("n" * 300), os.O_RDONLY), errno.ENAMETOOLONG),
    ],
)
def test_what_is_not_possible_gets_the_right_error(
    release: Path, attempt: Callable[[Path], object], expected: int
) -> None:
    with pytest.raises(OSError, match="Errno") as caught:
        attempt(release)
    assert caught.value.errno == expected


def test_extended_attributes_tell_digest_release_and_licence(release: Path) -> None:
    path = release / "README.md"
    path.read_bytes()
    digest = hashlib.sha256(FILES["README.md"]).hexdigest()
    assert os.getxattr(path, "user.openshelf.sha256") == digest.encode()
    assert os.getxattr(path, "user.openshelf.release") == str(CHAT).encode()
    assert os.getxattr(path, "user.openshelf.licence") == b"CC-BY-4.0"
    wait_until(lambda: os.getxattr(path, "user.openshelf.cached") == b"yes")
    assert "user.openshelf.sha256" in os.listxattr(path)
    with pytest.raises(OSError, match="Errno 61"):
        os.getxattr(path, "user.other")
    with pytest.raises(OSError, match="Errno 95"):
        os.getxattr(path, "system.posix_acl_access")


def test_df_shows_what_is_listed(mounted: RealMount) -> None:
    state = os.statvfs(mounted.mountpoint)
    assert state.f_files >= len(FILES)
    assert state.f_blocks * state.f_frsize >= sum(map(len, FILES.values()))
    assert state.f_bavail == 0


def test_status_json_is_whole_and_moves_on(mounted: RealMount) -> None:
    path = mounted.mountpoint / ".openshelf" / "status.json"
    status = json.loads(path.read_bytes())
    assert status["online"] and status["releases"] >= 1
    os.listdir(path.parent)
    for _ in range(3):
        time.sleep(1.1)
        assert json.loads(path.read_bytes())["feed_serial"] >= status["feed_serial"]


def test_publishing_tagging_and_withdrawing_is_seen(mounted: RealMount, publisher: Publisher, release: Path) -> None:
    name = f"passing-{mounted.status()['transport']}"
    first, second = (parse_release(f"datasets/belle/{name}@{version}") for version in ("1", "2"))
    folder = mounted.mountpoint / "datasets" / "belle" / name
    assert not folder.exists()
    publisher.publish(first, {"a.txt": b"first"})
    publisher.curator.tag(first, "latest")
    wait_until(lambda: (folder / "latest").exists() and (folder / "latest" / "a.txt").read_bytes() == b"first")
    publisher.publish(second, {"a.txt": b"second"})
    publisher.curator.tag(second, "latest")
    wait_until(lambda: (folder / "latest" / "a.txt").read_bytes() == b"second")
    assert (folder / "1" / "a.txt").read_bytes() == b"first"
    with (folder / "1" / "a.txt").open("rb") as held:
        publisher.curator.withdraw(first, "other", "gone")
        wait_until(lambda: not (folder / "1").exists())
        assert held.read() == b"first"
    publisher.curator.withdraw(second, "other", "gone")
    wait_until(lambda: not folder.exists())
    assert (release / "README.md").read_bytes() == FILES["README.md"]
