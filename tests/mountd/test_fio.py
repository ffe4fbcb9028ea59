"""fio reads a published file whose content is its position, by every way of reading, and verifies each block."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.names import parse_release
from tests.support.catalog_server import RunningCatalog, catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount

REF = parse_release("datasets/fio/numbers@1.0")
SIZE_MIB = 48
CONTENT = ["--bs=4k", f"--size={SIZE_MIB}m", "--verify=pattern", "--verify_pattern=%o"]
"""Every block holds its own offset."""


def fio(path: Path, *options: str) -> dict[str, object]:
    done = subprocess.run(
        [
            "fio",
            "--name=check",
            f"--filename={path}",
            "--output-format=json",
            "--verify_fatal=1",
            "--verify_state_save=0",
            *CONTENT,
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    folder = tmp_path_factory.mktemp("fio")
    fio(folder / "numbers.bin", "--rw=write", "--do_verify=0", "--allow_file_create=1")
    with catalog_process(folder / "data") as running:
        publisher = Publisher(running, folder)
        publisher.publish(REF, {"numbers.bin": (folder / "numbers.bin").read_bytes()})
        publisher.close()
        yield running


@pytest.fixture(scope="module", params=["passthrough", "served"])
def numbers(
    request: pytest.FixtureRequest, catalog: RunningCatalog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    options = {"OPENSHELF_MATERIALISE": "no", "OPENSHELF_PASSTHROUGH": "0" if request.param == "served" else "1"}
    with RealMount(
        tmp_path_factory.mktemp(request.param), catalog.url, catalog.token("node", "node"), **options
    ) as mount:
        yield mount.mountpoint / "datasets" / "fio" / "numbers" / "1.0" / "numbers.bin"


@pytest.mark.parametrize(
    "way",
    [
        ["--rw=randread", "--ioengine=psync", "--numjobs=4", "--thread"],  # first: nothing is in the cache yet
        ["--rw=read", "--ioengine=psync"],
        ["--rw=randread", "--ioengine=mmap"],
        ["--rw=read", "--ioengine=libaio", "--iodepth=16", "--direct=1"],
        ["--rw=randread", "--ioengine=pvsync2", "--direct=1"],
        ["--rw=read", "--ioengine=splice"],
    ],
    ids=lambda way: " ".join(way[:2]).replace("--", ""),
)
def test_every_block_is_what_its_place_says(numbers: Path, way: list[str]) -> None:
    found = fio(numbers, "--readonly", *way)
    assert found["io_bytes"] >= SIZE_MIB << 20  # type: ignore[operator]
    assert found["short_ios"] == 0


def test_a_wrong_block_would_be_seen(tmp_path: Path) -> None:
    path = tmp_path / "numbers.bin"
    fio(path, "--rw=write", "--do_verify=0")
    with path.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"\xff" * 8)
    with pytest.raises(AssertionError, match="verify"):
        fio(path, "--readonly", "--rw=read")
