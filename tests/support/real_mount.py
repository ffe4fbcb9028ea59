"""A mount as ``openshelf mount`` makes it, for tests."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

OPENSHELF = str(Path(sys.executable).with_name("openshelf"))
ENDS_WITHIN_S = 20.0
"""Files that are still open are served a little longer than the mount is there."""


class RealMount:
    """The catalog at ``url`` mounted at ``base/public`` with the cache ``base/cache``, until the block is left.

    ``network`` names the network namespace that the node is in.
    """

    def __init__(
        self,
        base: Path,
        url: str,
        token: str,
        *,
        transport: str = "auto",
        size: str = "10G",
        network: str = "",
        **env: str,
    ) -> None:
        self.url, self.token = url, token
        self.mountpoint = base / "public"
        self.cache = base / "cache"
        self.mountpoint.mkdir(exist_ok=True, parents=True)
        self._command = ["mount", str(self.mountpoint), "--cache", str(self.cache), "--cache-size", size]
        self._command += ["--transport", transport, "--json"]
        self._inside = ["nsenter", f"--net=/run/netns/{network}"] if network else []
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENSHELF_")}
        self._env = {**kept, "OPENSHELF_CATALOG": url, "OPENSHELF_TOKEN": token, **env}

    def call(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self._inside, OPENSHELF, *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        log = self.cache / "mountd.log"
        assert not check or done.returncode == 0, (done.stderr, log.read_text() if log.exists() else "no log")
        return done

    def __enter__(self) -> Self:
        self.call(*self._command)
        return self

    def __exit__(self, *_: object) -> None:
        """Unmount, and wait for the daemon's end: one that still follows its catalog would answer for the next node
        of the same name."""
        self.call("umount", str(self.mountpoint), "--lazy", check=False)
        until = time.monotonic() + ENDS_WITHIN_S
        while self._runs() and time.monotonic() < until:
            time.sleep(0.02)

    def _runs(self) -> bool:
        """Whether a daemon holds the cache."""
        lock = self.cache / "lock"
        if not lock.exists():
            return False
        with lock.open() as held:
            try:
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.call("status", str(self.mountpoint), "--json").stdout)
        return answer
