"""``openshelf mount``, ``status`` and ``umount`` as a node runs them, against a real catalog."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from catalog.client import Client, DraftAbout, DraftFile
from catalog.names import ReleaseRef, parse_release
from mountd.children import has_ended
from mountd.kernel.mounting import mounted_at, unmount
from tests.support.catalog_server import CatalogProcess, catalog_process
from tests.support.releases import pattern

OPENSHELF = [sys.executable, "-m", "openshelf"]
RELEASE = "datasets/belle/chat@1.0"
FILES = {
    "README.md": b"# chat\n",
    "data/train-00000-of-00001.parquet": pattern(21_000_000, 7),
    **{f"images/{number:04d}.jpg": pattern(2000 + number, number) for number in range(40)},
}
STATUS_KEYS = {
    "supervisor_pid", "worker_pid", "transport", "passthrough", "opens_passthrough", "opens_served", "reads_served",
    "cache_bytes", "feed_serial",
}  # fmt: skip


def publish(catalog: CatalogProcess, name: str, files: Mapping[str, bytes], folder: Path) -> ReleaseRef:
    """Take files through draft, review and publication."""
    ref = parse_release(name)
    curator, auditor = catalog.token("lin", "curator"), catalog.token("wang", "auditor")
    about = DraftAbout("2026-01-01T00:00:00Z", "CC-BY-4.0", [{"source": "test"}], residency=["CN"], rows=1)
    with Client(catalog.url, curator) as client, Client(catalog.url, auditor) as reviewer:
        client.create_draft(ref, about)
        rows = []
        for path, content in files.items():
            local = folder / hashlib.sha256(content).hexdigest()
            local.write_bytes(content)
            sent = client.upload(ref, local)
            rows.append(DraftFile(path, sent.sha256, 946_684_800_000_000_000))
        client.seal(ref, rows)
        client.submit(ref)
        reviewer.approve(ref)
        client.publish(ref)
        client.tag(ref, "latest")
    return ref


@dataclass
class MountNode:
    """A node: its token, and what it has mounted."""

    catalog: CatalogProcess
    home: Path
    token: str
    mounts: list[Path] = field(default_factory=list)

    def run(self, *arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENSHELF_")}
        environment |= {"OPENSHELF_CATALOG": self.catalog.url, "OPENSHELF_TOKEN": self.token, **env}
        return subprocess.run(
            [*OPENSHELF, *map(str, arguments)],
            env=environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    def mount(self, name: str, *extra: str, **env: str) -> tuple[Path, dict[str, Any]]:
        folder = self.home / name
        self.mounts.append(folder)
        done = self.run(
            "mount", folder, "--cache", self.home / f"{name}.cache", "--cache-size", "1G", "--json", *extra, **env
        )
        assert done.returncode == 0, done.stderr
        return folder, json.loads(done.stdout)

    def status(self, folder: Path) -> dict[str, Any]:
        done = self.run("status", folder, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def end(self) -> None:
        for folder in self.mounts:
            self.run("umount", folder, "--lazy")
            if mounted_at(folder) is not None:
                unmount(folder, lazy=True)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogProcess]:
    base = tmp_path_factory.mktemp("catalog")
    with catalog_process(base / "data") as running:
        publish(running, RELEASE, FILES, base)
        yield running


@pytest.fixture
def node(catalog: CatalogProcess, tmp_path: Path) -> Iterator[MountNode]:
    made = MountNode(catalog, tmp_path, catalog.token("node-1", "node"))
    yield made
    made.end()


def assert_whole(folder: Path) -> None:
    """Every file of the release, byte for byte, by name and through its tag."""
    release = folder / "datasets/belle/chat/1.0"
    for path, content in FILES.items():
        assert (release / path).read_bytes() == content, path
    assert (folder / "datasets/belle/chat/latest/README.md").read_bytes() == FILES["README.md"]
    names = {str(path.relative_to(release)) for path in release.rglob("*") if path.is_file()}
    assert names == {*FILES, "release.json", "release.json.sig"}


@pytest.mark.parametrize("transport", ["kernel", "libfuse"])
def test_a_published_release_is_mounted_read_and_unmounted(node: MountNode, transport: str) -> None:
    folder, state = node.mount("public", "--transport", transport)
    assert state.keys() >= STATUS_KEYS
    assert state["transport"] == transport
    assert state["releases"] == 1
    assert state["feed_serial"] >= 1
    assert_whole(folder)
    deadline = time.monotonic() + 10  # files are counted as they are stored, and the count is shown twice a second
    while (later := node.status(folder))["cache_bytes"] < sum(map(len, FILES.values())):
        assert time.monotonic() < deadline
    assert later["supervisor_pid"] == state["supervisor_pid"]
    log = (node.home / "public.cache" / "mountd.log").read_text()
    assert node.token not in log
    done = node.run("umount", folder)
    assert done.returncode == 0, done.stderr
    assert mounted_at(folder) is None
    assert os.listdir(folder) == []
    for pid in (later["supervisor_pid"], later["worker_pid"]):
        assert has_ended(pid), "umount returns when the daemon has ended"
    gone = node.run("status", folder)
    assert gone.returncode == 1
    assert gone.stderr.count("\n") == 1
    assert "not an openshelf mount" in gone.stderr


def test_the_second_reading_of_a_large_file_does_not_reach_the_daemon(node: MountNode) -> None:
    folder, state = node.mount("public")
    assert state["passthrough"] is True
    path = folder / "datasets/belle/chat/1.0/data/train-00000-of-00001.parquet"
    assert path.read_bytes() == FILES["data/train-00000-of-00001.parquet"]
    deadline = time.monotonic() + 10
    while os.getxattr(path, "user.openshelf.cached") != b"yes" and time.monotonic() < deadline:
        time.sleep(0.05)
    before = node.status(folder)
    assert path.read_bytes() == FILES["data/train-00000-of-00001.parquet"]
    after = node.status(folder)
    assert after["opens_passthrough"] == before["opens_passthrough"] + 1
    assert after["reads_served"] == before["reads_served"]
    attributes = {name: os.getxattr(path, name).decode() for name in os.listxattr(path)}
    assert attributes == {
        "user.openshelf.sha256": hashlib.sha256(FILES["data/train-00000-of-00001.parquet"]).hexdigest(),
        "user.openshelf.release": RELEASE,
        "user.openshelf.licence": "CC-BY-4.0",
        "user.openshelf.cached": "yes",
    }


def test_passthrough_switched_off_by_the_environment_reads_the_same(node: MountNode) -> None:
    folder, state = node.mount("public", OPENSHELF_PASSTHROUGH="0")
    assert state["passthrough"] is False
    assert_whole(folder)
    assert node.status(folder)["opens_passthrough"] == 0


def test_the_token_is_nowhere_in_the_processes_behind_the_mount(node: MountNode) -> None:
    _, state = node.mount("public")
    for pid in (state["supervisor_pid"], state["worker_pid"]):
        for name in ("environ", "cmdline"):
            assert node.token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
        assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_a_busy_mount_names_who_holds_it_and_goes_lazily(node: MountNode) -> None:
    folder, _ = node.mount("public")
    path = folder / "datasets/belle/chat/1.0/README.md"
    with path.open("rb") as stdin:
        holder = subprocess.Popen(["sleep", "60"], stdin=stdin)
    try:
        refused = node.run("umount", folder)
        assert refused.returncode == 1
        assert f"sleep (pid {holder.pid}: {path})" in refused.stderr
        assert "--lazy" in refused.stderr
        assert path.exists()
        with path.open("rb") as stream:
            done = node.run("umount", folder, "--lazy")
            assert done.returncode == 0, done.stderr
            assert mounted_at(folder) is None
            assert stream.read() == FILES["README.md"]
    finally:
        holder.kill()
        holder.wait()


def test_a_stale_mount_is_cleared_by_the_next(node: MountNode) -> None:
    folder, state = node.mount("public")
    os.kill(state["supervisor_pid"], 9)
    os.kill(state["worker_pid"], 9)
    deadline = time.monotonic() + 5
    pids = state["supervisor_pid"], state["worker_pid"]
    while not all(map(has_ended, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(OSError, match="not connected"):
        os.listdir(folder)
    again, _ = node.mount("public")
    assert_whole(again)


def test_wrong_places_are_refused_with_one_line(node: MountNode) -> None:
    folder, _ = node.mount("public")
    full = node.home / "full"
    full.mkdir()
    (full / "mine").touch()
    cases = [
        ((folder, "--cache", node.home / "c2"), "already mounted"),
        ((full, "--cache", node.home / "c2"), "is not empty"),
        ((full / "mine", "--cache", node.home / "c2"), "is not a folder"),
        ((node.home / "no/such", "--cache", node.home / "c2"), "does not exist"),
        ((node.home / "m2", "--cache", node.home / "m2/cache"), "one inside the other"),
        ((node.home / "m2", "--cache", folder / "cache"), "read-only"),
        ((node.home / "m2", "--cache", node.home / "public.cache"), "cache"),
    ]
    for arguments, expected in cases:
        refused = node.run("mount", *arguments, "--cache-size", "1G")
        assert refused.returncode in (1, 2), (arguments, refused.stdout, refused.stderr)
        assert expected in refused.stderr.lower(), refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr
    assert (full / "mine").exists()
    assert_whole(folder)
    assert node.run("umount", node.home / "m2").returncode == 1


def test_nothing_is_written_to_a_cache_folder_that_is_open_to_others(node: MountNode) -> None:
    cache, elsewhere = node.home / "open", node.home / "elsewhere"
    cache.mkdir()
    cache.chmod(0o777)
    elsewhere.write_bytes(b"mine\n")
    (cache / "mountd.log").symlink_to(elsewhere)
    refused = node.run("mount", node.home / "m", "--cache", cache, "--cache-size", "1G")
    assert refused.returncode == 1
    assert "is open to others" in refused.stderr
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert elsewhere.read_bytes() == b"mine\n"
    assert os.listdir(cache) == ["mountd.log"]


def test_a_wrong_token_and_an_absent_catalog_are_said_in_one_line(node: MountNode) -> None:
    wrong = node.token[:-4] + ("AAAA" if not node.token.endswith("AAAA") else "BBBB")
    for env, expected in (({"OPENSHELF_TOKEN": wrong}, "token"), ({"OPENSHELF_CATALOG": "http://127.0.0.1:9"}, "9")):
        started = time.monotonic()
        refused = node.run("mount", node.home / "m", "--cache", node.home / "m.cache", "--cache-size", "1G", **env)
        assert refused.returncode == 1
        assert expected in refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr
        assert time.monotonic() - started < 35
        assert mounted_at(node.home / "m") is None


def test_without_a_token_one_line_says_so_and_nothing_is_made(node: MountNode) -> None:
    for extra in ((), ("--foreground",), ("--json",)):
        refused = node.run(
            "mount", node.home / "m", "--cache", node.home / "m.cache", "--cache-size", "1G", *extra, OPENSHELF_TOKEN=""
        )
        assert refused.returncode == 2
        assert "No token is set for the catalog" in refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr
    assert list(node.home.iterdir()) == []


def test_offline_the_last_good_state_is_mounted_and_says_so(tmp_path: Path) -> None:
    with catalog_process(tmp_path / "data") as catalog:
        publish(catalog, RELEASE, FILES, tmp_path)
        node = MountNode(catalog, tmp_path, catalog.token("node-1", "node"))
        try:
            folder, _ = node.mount("public")
            assert_whole(folder)
            assert node.run("umount", folder).returncode == 0
            catalog.kill()
            folder, state = node.mount("public")
            assert state["online"] is False
            assert state["releases"] == 1
            assert_whole(folder)
        finally:
            node.end()


def test_sigterm_unmounts_cleanly(node: MountNode) -> None:
    folder, state = node.mount("public")
    (folder / "datasets/belle/chat/1.0/README.md").read_bytes()
    os.kill(state["supervisor_pid"], 15)
    deadline = time.monotonic() + 15
    while not has_ended(state["supervisor_pid"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert has_ended(state["supervisor_pid"])
    assert has_ended(state["worker_pid"])
    assert mounted_at(folder) is None


def test_in_the_foreground_it_stays_until_interrupted_and_logs_to_stderr(node: MountNode) -> None:
    folder = node.home / "public"
    node.mounts.append(folder)
    options = ["--cache", str(node.home / "cache"), "--cache-size", "1G", "--foreground"]
    environment = {**os.environ, "OPENSHELF_CATALOG": node.catalog.url, "OPENSHELF_TOKEN": node.token}
    command = [*OPENSHELF, "mount", str(folder), *options]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as daemon:
        assert daemon.stdout is not None
        state = json.loads(daemon.stdout.readline())
        assert state["supervisor_pid"] == daemon.pid
        assert node.token.encode() not in Path(f"/proc/{daemon.pid}/environ").read_bytes()
        assert (folder / "datasets/belle/chat/1.0/README.md").read_bytes() == FILES["README.md"]
        os.killpg(daemon.pid, 2)  # Ctrl-C reaches the whole group
        _, logged = daemon.communicate(timeout=30)
    assert daemon.returncode == 0
    assert f"worker {state['worker_pid']} serves {folder}" in logged
    assert mounted_at(folder) is None


def test_a_killed_worker_of_a_real_mount_is_replaced_under_a_reader(node: MountNode) -> None:
    folder, state = node.mount("public", OPENSHELF_PASSTHROUGH="0")
    path = folder / "datasets/belle/chat/1.0/data/train-00000-of-00001.parquet"
    pid = state["worker_pid"]
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        for number in range(0, 21_000_000, 1 << 20):
            if number % (5 << 20) == 0:
                os.kill(pid, 9)
                deadline = time.monotonic() + 20
                while (new := node.status(folder)["worker_pid"]) in (pid, None) and time.monotonic() < deadline:
                    pass
                pid = new
            digest.update(stream.read(1 << 20))
    assert digest.digest() == hashlib.sha256(FILES["data/train-00000-of-00001.parquet"]).digest()
    assert_whole(folder)
    after = node.status(folder)
    assert after["restarts"] >= 4
    assert after["read_errors"] == 0
