"""A real catalog for tests: uvicorn on a free port of 127.0.0.1, in a thread or as a process of its own."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import urllib3

from catalog.cli.serve import listen, server_for
from catalog.start import open_catalog
from catalog.tokens.service import first_token

START_S = 90


@dataclass(frozen=True)
class RunningCatalog:
    """A catalog that answers."""

    url: str
    admin_token: str
    data: Path

    def token(self, name: str, role: str) -> str:
        """A new token of the principal ``name``."""
        body = json.dumps({"name": name, "role": role})
        headers = {"Authorization": f"Bearer {self.admin_token}", "Content-Type": "application/json"}
        with urllib3.PoolManager() as pool:
            answer = pool.request("POST", f"{self.url}/v1/tokens", body=body, headers=headers)
        assert answer.status == 201, answer.data
        return str(answer.json()["token"])


@contextmanager
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def running_catalog(data: Path, objects: str | None = None) -> Iterator[RunningCatalog]:
    """A catalog in a thread of this process, which logs what is wrong and no request."""
    with _quiet(), listen("127.0.0.1", 0) as listening, open_catalog(data, objects) as runtime:
        first_token(runtime)
        server = server_for(runtime, "warning")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="catalog")
        thread.start()
        try:
            deadline = time.monotonic() + START_S
            while not server.started:
                assert thread.is_alive() and time.monotonic() < deadline, "the catalog did not start"
                time.sleep(0.01)
            port = listening.getsockname()[1]
            yield RunningCatalog(f"http://127.0.0.1:{port}", (data / "admin.token").read_text(), data)
        finally:
            server.should_exit = True
            thread.join()


@dataclass(frozen=True)
class CatalogProcess(RunningCatalog):
    """A catalog as `openshelf serve` runs it."""

    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """As when the machine loses power, except that what was written stays written."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def catalog_process(
    data: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    objects: str | None = None,
    environ: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[CatalogProcess]:
    """A catalog in a process of its own, which tests may kill; its log goes to ``log``."""
    command = [sys.executable, "-m", "openshelf", "serve", "--data", str(data), "--json"]
    command += ["--host", host, "--port", str(port)]
    command += ["--objects", objects] if objects else []
    with (log or data.with_suffix(".log")).open("ab") as sink:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, env={**os.environ, **(environ or {})})
    assert process.stdout is not None
    try:
        announced = b""
        while not announced.endswith(b"}\n"):
            line = process.stdout.readline()
            assert line, f"the catalog ended with {process.wait()}"
            announced += line
        url = json.loads(announced)["url"]
        _await(url)
        yield CatalogProcess(url, (data / "admin.token").read_text(), data, process)
    finally:
        process.stdout.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(url: str) -> None:
    deadline = time.monotonic() + START_S
    with urllib3.PoolManager(retries=False, timeout=2) as pool:
        while True:
            try:
                if pool.request("GET", f"{url}/readyz").status == 200:
                    return
            except urllib3.exceptions.HTTPError:
                pass
            assert time.monotonic() < deadline, "the catalog did not answer"
            time.sleep(0.05)
