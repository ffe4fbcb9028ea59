"""One release opened without a pause while its files go from absent to sealed to materialised to evicted, and again,
and the worker is killed all the while: no open and no read ever fails, and all bytes are right."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.names import parse_release
from mountd import control
from mountd.materialise.binds import binds_below
from tests.support.catalog_server import RunningCatalog, catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount
from tests.support.releases import pattern

REF = parse_release("datasets/belle/opened@1.0")
ROUNDS = 4
FILES = {
    "large.bin": pattern(9_000_000, 1),
    "middle.bin": pattern(1_500_000, 2),
    "empty": b"",
    **{f"small/{number}": pattern(3000 + number, number) for number in range(12)},
}

# Threads that open a file by its path, read a part, hold it a little, and look whether the bytes are right.
READER = """
import hashlib, json, os, random, sys, threading
root, plain = sys.argv[1:]
files = {p: open(os.path.join(plain, p), "rb").read() for p in json.loads(sys.stdin.readline())}
stop, errors, opens, lock = threading.Event(), [], [0], threading.Lock()
def run(seed):
    chosen = random.Random(seed)
    while not stop.is_set():
        path = chosen.choice(sorted(files)) if seed % 2 else "large.bin"
        try:
            with open(os.path.join(root, path), "rb", buffering=0) as stream:
                for _ in range(3):
                    at = chosen.randrange(len(files[path]) + 1)
                    if os.pread(stream.fileno(), 20000, at) != files[path][at:at + 20000]:
                        errors.append(path + ": wrong bytes")
                    stop.wait(chosen.choice((0, 0.001, 0.05)))
        except OSError as error:
            errors.append(f"{path}: {error}")
        with lock:
            opens[0] += 1
threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
for each in threads: each.start()
sys.stdin.readline()
stop.set()
for each in threads: each.join()
print(json.dumps({"opens": opens[0], "errors": errors}))
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[RunningCatalog]:
    with catalog_process(tmp_path / "catalog") as running:
        people = Publisher(running, tmp_path)
        people.publish(REF, FILES)
        people.close()
        yield running


def kill_worker(mount: RealMount) -> None:
    pid = control.ask(mount.mountpoint, "status")["worker_pid"]
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_no_open_fails_whatever_becomes_of_the_release(catalog: RunningCatalog, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    for path, content in FILES.items():
        (plain / path).parent.mkdir(parents=True, exist_ok=True)
        (plain / path).write_bytes(content)
    with RealMount(tmp_path, catalog.url, catalog.token("node", "node")) as mount:
        root = mount.mountpoint / str(REF.collection) / REF.version
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, str(root), str(plain)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdin is not None
        reader.stdin.write(json.dumps(list(FILES)) + "\n")
        reader.stdin.flush()
        materialised = 0
        for number in range(ROUNDS):
            deadline = time.monotonic() + 8
            while time.monotonic() < deadline:
                if binds_below(mount.mountpoint, mount.cache / "trees"):
                    materialised += 1
                    break
                time.sleep(0.05)
                if random.random() < 0.03:
                    kill_worker(mount)
            with contextlib.suppress(control.ControlError):
                for _ in control.order(mount.mountpoint, "evict", releases=[str(REF)]):
                    pass
            if number % 2:
                kill_worker(mount)
        output, _ = reader.communicate("\n", timeout=60)
        told = json.loads(output)
        assert told["errors"] == []
        assert told["opens"] > 200
        assert materialised >= 1
        state = mount.status()
        assert state["restarts"] >= 2
        assert state["read_errors"] == 0
