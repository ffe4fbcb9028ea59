"""What a run does when it is killed, started twice, or out of disk: real processes, real signals."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingest import run_folder
from openshelf.errors import OpenshelfError
from tests.ingest.conftest import Run, write_jsonl
from tests.support.catalog_server import RunningCatalog, running_catalog

REF = "datasets/test/killed"


def command(source: Path, *more: str) -> list[str]:
    base = [sys.executable, "-m", "openshelf", "ingest", str(source), "--to", REF, "--version", "1.0"]
    return [*base, "--licence", "MIT", "--json", "--jobs", "2", *more]


def environment(catalog: RunningCatalog, token: str, data: Path) -> dict[str, str]:
    return {**os.environ, "OPENSHELF_CATALOG": catalog.url, "OPENSHELF_TOKEN": token, "OPENSHELF_DATA": str(data)}


@contextmanager
def other_catalog(folder: Path) -> Iterator[tuple[RunningCatalog, str]]:
    with running_catalog(folder) as catalog:
        yield catalog, catalog.token("someone", "curator")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 MiB in three files: enough for a pool of processes."""
    folder = tmp_path_factory.mktemp("source") / "corpus"
    rng = random.Random(5)
    for number in range(3):
        lines = [
            {"text": f"{number}-{row} 联系电话138{rng.randrange(10**8):08d}，" + "内容" * rng.randrange(450, 650)}
            for row in range(3_200)
        ]
        write_jsonl(folder / f"{number}.jsonl", lines)
    return folder


def finish(arguments: list[str], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_killed_run_continues_and_ends_with_the_digest_of_an_undisturbed_one(
    source: Path, tmp_path: Path, catalog: RunningCatalog, curator: str
) -> None:
    with other_catalog(tmp_path / "undisturbed") as (undisturbed, token):
        expected = finish(command(source), environment(undisturbed, token, tmp_path / "calm"))
    env = environment(catalog, curator, tmp_path / "shaken")
    parts = tmp_path / "shaken" / "runs" / expected["run"] / "parts"
    kills = 0
    for pause in (0.0, 0.4, 1.2):
        process = subprocess.Popen(command(source), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while process.poll() is None and not parts.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(pause)
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills >= 2
    finished = {path: path.stat().st_mtime_ns for path in parts.glob("*/part.json")}
    answer = finish(command(source), env)
    assert answer["manifest_digest"] == expected["manifest_digest"]
    assert {key: answer[key] for key in ("rows_in", "rows_out", "findings")} == {
        key: expected[key] for key in ("rows_in", "rows_out", "findings")
    }
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert not list(parts.glob(".*"))


def test_the_workers_of_a_killed_run_end_by_themselves(
    source: Path, tmp_path: Path, catalog: RunningCatalog, curator: str
) -> None:
    env = environment(catalog, curator, tmp_path / "data")
    process = subprocess.Popen(command(source), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children: set[int] = set()
    deadline = time.monotonic() + 60
    while process.poll() is None and len(children) < 2 and time.monotonic() < deadline:
        children = children_of(process.pid)
        time.sleep(0.02)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(is_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children
    assert not [child for child in children if is_alive(child)]


def children_of(parent: int) -> set[int]:
    try:
        return {int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()}
    except FileNotFoundError:
        return set()


def is_alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def test_two_identical_runs_at_once_are_refused(tmp_path: Path) -> None:
    with (
        run_folder.open_run(tmp_path, "abc"),
        pytest.raises(OpenshelfError) as caught,
        run_folder.open_run(tmp_path, "abc"),
    ):
        raise AssertionError("two runs hold one folder")
    assert caught.value.code == "run_in_progress"
    with run_folder.open_run(tmp_path, "abc"):
        pass


def test_a_full_disk_says_so_and_the_run_goes_on_when_there_is_room(run: Run, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    rng = random.Random(3)
    source = write_jsonl(tmp_path / "x.jsonl", [{"text": rng.randbytes(2000).hex()} for _ in range(1500)])
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False)
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        with pytest.raises(OpenshelfError) as caught:
            run(source, data=small)
        assert caught.value.code == "disk_full"
        assert str(small) in caught.value.message
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        assert run(source, data=small).account.rows_out == 1500
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)  # the caught error holds open files


def test_a_damaged_part_is_made_again(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", [{"text": f"第{number}行"} for number in range(100)])
    first = run(source, ref="datasets/test/damaged@1.0")
    part = next((first.folder / "parts").glob("*/rows.arrow"))
    whole = part.read_bytes()
    part.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    second = run(source, ref="datasets/test/damaged@1.0")
    assert part.read_bytes() == whole
    assert first.release is not None
    assert second.release is not None
    assert first.release.manifest_digest == second.release.manifest_digest
