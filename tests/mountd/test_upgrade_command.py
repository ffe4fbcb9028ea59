"""``openshelf upgrade`` on a mount of a real catalog, and a mount started as a service."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.names import parse_release
from mountd.kernel.mounting import mounted_at
from tests.support.catalog_server import RunningCatalog, catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import OPENSHELF, RealMount
from tests.support.releases import pattern
from tests.support.service_manager import StandInManager

CHAT = parse_release("datasets/belle/chat@1.0")
FILES = {
    **{f"data/train-{number:05d}-of-00004.parquet": pattern(9 << 20, number) for number in range(4)},
    **{f"images/{number:04d}.jpg": pattern(800 + number, number) for number in range(100)},
}
READER = """
import hashlib, json, os, sys, time
root, until, expected = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
rounds = 0
while rounds == 0 or time.monotonic() < until:
    for path, digest in expected.items():
        with open(os.path.join(root, path), "rb", buffering=0) as stream:
            found = hashlib.sha256()
            while data := stream.read(1 << 20):
                found.update(data)
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert found.hexdigest() == digest, path
    rounds += 1
"""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    with catalog_process(tmp_path_factory.mktemp("catalog") / "data") as running:
        people = Publisher(running, tmp_path_factory.mktemp("uploads"))
        people.publish(CHAT, FILES)
        people.close()
        yield running


@pytest.mark.parametrize("passthrough", ["1", "0"])
def test_three_upgrades_of_a_node_under_readers(catalog: RunningCatalog, tmp_path: Path, passthrough: str) -> None:
    token = catalog.token("node-1", "node")
    with RealMount(
        tmp_path, catalog.url, token, OPENSHELF_PASSTHROUGH=passthrough, OPENSHELF_MATERIALISE="no"
    ) as mount:
        release = mount.mountpoint / "datasets/belle/chat/1.0"
        first = mount.status()
        expected = json.dumps({path: hashlib.sha256(content).hexdigest() for path, content in FILES.items()})
        readers = [
            subprocess.Popen([sys.executable, "-c", READER, str(release), str(time.monotonic() + 8), expected])
            for _ in range(3)
        ]
        large = next(iter(FILES))
        with (release / large).open("rb") as held, mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            for count in (1, 2, 3):
                state = json.loads(mount.call("upgrade", str(mount.mountpoint), "--json").stdout)
                assert state["takeovers"] == count
                assert hashlib.sha256(mapping).digest() == hashlib.sha256(FILES[large]).digest()
        assert [reader.wait(timeout=90) for reader in readers] == [0, 0, 0]
        after = mount.status()
        assert after["supervisor_pid"] == first["supervisor_pid"]
        assert (after["restarts"], after["read_errors"]) == (0, 0)
        assert after["passthrough"] is (passthrough == "1")
        for part in ("cmdline", "environ"):
            for pid in (after["supervisor_pid"], after["worker_pid"]):
                assert token.encode() not in Path(f"/proc/{pid}/{part}").read_bytes()
        publisher = Publisher(catalog, tmp_path)  # the feed is followed on, with the token that was handed over
        ref = parse_release(f"datasets/belle/chat@{passthrough}.5")
        publisher.publish(ref, {"new.txt": b"new"})
        publisher.close()
        new = mount.mountpoint / "datasets/belle/chat" / f"{passthrough}.5" / "new.txt"
        deadline = time.monotonic() + 20
        while not new.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert new.read_bytes() == b"new"
    assert mounted_at(mount.mountpoint) is None


def test_nothing_mounted_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run([OPENSHELF, "upgrade", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "is not an openshelf mount" in done.stderr


def test_a_service_takes_its_token_as_a_credential_and_is_restarted_without_unmounting(
    catalog: RunningCatalog, tmp_path: Path
) -> None:
    point, cache, credentials = tmp_path / "public", tmp_path / "cache", tmp_path / "credentials"
    credentials.mkdir()
    token = catalog.token("node-2", "node")
    (credentials / "token").write_text(token + "\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENSHELF_")}
    environ |= {"OPENSHELF_CATALOG": catalog.url, "CREDENTIALS_DIRECTORY": str(credentials)}
    command = [OPENSHELF, "mount", str(point), "--cache", str(cache), "--cache-size", "1G", "--foreground"]
    path = point / "datasets/belle/chat/1.0/images/0042.jpg"
    with StandInManager(tmp_path) as manager:

        def start() -> subprocess.Popen[bytes]:
            words, told, passed = manager.start(command, environ)
            service = subprocess.Popen(words, env=told, pass_fds=passed, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            manager.started()
            assert service.stdout is not None
            assert json.loads(service.stdout.readline())["supervisor_pid"] == service.pid
            return service

        def end(service: subprocess.Popen[bytes], number: signal.Signals) -> None:
            service.send_signal(number)
            _, said = service.communicate(timeout=30)
            assert service.returncode == 0, said
            assert token.encode() not in said

        service = start()
        with path.open("rb") as held:
            end(service, signal.SIGUSR2)
            assert mounted_at(point) is not None
            service = start()
            assert held.read() == FILES["images/0042.jpg"]
        assert path.read_bytes() == FILES["images/0042.jpg"]
        end(service, signal.SIGTERM)
        assert mounted_at(point) is None
        deadline = time.monotonic() + 10
        while manager.kept and time.monotonic() < deadline:
            time.sleep(0.05)
        assert manager.kept == {}
        assert manager.count("READY=1") == 2
