"""Who still holds files of a release: open, or mapped. No request reaches the mount: only /proc is read.

A file is known by the mount that it was opened through and its inode number (``mnt_id`` and ``ino`` of
``/proc/<pid>/fdinfo/<fd>``, Linux 5.14; device and inode of ``/proc/<pid>/maps``), so that it is found in every mount
namespace and under every name. Processes outside of our pid namespace cannot be seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")

IsHeld = Callable[[int], bool]
"""Whether an inode number of the mount is one of the files that are asked for."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and how many of the files it holds."""

    pid: int
    uid: int
    files: frozenset[int]
    """Inode numbers."""


def device_of(mountpoint: Path) -> str | None:
    """``major:minor`` of what is mounted at ``mountpoint`` (the topmost), as mountinfo writes it."""
    found = None
    for fields in _mountinfo(_PROC / "self/mountinfo"):
        if fields[4].encode().decode("unicode_escape") == str(mountpoint):
            found = fields[2]
    return found


def holders(device: str, is_held: IsHeld, loose: Mapping[int, int] | None = None) -> list[Holder]:
    """Every process with files open or mapped on the file system ``device`` for whose inodes ``is_held`` is true.

    ``loose`` are files of another file system that were shown through the mount (a materialised release): their inode
    numbers there, and what they count as. They are found also where their mount has been taken away.
    """
    scan = _Scan(device, is_held, dict(loose or {}))
    found = []
    for process in _PROC.iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            files = frozenset(scan.files_of(process))
            if files:
                found.append(Holder(int(process.name), _uid(process), files))
    return sorted(found, key=lambda holder: holder.pid)


class _Scan:
    """One look at all processes."""

    def __init__(self, device: str, is_held: IsHeld, loose: dict[int, int]) -> None:
        self._device = device
        self._is_held = is_held
        self._loose = loose
        self._mounts: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    def files_of(self, process: Path) -> Iterator[int]:
        """The files that a process holds; nothing when it ended or may not be looked at."""
        try:
            ours, attached = self._mounts_of(process)
            descriptors = list((process / "fdinfo").iterdir())
        except OSError:
            return
        for descriptor in descriptors:
            mount, inode = _file_of(descriptor)
            if mount in ours:
                if self._is_held(inode):
                    yield inode
            elif inode in self._loose and mount not in attached and _is_a_file(process / "fd" / descriptor.name):
                yield self._loose[inode]
        yield from self._mapped(process)

    def _mounts_of(self, process: Path) -> tuple[frozenset[str], frozenset[str]]:
        """Ids of the mounts of our file system in the process's mount namespace, and of all mounts there."""
        namespace = str((process / "ns/mnt").readlink())
        if namespace not in self._mounts:
            ids = [(fields[0], fields[2]) for fields in _mountinfo(process / "mountinfo")]
            ours = frozenset(number for number, device in ids if device == self._device)
            self._mounts[namespace] = ours, frozenset(number for number, _ in ids)
        return self._mounts[namespace]

    def _mapped(self, process: Path) -> Iterator[int]:
        major, _, minor = self._device.partition(":")
        device = f"{int(major):02x}:{int(minor):02x}".encode()
        try:
            with (process / "maps").open("rb") as stream:
                for line in stream:
                    fields = line.split(None, 5)
                    inode = int(fields[4])
                    if fields[3] == device and self._is_held(inode):
                        yield inode
        except OSError:
            return


def _mountinfo(path: Path) -> Iterable[list[str]]:
    with path.open(encoding="utf-8", errors="surrogateescape") as stream:
        return [line.split() for line in stream]


def _file_of(path: Path) -> tuple[str, int]:
    """Mount id and inode number of an open file; empty and -1 when it was closed meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            lines = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
    except OSError:
        return "", -1
    mount, inode = "", -1
    for line in lines.splitlines():
        if line.startswith(b"mnt_id:"):
            mount = line[7:].strip().decode()
        elif line.startswith(b"ino:"):
            inode = int(line[4:])
            break
    return mount, inode


def _is_a_file(link: Path) -> bool:
    """Whether a descriptor is of a named file (pipes and sockets have numbers of their own, and no mount either)."""
    try:
        return str(link.readlink()).startswith("/")
    except OSError:
        return False


def _uid(process: Path) -> int:
    try:
        return process.stat().st_uid
    except OSError:
        return 0
