"""A whole Openshelf for a test, started and used through the command line as its users do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPENSHELF = str(Path(sys.executable).with_name("openshelf"))
READY_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class CommandFailed(AssertionError):
    """A command that had to succeed did not."""


class Shelf:
    """A catalog in ``home/catalog``, four people and a node, and whatever is mounted."""

    def __init__(self, home: Path, *, objects: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.objects = objects
        self.environment = dict(environment or {})
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server: subprocess.Popen[bytes] | None = None
        self.tokens: dict[str, str] = {}
        self.mounts: list[Path] = []

    @property
    def data(self) -> Path:
        return self.home / "catalog"

    @property
    def runs(self) -> Path:
        return self.home / "client"

    def start(self) -> None:
        """Start (again) the catalog and wait until it is ready."""
        command = [OPENSHELF, "serve", "--data", str(self.data), "--port", str(self.port)]
        command += ["--objects", self.objects] if self.objects else []
        with (self.home / "catalog.log").open("ab") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | self.environment)
        deadline = time.monotonic() + READY_S
        while True:
            try:
                with urllib.request.urlopen(self.url + "/readyz", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                if self.server.poll() is not None or time.monotonic() > deadline:
                    raise CommandFailed((self.home / "catalog.log").read_text("utf-8", "replace")) from None
                time.sleep(0.05)

    def appoint(self) -> None:
        """Make a token for each person of the test."""
        self.tokens["administrator"] = (self.data / "admin.token").read_text("ascii").strip()
        for role, name in (("curator", "lin"), ("auditor", "wang"), ("node", "node-1"), ("reader", "chen")):
            self.tokens[role] = self.token(role, name)

    def token(self, role: str, name: str) -> str:
        return str(self.ok("administrator", "token", "create", "--role", role, "--name", name, "--json").json["token"])

    def kill_catalog(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def stop_catalog(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(30)

    def env(self, role: str | None) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("OPENSHELF_")}
        env |= {"OPENSHELF_CATALOG": self.url, "OPENSHELF_DATA": str(self.runs)} | self.environment
        return env | ({"OPENSHELF_TOKEN": self.tokens.get(role, role)} if role else {})

    def call(self, role: str | None, *arguments: str | Path, timeout_s: float = 300, **env: str) -> Outcome:
        """Run ``openshelf`` with the token of ``role`` (or with that very token)."""
        done = subprocess.run(
            [OPENSHELF, *map(str, arguments)],
            env=self.env(role) | env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def ok(self, role: str | None, *arguments: str | Path, timeout_s: float = 300, **env: str) -> Outcome:
        """The same, and it must succeed."""
        outcome = self.call(role, *arguments, timeout_s=timeout_s, **env)
        if outcome.code:
            raise CommandFailed(f"openshelf {' '.join(map(str, arguments))}: {outcome.code}\n{outcome.stderr}")
        return outcome

    def ingest(self, release: str, *sources: str | Path, licence: str | None = "CC-BY-4.0", **env: str) -> Any:
        collection, _, version = release.partition("@")
        extra = ["--licence", licence] if licence else []
        return self.ok(
            "curator", "ingest", *sources, "--to", collection, "--version", version, *extra, "--json", **env
        ).json

    def publish(self, release: str) -> None:
        self.ok("curator", "submit", release)
        self.ok("auditor", "approve", release)
        self.ok("curator", "publish", release)

    def mount(self, name: str = "public", *, size: str = "20G", **env: str) -> Path:
        """Mount at ``home/name`` with the cache ``home/name.cache``."""
        point = self.home / name
        point.mkdir(exist_ok=True)
        self.ok("node", "mount", point, "--cache", self.cache(name), "--cache-size", size, timeout_s=60, **env)
        self.mounts.append(point)
        return point

    def cache(self, name: str = "public") -> Path:
        return self.home / f"{name}.cache"

    def status(self, point: Path) -> Any:
        return self.ok(None, "status", point, "--json", timeout_s=30).json

    def umount(self, point: Path) -> None:
        self.ok(None, "umount", point, timeout_s=60)
        self.mounts.remove(point)

    def close(self) -> None:
        """Leave nothing mounted and nothing running."""
        for point in self.mounts:
            self.call(None, "umount", point, "--lazy", timeout_s=60)
        if self.server is not None and self.server.poll() is None:
            self.server.terminate()
            try:
                self.server.wait(20)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()


@contextmanager
def running_shelf(
    home: Path, *, objects: str | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Shelf]:
    """A started shelf with people, stopped and unmounted at the end."""
    home.mkdir(parents=True, exist_ok=True)
    shelf = Shelf(home, objects=objects, environment=environment)
    try:
        shelf.start()
        shelf.appoint()
        yield shelf
    finally:
        shelf.close()


def wait_until(what: str, condition: Any, timeout_s: float = 20.0) -> None:
    """Wait for ``condition()`` to be true, or fail naming ``what``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.05)
