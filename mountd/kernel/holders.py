"""Who keeps a mount busy: open files, working directories, programs and mappings below a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that uses something below the mount."""

    pid: int
    command: str
    path: str
    """One of the paths it holds."""

    def __str__(self) -> str:
        return f"{self.command} (pid {self.pid}: {self.path})"


def holders_of(mountpoint: Path) -> list[Holder]:
    """Every process seen in ``/proc`` that holds something below ``mountpoint``, by pid.

    Only links and maps of ``/proc`` are read: no request reaches the file system itself. Processes of other users are
    seen by root only.
    """
    prefix = str(mountpoint)
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        path = _held_path(entry, prefix)
        if path is not None:
            found.append(Holder(int(entry.name), _command(entry), path))
    return sorted(found, key=lambda holder: holder.pid)


def _inside(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


def _held_path(process: Path, prefix: str) -> str | None:
    try:
        links = [process / "cwd", process / "root", process / "exe", *(process / "fd").iterdir()]
    except OSError:
        return None  # it ended, or belongs to another user
    for link in links:
        try:
            target = str(link.readlink())
        except OSError:
            continue  # closed in the meantime, or a kernel thread
        if _inside(target, prefix):
            return target
    try:
        with (process / "maps").open("rb") as stream:
            for line in stream:
                path = os.fsdecode(line.rstrip(b"\n")).split(None, 5)[-1]
                if _inside(path, prefix):
                    return path
    except OSError:
        return None
    return None


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "?"
