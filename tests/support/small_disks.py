"""Disks of a few megabytes that can be filled, that lose what they hold, and that refuse to be written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openshelf.units import MIB


def _run(*command: str | Path) -> str:
    return subprocess.run([str(each) for each in command], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def memory_disk(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs with mount ``options`` such as ``size=16m`` or ``nr_inodes=100``."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", folder)
    try:
        yield folder
    finally:
        _run("umount", "--lazy", folder)


class FailingDisk:
    """An ext4 file system on a loop device over a file; ``folder`` is where it is mounted."""

    def __init__(self, folder: Path, image: Path, device: str) -> None:
        self.folder = folder
        self._image = image
        self._device = device

    def lose_content(self) -> None:
        """From now on all that reaches the device behind its first megabyte is an I/O error."""
        _run("sync", "-f", self.folder)
        os.truncate(self._image, 1 * MIB)
        with self._image.open("r+b") as image:
            os.posix_fallocate(image.fileno(), 0, 1 * MIB)
        _run("mount", "-o", "remount,size=1m", self._image.parent)  # full: no write makes the file longer again,
        os.truncate(self._image, 1 * MIB)  # as one between the two may have done: holes would be read as zeros
        Path("/proc/sys/vm/drop_caches").write_text("1")

    def refuse_writes(self) -> None:
        """From now on the file system is read-only (EROFS), as after an error on a failing disk."""
        (Path("/sys/fs/ext4") / self._device / "trigger_fs_error").write_text("as a failing disk would")


@contextmanager
def failing_disk(folder: Path, size_bytes: int = 64 * MIB) -> Iterator[FailingDisk]:
    """A disk that works until it is told to fail."""
    folder.mkdir()
    with memory_disk(folder.with_name(folder.name + ".image"), f"size={size_bytes + MIB}") as below:
        image = below / "image"
        with image.open("wb") as sink:
            sink.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-O", "^has_journal", "-N", "2048", image)
        yield from _mounted(folder, image)


def _mounted(folder: Path, image: Path) -> Iterator[FailingDisk]:
    loop = _run("losetup", "--find", "--show", image)
    try:
        _run("mount", "-o", "errors=remount-ro", loop, folder)
        folder.chmod(0o700)
        try:
            yield FailingDisk(folder, image, Path(loop).name)
        finally:
            _run("umount", "--lazy", folder)
    finally:
        _run("losetup", "--detach", loop)
