"""Real mounts of plain folders for tests: run as a module it is the daemon, ``PlainMount`` drives it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mountd import control
from mountd.interfaces import MountConfig
from mountd.kernel.mounting import mounted_at, unmount
from mountd.options import Options
from tests.support.service_manager import StandInManager
from tests.support.shared_data import ROOT

START_S = 60.0


class PlainMount:
    """A folder mounted through the real supervisor and worker; unmounted and ended when the block is left."""

    def __init__(
        self,
        base: Path,
        source: Path,
        *,
        passthrough: bool = True,
        resend: bool = True,
        cache: Path | None = None,
        memory_bytes: int = 1 << 30,
        hung_after_s: float = 60.0,
        files: int = 0,
        metrics: str = "",
    ) -> None:
        self.source = source
        self.mountpoint = base / "mnt"
        self.cache = cache or base / "cache"
        self.marks = base / "marks"
        for folder in (self.mountpoint, self.cache, self.marks):
            folder.mkdir(parents=True, exist_ok=True)
        self.state: dict[str, Any] = {}
        self._manager: StandInManager | None = None
        self._options: dict[str, Any] = {
            "passthrough": passthrough,
            "resend": resend,
            "memory_bytes": memory_bytes,
            "hung_after_s": hung_after_s,
            "files": files,
            "metrics": metrics,
        }

    def as_user(self, uid: int) -> PlainMount:
        """Let the daemon run as ``uid``: it mounts through fusermount3, and its socket lies in ``base/run``."""
        run = self.mountpoint.parent / "run"
        run.mkdir()
        for folder in (self.mountpoint, self.cache, self.marks, run):
            os.chown(folder, uid, uid)
        self._options["uid"] = uid
        self._options["run"] = str(run)
        return self

    def under(self, manager: StandInManager) -> PlainMount:
        """Let the daemon be a service of ``manager``."""
        self._manager = manager
        return self

    def __enter__(self) -> PlainMount:
        options = {name: str(getattr(self, name)) for name in ("source", "mountpoint", "cache", "marks")}
        self.log = (self.cache / "stderr.log").open("a")
        command = [sys.executable, "-m", "tests.support.plain_mount", json.dumps({**options, **self._options})]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": self._options.get("run", "/run")}
        passed: tuple[int, ...] = ()
        if self._manager is not None:
            command, environ, passed = self._manager.start(command, environ)
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            pass_fds=passed,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        if self._manager is not None:
            self._manager.started()
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if ready else b""
        self.state = json.loads(line) if line else {}
        if not self.state or "error" in self.state:
            self.__exit__()
            raise RuntimeError(f"no mount: {line!r} {self.said()}")
        return self

    def said(self) -> str:
        """What the daemon has logged."""
        return (self.cache / "stderr.log").read_text()

    def start_again(self) -> None:
        """Start another daemon after the end of the first, which left the mount to its manager."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        self.__enter__()

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
    import resource

    from mountd import handover, supervisor
    from mountd.shared_state import LAYOUT
    from mountd.systemd import ServiceManager
    from tests.support.plain_tree import PlainStack

    if handover.CHECK_FLAG in sys.argv:
        print(LAYOUT)
        return 0
    logging.basicConfig(level=logging.INFO, format="%(process)d %(levelname)s %(message)s")
    if "uid" in options:  # only now: the interpreter's own files may be closed to that user
        import logging.handlers

        os.setgroups([])
        os.setgid(options["uid"])
        os.setuid(options["uid"])
    config = MountConfig(
        Path(options["mountpoint"]),
        Path(options["cache"]),
        1 << 30,
        "http://127.0.0.1:1",
        None,
        None,
        Options(memory_bytes=options["memory_bytes"], metrics=options["metrics"]),
    )
    os.chdir("/")
    supervisor.HUNG_AFTER_S = options["hung_after_s"]
    if options["files"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (options["files"], options["files"]))
    return supervisor.Supervisor(
        config,
        lambda config: PlainStack(Path(options["source"]), Path(options["marks"]), config),
        lambda told: print(json.dumps(told), flush=True),
        transport="kernel",
        passthrough=options["passthrough"],
        resend=options["resend"],
        held=handover.adopt(os.environ),
        program=handover.Program(("-m", "tests.support.plain_mount", json.dumps(options)), b""),
        manager=ServiceManager.from_environment(os.environ),
    ).run()


if __name__ == "__main__":
    sys.exit(_daemon(json.loads(sys.argv[1])))
