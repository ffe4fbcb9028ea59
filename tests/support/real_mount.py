"""A mount as ``openshelf mount`` makes it, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

OPENSHELF = str(Path(sys.executable).with_name("openshelf"))


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
        self.call("umount", str(self.mountpoint), "--lazy", check=False)

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.call("status", str(self.mountpoint), "--json").stdout)
        return answer
