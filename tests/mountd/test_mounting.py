"""Mounting in awkward places: overlay caches, without root, stale and occupied folders."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mountd.kernel.holders import holders_of
from mountd.kernel.mounting import (
    MountError,
    canonical,
    mounted_at,
    prepare,
    refuse_nesting,
    unmount,
)
from openshelf.errors import UsageError
from tests.support.plain_mount import PlainMount

NOBODY = 65534


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "file").write_bytes(b"0123456789" * 10_000)
    return folder


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """A folder on overlayfs, as in a container without a volume for the cache."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    layers = ",".join(f"{kind}dir={tmp_path / kind}" for kind in ("lower", "upper", "work"))
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(tmp_path / "merged")], check=True)
    yield tmp_path / "merged"
    subprocess.run(["umount", "-l", str(tmp_path / "merged")], check=True)


def test_a_cache_on_overlayfs_is_warned_of_once_and_served(tmp_path: Path, source: Path, overlay: Path) -> None:
    cache = overlay / "cache"
    with PlainMount(tmp_path / "m", source, cache=cache) as mount:
        assert mount.state["passthrough"] is False
        assert "overlayfs" in mount.state["passthrough_reason"]
        for _ in range(3):
            assert (mount.mountpoint / "file").read_bytes() == b"0123456789" * 10_000
        assert mount.status()["opens_served"] == 3
        assert mount.said().count("stacked file system") == 1


@pytest.fixture
def device_for_all() -> Iterator[None]:
    """``/dev/fuse`` as udev makes it, open to all users; a container may have it for root alone."""
    device = Path("/dev/fuse")
    before = device.stat().st_mode & 0o777
    device.chmod(0o666)
    yield
    device.chmod(before)


@pytest.mark.usefixtures("device_for_all")
def test_without_root_it_mounts_through_fusermount_and_serves() -> None:
    # Not in pytest's own folder, which is closed to other users.
    base = Path(tempfile.mkdtemp(prefix="openshelf-user-"))
    base.chmod(0o755)
    source = base / "source"
    source.mkdir()
    (source / "file").write_bytes(b"0123456789" * 10_000)
    with PlainMount(base, source).as_user(NOBODY) as mount:
        assert mount.state["transport"] == "kernel"
        assert mount.state["passthrough"] is False
        assert "CAP_SYS_ADMIN" in mount.state["passthrough_reason"]
        read = subprocess.run(
            [
                "setpriv",
                f"--reuid={NOBODY}",
                f"--regid={NOBODY}",
                "--clear-groups",
                "cat",
                str(mount.mountpoint / "file"),
            ],
            capture_output=True,
            check=True,
        )
        assert read.stdout == b"0123456789" * 10_000
        folder = mount.mountpoint
    assert mounted_at(folder) is None
    shutil.rmtree(base)


def test_a_dead_mount_is_cleared_and_its_path_found_without_touching_it(tmp_path: Path) -> None:
    folder = tmp_path / "dead"
    folder.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"openshelf", str(folder).encode(), b"fuse.openshelf", ctypes.c_ulong(1), options.encode()) == 0
    try:
        # INIT is never answered: any request would hang; finding the path must not send one.
        assert canonical(folder) == folder
        link = tmp_path / "link"
        link.symlink_to(tmp_path)
        assert canonical(link / "dead") == folder
        assert holders_of(folder) == []
        os.close(device)
        assert mounted_at(folder) is not None
        prepare(folder)
        assert mounted_at(folder) is None
    finally:
        if mounted_at(folder) is not None:
            unmount(folder, lazy=True)


def test_names_with_spaces_and_chinese_are_found_in_mountinfo(tmp_path: Path, source: Path) -> None:
    base = tmp_path / "我的 数据\\x"
    with PlainMount(base, source) as mount:
        found = mounted_at(mount.mountpoint)
        assert found is not None
        assert (found.type, found.source) == ("fuse.openshelf", "openshelf")
        assert (mount.mountpoint / "file").stat().st_size == 100_000


def test_a_missing_folder_is_made_and_an_occupied_one_refused(tmp_path: Path) -> None:
    prepare(tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for path, expected in (
        (tmp_path / "full", "is not empty"),
        (tmp_path / "full" / "mine", "is not a folder"),
        (tmp_path / "absent" / "new", "does not exist"),
        (Path("/proc"), "is already mounted"),
    ):
        with pytest.raises(MountError, match=expected) as caught:
            prepare(path)
        assert "\n" not in caught.value.line()


@pytest.mark.parametrize(("mountpoint", "cache"), [("/a", "/a"), ("/a", "/a/b/c"), ("/a/b", "/a")])
def test_mount_and_cache_may_not_lie_one_inside_the_other(mountpoint: str, cache: str) -> None:
    with pytest.raises(UsageError, match="inside"):
        refuse_nesting(Path(mountpoint), Path(cache))
    refuse_nesting(Path("/a"), Path("/ab"))


def test_holders_are_named_by_open_file_folder_and_mapping(tmp_path: Path) -> None:
    (tmp_path / "held").write_bytes(b"x" * 10_000)
    with (tmp_path / "held").open("rb") as stdin:
        by_file = subprocess.Popen(["sleep", "30"], stdin=stdin)
    by_folder = subprocess.Popen(["sleep", "30"], cwd=tmp_path)
    try:
        found = {holder.pid: holder for holder in holders_of(tmp_path)}
        assert found[by_file.pid].path == str(tmp_path / "held")
        assert found[by_folder.pid].path == str(tmp_path)
        assert {found[by_file.pid].command, found[by_folder.pid].command} == {"sleep"}
        assert holders_of(tmp_path / "hel") == []
    finally:
        for process in (by_file, by_folder):
            process.kill()
            process.wait()
