"""``openshelf warm`` on a real mount: exit codes, a worker killed in the middle, record and replay of what was read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from catalog.names import parse_release
from openshelf.__main__ import run
from tests.support.catalog_server import RunningCatalog, catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import OPENSHELF, RealMount
from tests.support.releases import pattern

RELEASE = "datasets/belle/chat@1.0"
FILES = {
    "README.md": b"# chat\n",
    **{f"data/{n}.bin": pattern(12 << 20, n) for n in range(4)},
    **{f"images/{n:02}.jpg": pattern(4000 + n, n + 10) for n in range(30)},
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    base = tmp_path_factory.mktemp("catalog")
    with catalog_process(base / "data") as running:
        people = Publisher(running, base)
        people.publish(parse_release(RELEASE), FILES)
        people.curator.tag(parse_release(RELEASE), "latest")
        people.close()
        yield running


@pytest.fixture
def mount(catalog: RunningCatalog, tmp_path: Path) -> Iterator[RealMount]:
    with RealMount(tmp_path, catalog.url, catalog.token("node-1", "node")) as mounted:
        yield mounted


def warm(mount: RealMount, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = mount.call("warm", str(mount.mountpoint), *arguments, check=False)
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done


def told(mount: RealMount, *arguments: str, code: int = 0) -> Any:
    return json.loads(warm(mount, *arguments, "--json", code=code).stdout)


def test_a_release_is_warmed_in_spite_of_a_killed_worker(catalog: RunningCatalog, tmp_path: Path) -> None:
    slow = RealMount(tmp_path, catalog.url, catalog.token("node-1", "node"), OPENSHELF_BANDWIDTH="30M")
    with slow as mount:
        kill_in_the_middle(mount)


def kill_in_the_middle(mount: RealMount) -> None:
    missing = told(mount, RELEASE, "--check", code=1)
    assert (missing["complete"], missing["releases"][0]["cached_files"]) == (False, 0)
    command = [OPENSHELF, "warm", str(mount.mountpoint), RELEASE, "--wait", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        first = mount.status()["worker_pid"]
        deadline = time.monotonic() + 30
        while not list((mount.cache / "partial").iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(first, signal.SIGKILL)
        out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, err
    job = json.loads(out)
    assert (job["state"], job["files_done"]) == ("done", len(FILES))
    assert mount.status()["worker_pid"] != first
    checked = warm(mount, f"{mount.mountpoint}/datasets/belle/chat/latest", "--check")
    assert checked.stdout.startswith(f"{RELEASE}: {len(FILES)} of {len(FILES)} files, 48.1 MiB of 48.1 MiB cached")
    for path, content in FILES.items():
        assert (mount.mountpoint / "datasets/belle/chat/1.0" / path).read_bytes() == content
    listed = warm(mount, "--list").stdout
    assert f"{job['id']:>4}  done       {len(FILES)}/{len(FILES)} files" in listed


def test_what_a_job_opened_is_recorded_and_brought_to_another_node(
    mount: RealMount, catalog: RunningCatalog, tmp_path: Path
) -> None:
    listing = tmp_path / "epoch.jsonl"
    begun = warm(mount, "--record", str(listing))
    assert "--record-stop" in begun.stderr
    release = mount.mountpoint / "datasets/belle/chat/1.0"
    wanted = ["images/07.jpg", "data/2.bin", "images/03.jpg"]
    subprocess.run(["cat", *(str(release / path) for path in wanted)], check=True, stdout=subprocess.DEVNULL)
    (release / "release.json").read_bytes()
    assert "recording 3 files for" in warm(mount, "--list").stdout
    facts = told(mount, "--record-stop")
    assert (facts["files"], facts["dropped"]) == (3, 0)
    header, *lines = listing.read_text().splitlines()
    assert json.loads(header) == {"openshelf_access_list": 1, "releases": [RELEASE]}
    assert [json.loads(line)["path"] for line in lines] == wanted
    assert str(tmp_path) not in listing.read_text()
    assert "Nothing is being recorded" in warm(mount, "--record-stop", code=1).stderr
    with RealMount(tmp_path / "second", catalog.url, catalog.token("node-2", "node")) as second:
        job = told(second, "--replay", str(listing), "--wait")
        assert (job["state"], job["files"]) == ("done", 3)
        assert told(second, RELEASE, "--check", code=1)["releases"][0]["cached_files"] == 3
        narrowed = ["--files", "data/2.bin", "--files", "0[37].jpg"]
        assert told(second, RELEASE, *narrowed, "--check")["complete"]


def test_a_job_for_later_is_listed_and_can_be_ended(mount: RealMount) -> None:
    later = warm(mount, "datasets/belle/chat@latest", "--files", "*.jpg", "--at", "2099-01-01T20:00").stderr
    assert "30 files" in later and "begins 2099-01-01 20:00" in later
    assert "waiting" in warm(mount, "--list").stdout
    assert warm(mount, "--cancel", "1").stderr.startswith("job 1 ends")
    assert "cancelled" in warm(mount, "--list").stdout
    assert warm(mount, "--cancel", "9", code=1).stderr.startswith("openshelf: There is no job 9.")
    absent = warm(mount, "datasets/belle/chat@7", code=1)
    assert absent.stderr.startswith("openshelf: This mount lists no release datasets/belle/chat@7.")


def test_a_wrong_use_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.jsonl").write_text("hello\n")
    for arguments in (
        (RELEASE, "--list"),
        (),
        ("--check",),
        ("--list", "--at", "20:00"),
        (RELEASE, "--at", "tonight"),
        (RELEASE, "--files", "["),
        ("chat",),
        ("--replay", str(tmp_path / "absent")),
        ("--replay", str(tmp_path / "bad.jsonl")),
        ("--record", str(tmp_path / "no" / "such")),
        ("--record", str(tmp_path / "x"), "--for", "soon"),
    ):
        assert run(["warm", str(tmp_path), *arguments]) == 2, arguments
        assert capsys.readouterr().err.count("\n") == 1, arguments
    assert run(["warm", str(tmp_path), RELEASE]) == 1
    assert "is not an openshelf mount" in capsys.readouterr().err


def test_ctrl_c_leaves_the_job_running_and_says_so(mount: RealMount) -> None:
    command = [OPENSHELF, "warm", str(mount.mountpoint), RELEASE, "--at", "2099-01-01T20:00", "--wait"]
    # A test run that was put into the background has Ctrl-C ignored, and hands that on.
    as_on_a_terminal = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=as_on_a_terminal) as waiting:
        deadline = time.monotonic() + 30
        while not told(mount, "--list")["jobs"]:
            assert time.monotonic() < deadline
        waiting.send_signal(signal.SIGINT)
        try:
            _, err = waiting.communicate(timeout=30)
        finally:
            waiting.kill()
    assert waiting.returncode == 130
    assert "job 1 goes on in the background" in err and "--cancel 1" in err
    assert told(mount, "--list")["jobs"][0]["state"] == "waiting"
