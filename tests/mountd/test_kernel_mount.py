"""The kernel transport on real mounts: names, bytes, locks, mappings, and the right errno for everything else."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import mmap
import os
import random
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.plain_mount import PlainMount

PATTERN_BYTES = 24 << 20


@functools.cache
def pattern(size: int) -> bytes:
    """Bytes that differ at every position in a way no shifted or repeated block can match."""
    return random.Random(size).randbytes(size)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "large.bin").write_bytes(pattern(PATTERN_BYTES))
    (folder / "empty").write_bytes(b"")
    (folder / "odd").write_bytes(pattern(12_345))
    release = folder / "release"
    release.mkdir()
    (release / "对话.jsonl").write_text("你好\n", encoding="utf-8")
    (release / ("n" * 255)).write_bytes(b"long name")
    (folder / "latest").symlink_to("release")
    many = folder / "many"
    many.mkdir()
    for number in range(3000):
        (many / f"file-{number:05d}").write_bytes(b"")
    os.utime(folder / "odd", ns=(1_500_000_000_123_456_789, 1_500_000_000_123_456_789))
    return folder


@pytest.fixture(scope="module")
def mounted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainMount]:
    with PlainMount(tmp_path_factory.mktemp("passthrough"), source) as mount:
        yield mount


@pytest.fixture(scope="module")
def served(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainMount]:
    with PlainMount(tmp_path_factory.mktemp("served"), source, passthrough=False) as mount:
        yield mount


@pytest.fixture(params=["mounted", "served"])
def either(request: pytest.FixtureRequest) -> PlainMount:
    mount = request.getfixturevalue(request.param)
    assert isinstance(mount, PlainMount)
    return mount


def read_byte(path: Path) -> bytes:
    """The first byte of whatever ``path`` is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def drop_cache(path: Path) -> None:
    """Let the kernel forget the cached pages of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_a_sealed_file_is_read_without_the_daemon(mounted: PlainMount) -> None:
    before = mounted.status()
    assert before["passthrough"] is True
    assert (mounted.mountpoint / "large.bin").read_bytes() == pattern(PATTERN_BYTES)
    after = mounted.status()
    assert after["opens_passthrough"] == before["opens_passthrough"] + 1
    assert after["reads_served"] == before["reads_served"]
    assert after["bytes_served"] == before["bytes_served"]


def test_with_passthrough_off_the_daemon_serves_right_bytes(served: PlainMount) -> None:
    assert served.status()["passthrough"] is False
    path = served.mountpoint / "large.bin"
    drop_cache(path)
    before = served.status()
    assert path.read_bytes() == pattern(PATTERN_BYTES)
    after = served.status()
    assert after["opens_passthrough"] == 0
    assert after["bytes_served"] - before["bytes_served"] == PATTERN_BYTES
    requests = after["reads_served"] - before["reads_served"]
    assert requests <= PATTERN_BYTES / (3 << 17), "requests should come close to 512 KiB each, or be larger"


def test_a_file_read_twice_is_asked_for_once(served: PlainMount) -> None:
    path = served.mountpoint / "odd"
    path.read_bytes()
    before = served.status()["reads_served"]
    assert path.read_bytes() == pattern(12_345)
    assert served.status()["reads_served"] == before


def test_reads_at_any_position_are_right(either: PlainMount) -> None:
    whole = pattern(PATTERN_BYTES)
    path = either.mountpoint / "large.bin"
    drop_cache(path)
    chance = random.Random(3)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for _ in range(200):
            offset = chance.randrange(PATTERN_BYTES + 1000)
            length = chance.choice([1, 100, 4096, 70_000, 1 << 20, 3 << 20])
            assert os.pread(descriptor, length, offset) == whole[offset : offset + length]
    finally:
        os.close(descriptor)


def test_an_empty_file_and_the_end_of_a_file_read_as_nothing(either: PlainMount) -> None:
    assert (either.mountpoint / "empty").read_bytes() == b""
    with (either.mountpoint / "odd").open("rb") as stream:
        stream.seek(12_345)
        assert stream.read() == b""


def test_a_mapped_file_shows_its_bytes(either: PlainMount) -> None:
    whole = pattern(PATTERN_BYTES)
    with (either.mountpoint / "large.bin").open("rb") as stream:
        for access in (mmap.ACCESS_READ, mmap.ACCESS_COPY):
            with mmap.mmap(stream.fileno(), 0, access=access) as mapping:
                assert len(mapping) == PATTERN_BYTES
                assert mapping[5_000_001:5_000_101] == whole[5_000_001:5_000_101]
                assert hashlib.sha256(mapping).digest() == hashlib.sha256(whole).digest()


def test_o_direct_sendfile_and_copy_file_range_read_right(either: PlainMount, tmp_path: Path) -> None:
    whole = pattern(PATTERN_BYTES)
    path = either.mountpoint / "large.bin"
    direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 20)
    try:
        assert os.preadv(direct, [buffer], 4 << 20) == 1 << 20
        assert bytes(buffer) == whole[4 << 20 : 5 << 20]
    finally:
        os.close(direct)
        buffer.close()
    plain = os.open(path, os.O_RDONLY)
    copy = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    try:
        sent = 0
        while sent < PATTERN_BYTES:
            sent += os.sendfile(copy, plain, sent, PATTERN_BYTES - sent)
        assert (tmp_path / "copy").read_bytes() == whole
    finally:
        os.close(plain)
        os.close(copy)


def test_a_forked_child_reads_on_with_its_parents_descriptor(either: PlainMount) -> None:
    descriptor = os.open(either.mountpoint / "large.bin", os.O_RDONLY)
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            offset = number * 1_000_003
            ok = os.pread(descriptor, 50_000, offset) == pattern(PATTERN_BYTES)[offset : offset + 50_000]
            os._exit(0 if ok else 1)
        children.append(pid)
    os.close(descriptor)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0, 0]


def test_stat_shows_true_size_time_mode_and_owner(mounted: PlainMount) -> None:
    status = (mounted.mountpoint / "odd").stat()
    assert status.st_size == 12_345
    assert status.st_mtime_ns == 1_500_000_000_123_456_789
    assert stat.S_IMODE(status.st_mode) == 0o444
    assert (status.st_uid, status.st_gid) == (0, 0)
    assert stat.S_IMODE((mounted.mountpoint / "release").stat().st_mode) == 0o555


def test_names_in_any_script_and_of_full_length_are_found(mounted: PlainMount) -> None:
    release = mounted.mountpoint / "release"
    assert sorted(os.listdir(release)) == sorted(["对话.jsonl", "n" * 255])
    assert (release / "对话.jsonl").read_text("utf-8") == "你好\n"
    assert (release / ("n" * 255)).read_bytes() == b"long name"
    with pytest.raises(OSError) as caught:
        (release / ("n" * 256)).stat()
    assert caught.value.errno == errno.ENAMETOOLONG


def test_a_link_leads_to_its_target(mounted: PlainMount) -> None:
    assert os.readlink(mounted.mountpoint / "latest") == "release"
    assert (mounted.mountpoint / "latest" / "对话.jsonl").exists()
    assert os.path.realpath(mounted.mountpoint / "latest") == str(mounted.mountpoint / "release")


def test_a_missing_name_is_asked_for_once(mounted: PlainMount) -> None:
    missing = mounted.mountpoint / "release" / "missing.json"
    assert not missing.exists()
    before = mounted.status()["lookups"]
    for _ in range(50):
        assert not missing.exists()
    assert mounted.status()["lookups"] == before


def test_a_large_folder_lists_whole_with_sizes_and_twice(mounted: PlainMount) -> None:
    folder = mounted.mountpoint / "many"
    names = [f"file-{number:05d}" for number in range(3000)]
    for _ in range(2):
        assert sorted(os.listdir(folder)) == names
        assert all(entry.stat().st_size == 0 and entry.is_file() for entry in os.scandir(folder))
    listed = subprocess.run(["ls", "-la", str(folder)], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 3000 + 3


def test_a_folder_of_thirty_thousand_names_lists_whole(tmp_path: Path) -> None:
    source = tmp_path / "source" / "images"
    source.mkdir(parents=True)
    names = [f"{number:06d}.jpg" for number in range(30_000)]
    for name in names:
        os.close(os.open(source / name, os.O_CREAT | os.O_WRONLY))
    with PlainMount(tmp_path, source.parent) as mount:
        started = time.monotonic()
        assert sorted(os.listdir(mount.mountpoint / "images")) == names
        assert time.monotonic() - started < 20  # generous: other tests may be running
        before = mount.status()["requests"]
        assert len(os.listdir(mount.mountpoint / "images")) == 30_000
        assert mount.status()["requests"] - before < 20, "the kernel keeps the listing"


def test_seeking_to_data_and_holes_finds_none(mounted: PlainMount) -> None:
    descriptor = os.open(mounted.mountpoint / "odd", os.O_RDONLY)
    try:
        assert os.lseek(descriptor, 100, os.SEEK_DATA) == 100
        assert os.lseek(descriptor, 100, os.SEEK_HOLE) == 12_345
        with pytest.raises(OSError) as caught:
            os.lseek(descriptor, 12_345, os.SEEK_DATA)
        assert caught.value.errno == errno.ENXIO
    finally:
        os.close(descriptor)


def test_df_is_honest(mounted: PlainMount) -> None:
    figures = os.statvfs(mounted.mountpoint)
    used = figures.f_blocks * figures.f_frsize
    expected = PATTERN_BYTES + 12_345 + len("你好\n".encode()) + len("long name")
    assert expected <= used < expected + figures.f_frsize
    assert figures.f_bavail == figures.f_bfree == 0
    assert figures.f_files == 5 + 3000
    assert figures.f_flag & os.ST_RDONLY


def test_flock_and_fcntl_locks_work_as_on_any_disk(either: PlainMount) -> None:
    path = either.mountpoint / "odd"
    with path.open("rb") as first, path.open("rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(first, fcntl.LOCK_UN)
        fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(first, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _create(path: Path) -> object:
    return os.open(path / "new", os.O_CREAT | os.O_WRONLY)


WRITES: dict[str, Callable[[Path], object]] = {
    "create": _create,
    "open for writing": lambda root: os.open(root / "odd", os.O_WRONLY),
    "open for both": lambda root: os.open(root / "odd", os.O_RDWR),
    "truncate on open": lambda root: os.open(root / "odd", os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda root: os.truncate(root / "odd", 0),
    "mkdir": lambda root: os.mkdir(root / "new"),
    "mknod": lambda root: os.mknod(root / "new"),
    "unlink": lambda root: os.unlink(root / "odd"),
    "rmdir": lambda root: os.rmdir(root / "release"),
    "rename": lambda root: os.rename(root / "odd", root / "even"),
    "link": lambda root: os.link(root / "odd", root / "even"),
    "symlink": lambda root: os.symlink("odd", root / "even"),
    "chmod": lambda root: os.chmod(root / "odd", 0o600),
    "chown": lambda root: os.chown(root / "odd", 1, 1),
    "utime": lambda root: os.utime(root / "odd"),
    "setxattr": lambda root: os.setxattr(root / "odd", "user.mine", b"1"),
    "removexattr": lambda root: os.removexattr(root / "odd", "user.mine"),
    "tmpfile": lambda root: os.open(root, os.O_TMPFILE | os.O_WRONLY),
}


@pytest.mark.parametrize("name", WRITES)
def test_every_write_says_read_only_file_system(mounted: PlainMount, name: str) -> None:
    with pytest.raises(OSError) as caught:
        WRITES[name](mounted.mountpoint)
    assert caught.value.errno == errno.EROFS


def test_other_requests_get_the_errno_a_disk_gives(mounted: PlainMount) -> None:
    odd = mounted.mountpoint / "odd"
    with odd.open("rb") as stream:
        with pytest.raises(OSError) as caught:
            fcntl.ioctl(stream, 0x5401)  # TCGETS
        assert caught.value.errno == errno.ENOTTY
        os.fsync(stream.fileno())
        with pytest.raises(OSError) as caught:
            os.write(stream.fileno(), b"x")
        assert caught.value.errno == errno.EBADF
    for call, expected in (
        (lambda: os.listdir(odd), errno.ENOTDIR),
        (lambda: (odd / "below").stat(), errno.ENOTDIR),
        (lambda: os.readlink(odd), errno.EINVAL),
        (lambda: read_byte(mounted.mountpoint / "release"), errno.EISDIR),
        (lambda: os.getxattr(odd, "user.unknown"), errno.ENODATA),
        (lambda: os.getxattr(odd, "system.posix_acl_access"), errno.EOPNOTSUPP),
        (lambda: (mounted.mountpoint / "absent").stat(), errno.ENOENT),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == expected
    assert os.listxattr(odd) == []
    assert os.access(odd, os.R_OK)
    assert not os.access(odd, os.W_OK)


def test_statx_answers_and_nothing_may_be_executed_as_another(mounted: PlainMount) -> None:
    done = subprocess.run(
        ["stat", "--printf=%s %F %u", str(mounted.mountpoint / "odd")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "12345 regular file 0"
    options = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(mounted.mountpoint) in line]
    source, _, kind, flags, *_ = options[0].split()
    assert (source, kind) == ("openshelf", "fuse.openshelf")
    assert {"ro", "nosuid", "nodev", "allow_other", "default_permissions"} <= set(flags.split(","))


def test_a_withdrawn_name_goes_at_once_although_the_kernel_had_it(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source) as mount:
        held = (mount.mountpoint / "odd").open("rb")
        assert "odd" in os.listdir(mount.mountpoint)
        (mount.marks / "hide").write_text("odd")
        deadline = time.monotonic() + 5
        while (mount.mountpoint / "odd").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not (mount.mountpoint / "odd").exists()
        assert "odd" not in os.listdir(mount.mountpoint)
        with held:
            assert held.read() == pattern(12_345)


def test_a_file_sealed_while_open_never_fails_and_then_bypasses_the_daemon(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source) as mount:
        path = mount.mountpoint / "large.bin"
        mark = mount.marks / "large.bin.partial"
        mark.touch()
        whole = pattern(PATTERN_BYTES)
        old = path.open("rb")
        ino = path.stat().st_ino
        assert old.read(100) == whole[:100]
        assert mount.status()["opens_passthrough"] == 0
        mark.unlink()
        deadline = time.monotonic() + 5
        while mount.status()["opens_passthrough"] == 0 and time.monotonic() < deadline:
            with path.open("rb") as again:
                assert again.read(100) == whole[:100]
        assert mount.status()["opens_passthrough"] > 0
        with path.open("rb") as fresh, old:
            before = mount.status()["reads_served"]
            assert fresh.read() == whole
            assert mount.status()["reads_served"] == before
            assert os.fstat(fresh.fileno()).st_ino == ino
            assert old.read() == whole[100:]
            pid = mount.kill_worker()
            mount.wait_for_worker(pid)
            with path.open("rb") as later:
                assert later.read() == whole
        assert mount.status()["read_errors"] == 0


def test_a_read_that_cannot_be_answered_is_an_input_output_error(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source, passthrough=False) as mount:
        (mount.marks / "odd.fails").touch()
        with pytest.raises(OSError) as caught:
            (mount.mountpoint / "odd").read_bytes()
        assert caught.value.errno == errno.EIO
        (mount.marks / "odd.fails").unlink()
        assert (mount.mountpoint / "odd").read_bytes() == pattern(12_345)
        assert mount.status()["read_errors"] >= 1


def test_slow_reads_do_not_hold_up_names_and_a_killed_reader_ends_at_once(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source, passthrough=False) as mount:
        (mount.marks / "large.bin.slow").touch()
        readers = [
            subprocess.Popen(
                ["dd", f"if={mount.mountpoint / 'large.bin'}", "of=/dev/null", "bs=1M", f"skip={n}", "iflag=direct"],
                stderr=subprocess.DEVNULL,
            )
            for n in range(12)
        ]
        try:
            deadline = time.monotonic() + 10
            while mount.status()["reads_served"] < 12 and time.monotonic() < deadline:
                time.sleep(0.05)
            started = time.monotonic()
            assert (mount.mountpoint / "release" / "对话.jsonl").read_text("utf-8") == "你好\n"
            assert time.monotonic() - started < 2
        finally:
            started = time.monotonic()
            for reader in readers:
                reader.kill()
            for reader in readers:
                reader.wait(timeout=5)
            took = time.monotonic() - started
            (mount.marks / "large.bin.slow").unlink()
        assert took < 2


def test_nothing_stays_open_in_the_kernel_after_the_last_close(source: Path, tmp_path: Path) -> None:
    with PlainMount(tmp_path, source) as mount:
        files = [(mount.mountpoint / "large.bin").open("rb") for _ in range(20)]
        for _ in range(3):
            mount.wait_for_worker(mount.kill_worker())
            files += [(mount.mountpoint / "large.bin").open("rb") for _ in range(20)]
        for file in files:
            assert file.read(10) == pattern(PATTERN_BYTES)[:10]
            file.close()
        deadline = time.monotonic() + 5
        while mount.status()["open_files"] and time.monotonic() < deadline:
            time.sleep(0.1)
        assert mount.status()["open_files"] == 0


def test_the_mount_is_marked_for_one_mebibyte_of_read_ahead(mounted: PlainMount) -> None:
    device = os.stat(mounted.mountpoint).st_dev
    path = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    assert path.read_text().strip() == "1024"


def test_madvise_and_posix_fadvise_are_taken(mounted: PlainMount) -> None:
    with (mounted.mountpoint / "large.bin").open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        assert ctypes.CDLL(None).readahead(stream.fileno(), ctypes.c_long(0), ctypes.c_size_t(1 << 20)) == 0
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            mapping.madvise(mmap.MADV_SEQUENTIAL)
            assert mapping[:16] == pattern(PATTERN_BYTES)[:16]
