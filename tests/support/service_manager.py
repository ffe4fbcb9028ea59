"""A stand-in for systemd: hears what a service tells it, keeps its descriptors, and gives them to the next start."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

WATCHDOG_S = 0.6
_ABOVE = 100
"""Descriptors are passed under numbers above this, so that none is overwritten before it has been copied."""


class StandInManager:
    """A notify socket in ``folder``. ``said`` holds every message as its lines; ``kept`` the descriptors by name."""

    def __init__(self, folder: Path) -> None:
        self._address = folder / "notify"
        self.said: list[list[str]] = []
        self.kept: dict[str, int] = {}

    def __enter__(self) -> StandInManager:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._address))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.connect(str(self._address))
            last.send(b"END")
        self._thread.join()
        self._socket.close()
        for descriptor in self.kept.values():
            os.close(descriptor)

    def _listen(self) -> None:
        while True:
            body, descriptors, _, _ = socket.recv_fds(self._socket, 4096, 8)
            if body == b"END":
                return
            lines = body.decode().splitlines()
            name = next((line.removeprefix("FDNAME=") for line in lines if line.startswith("FDNAME=")), "")
            if "FDSTORE=1" in lines:
                assert len(descriptors) == 1
                assert name not in self.kept
                self.kept[name] = descriptors[0]
            elif "FDSTOREREMOVE=1" in lines:
                os.close(self.kept.pop(name))
            self.said.append(lines)

    def count(self, line: str) -> int:
        """How often it was told this line."""
        return sum(line in lines for lines in self.said)

    def start(
        self, command: Sequence[str], environ: dict[str, str]
    ) -> tuple[list[str], dict[str, str], tuple[int, ...]]:
        """Command, environment and descriptors to pass so that ``command`` starts as a service, its kept descriptors
        from 3 on (sd_listen_fds(3))."""
        told = {**environ, "NOTIFY_SOCKET": str(self._address), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        told["LISTEN_FDS"] = str(len(self.kept))
        told["LISTEN_FDNAMES"] = ":".join(self.kept)
        self._passed = [fcntl.fcntl(kept, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for kept in self.kept.values()]
        moves = " ".join(f"{number}<&{passed} {passed}<&-" for number, passed in enumerate(self._passed, start=3))
        script = f'exec {moves}; export LISTEN_PID=$$; exec "$@"'
        return ["bash", "-c", script, "service", *command], told, tuple(self._passed)

    def started(self) -> None:
        """Close what was passed on."""
        for descriptor in self._passed:
            os.close(descriptor)
