"""Bind mounts of trees over releases: found in the mount table, made and undone through the mounter process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

STAGE = ".stage"
"""Folder below ``<cache>/trees`` where a bind mount gets its flags."""
_END_WITHIN_S = 1.0


class MounterGone(Exception):
    """The mounter process has ended, or was ended."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A tree ``tree`` (its name) that is mounted on ``target``."""

    target: Path
    tree: str


def binds_below(mountpoint: Path, trees: Path, mountinfo: str | None = None) -> list[Bind]:
    """Folders of ``trees`` that are mounted below ``mountpoint`` in this mount namespace (proc_pid_mountinfo(5)).

    A tree that was removed under its bind mount is found too.
    """
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    found = []
    for line in text.splitlines():
        fields = line.split(" ", 6)
        inside, target = _plain(fields[3]), Path(_plain(fields[4]))
        if mountpoint in target.parents:
            # The root of a bind mount counts from its own file system's root, so only its end can be compared.
            folder, _, name = inside.removesuffix("//deleted").rpartition("/")
            if str(trees).endswith(folder):
                found.append(Bind(target, name.removeprefix(".old-")))
    return found


def _plain(text: str) -> str:
    """A field of mountinfo: space, tab, newline and backslash are written in octal."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in text else text


class Mounter:
    """The mounter process of one mount, started at the first order. For one thread, but :meth:`close` is for any."""

    def __init__(self, mountpoint: Path, trees: Path) -> None:
        self._arguments = [str(mountpoint), str(trees / STAGE)]
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def wait(self) -> str:
        """Wait until the mount is served; an error in words, or an empty text."""
        return self._order(do="wait")

    def bind(self, tree: Path, target: Path) -> str:
        """Mount ``tree`` over ``target``, read-only; an error in words, or an empty text."""
        return self._order(do="bind", source=str(tree), target=str(target))

    def unbind(self, target: Path) -> str:
        """Unmount what is mounted on ``target`` in this mount namespace."""
        return self._order(do="unbind", target=str(target))

    def look(self, target: Path) -> str:
        """Let the kernel look up ``target``."""
        return self._order(do="look", target=str(target))

    def _order(self, **order: str) -> str:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError) as error:
            self._bury(process)
            raise MounterGone(str(error)) from error
        if not line:
            self._bury(process)
            raise MounterGone("it was killed, or closed")
        return str(json.loads(line)["error"])

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise MounterGone("closed")
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "mountd.materialise.mounter", *self._arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
            return self._process

    def close(self) -> None:
        """End the process: at once when it has nothing to do, else when the daemon or the kernel has answered it."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.terminate()
            self._bury(process)

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_WITHIN_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
