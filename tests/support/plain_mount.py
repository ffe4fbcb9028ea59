"""Real mounts of plain folders for tests: run as a module it is the daemon, ``PlainMount`` drives it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mountd import control
from mountd.interfaces import MountConfig
from mountd.kernel.mounting import mounted_at, unmount
from tests.support.shared_data import ROOT


class PlainMount:
    """A folder mounted through the real supervisor and worker; unmounted and ended when the block is left."""

    def __init__(self, base: Path, source: Path, *, passthrough: bool = True, resend: bool = True) -> None:
        self.source = source
        self.mountpoint = base / "mnt"
        self.cache = base / "cache"
        self.marks = base / "marks"
        for folder in (self.mountpoint, self.cache, self.marks):
            folder.mkdir(parents=True, exist_ok=True)
        self._options = {"passthrough": passthrough, "resend": resend}

    def __enter__(self) -> PlainMount:
        options = {name: str(getattr(self, name)) for name in ("source", "mountpoint", "cache", "marks")}
        self.log = (self.cache / "stderr.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.plain_mount", json.dumps({**options, **self._options})],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line or "error" in json.loads(line):
            self.__exit__()
            raise RuntimeError(f"no mount: {line!r} {(self.cache / 'stderr.log').read_text()}")
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=15)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if mounted_at(self.mountpoint) is not None:
            unmount(self.mountpoint, lazy=True)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()

    def status(self) -> dict[str, Any]:
        return control.ask(self.mountpoint, "status")

    def wait_for_worker(self, other_than: int | None = None) -> int:
        """The pid of a living worker that is not ``other_than``."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            pid = self.status()["worker_pid"]
            if pid is not None and pid != other_than:
                return int(pid)
            time.sleep(0.02)
        raise AssertionError("no new worker")

    def kill_worker(self) -> int | None:
        """SIGKILL the present worker; its pid."""
        pid = self.status()["worker_pid"]
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid


def _daemon(options: dict[str, Any]) -> int:
    import logging

    from mountd.supervisor import Supervisor
    from tests.support.plain_tree import PlainStack

    logging.basicConfig(level=logging.INFO, format="%(process)d %(levelname)s %(message)s")
    config = MountConfig(Path(options["mountpoint"]), Path(options["cache"]), 1 << 30, "http://127.0.0.1:1", None, None)
    os.chdir("/")
    return Supervisor(
        config,
        lambda config: PlainStack(Path(options["source"]), Path(options["marks"]), config),
        lambda told: print(json.dumps(told), flush=True),
        transport="kernel",
        passthrough=options["passthrough"],
        resend=options["resend"],
    ).run()


if __name__ == "__main__":
    sys.exit(_daemon(json.loads(sys.argv[1])))
