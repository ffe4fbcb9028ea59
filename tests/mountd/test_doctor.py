"""``openshelf doctor`` finds what is true of the host, and names what would better it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mountd.doctor import catalog, disk, host, mounted
from mountd.doctor.check import Check
from mountd.doctor.path import data_path
from mountd.doctor.trial import Trial, try_mount
from mountd.kernel.device import DEVICE
from mountd.kernel.mounting import mounts
from mountd.options import Options
from tests.support.catalog_server import CatalogProcess, catalog_process
from tests.support.plain_mount import PlainMount


def doctor(*arguments: str | Path, **env: str) -> tuple[int, dict[str, Any]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENSHELF_")}
    done = subprocess.run(
        [sys.executable, "-m", "openshelf", "doctor", *map(str, arguments), "--json"],
        env={**kept, **env}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """A folder on overlayfs."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(tmp_path / "merged")], check=True)
    yield tmp_path / "merged"
    subprocess.run(["umount", str(tmp_path / "merged")], check=True)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A small tmpfs with few inodes."""
    folder = tmp_path / "memory"
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=100,mode=0700", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogProcess]:
    with catalog_process(tmp_path_factory.mktemp("catalog") / "data") as running:
        yield running


def test_a_mount_on_trial_tells_what_the_kernel_grants_and_leaves_nothing(tmp_path: Path) -> None:
    trial = try_mount(tmp_path)
    assert trial.error == ""
    assert trial.minor >= 31
    (tmp_path / "source").mkdir()
    with PlainMount(tmp_path, tmp_path / "source") as mount:  # the same kernel, asked the long way
        assert (not trial.no_passthrough) is mount.state["passthrough"]
    assert not [each for each in mounts() if "openshelf-doctor" in str(each.path)]


def test_a_cache_on_overlayfs_costs_passthrough_and_materialised_releases(overlay: Path) -> None:
    trial = try_mount(overlay)
    assert "overlayfs" in trial.no_passthrough
    assert by_name(disk.checks(overlay))["cache disk"].verdict == "warn"
    code, found = doctor("--cache", overlay, OPENSHELF_TOKEN="")
    assert code == 1  # no token
    path = found["path"]
    assert (path["complete_releases"], path["complete_files"], path["others"]) == ("served", "served", "served")
    assert any("overlayfs" in why for why in path["why"])


@pytest.fixture
def device_for_all() -> Iterator[None]:
    """The device as udev makes it: open to all users."""
    before = DEVICE.stat().st_mode
    DEVICE.chmod(0o666)
    yield
    DEVICE.chmod(before)


@pytest.mark.usefixtures("device_for_all")
def test_without_root_the_way_is_served_and_the_capability_is_named(tmp_path: Path) -> None:
    script = (
        "import os, sys, json; from mountd.doctor import host, trial; from mountd.kernel.device import DEVICE;"
        "import mountd.kernel.mounting, mountd.cli.doctor;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); os.environ['TMPDIR'] = sys.argv[1];"
        "found = trial.try_mount(None);"
        "print(json.dumps([found.error, found.no_passthrough, *(c.verdict for c in host.checks(found)"
        " if c.name in ('CAP_SYS_ADMIN', 'fanotify'))]))"
    )
    tmp_path.chmod(0o777)
    for parent in (tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    error, no_passthrough, capability, fanotify = json.loads(done.stdout)
    assert (error, no_passthrough) == ("", "the process lacks CAP_SYS_ADMIN")
    assert (capability, fanotify) == ("warn", "warn")


@pytest.mark.parametrize(
    ("trial", "options", "facts", "expected"),
    [
        (Trial(), Options(), {}, ("materialised", "passthrough", "served")),
        (Trial(), Options(materialise="no"), {}, ("passthrough", "passthrough", "served")),
        (Trial(), Options(ledger="required"), {}, ("passthrough", "passthrough", "served")),
        (Trial(no_passthrough="the kernel has none"), Options(), {}, ("materialised", "served", "served")),
        (Trial(no_passthrough="none"), Options(), {"may_administer": False}, ("served", "served", "served")),
        (Trial(error="no device"), Options(), {}, ("libfuse", "libfuse", "libfuse")),
        (Trial(error="no device"), Options(), {"libfuse": False}, ("none", "none", "none")),
    ],
)
def test_the_way_follows_from_what_was_found(
    trial: Trial, options: Options, facts: dict[str, bool], expected: tuple[str, str, str]
) -> None:
    given = {"may_administer": True, "stacked_cache": False, "libfuse": True, **facts}
    way = data_path(trial, options, **given)
    assert (way.complete_releases, way.complete_files, way.others) == expected
    assert bool(way.why) is (expected != ("materialised", "passthrough", "served"))


def test_a_small_cache_in_memory_and_one_open_to_others_are_said(memory: Path, tmp_path: Path) -> None:
    found = by_name(disk.checks(memory))
    assert {name: check.verdict for name, check in found.items()} == {
        "cache folder": "ok", "cache disk": "warn", "free space": "warn", "free inodes": "warn",
    }  # fmt: skip
    assert found["cache disk"].found == "tmpfs"
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    assert by_name(disk.checks(shared))["cache folder"].verdict == "fail"
    assert by_name(disk.checks(tmp_path / "not" / "yet"))["cache folder"].verdict == "ok"


def test_the_catalog_is_asked_and_the_clock_compared_and_the_token_never_shown(shelf: CatalogProcess) -> None:
    token = shelf.token("node-1", "node")
    found = by_name(catalog.checks(shelf.url, token))
    assert {name: check.verdict for name, check in found.items()} == {"token": "ok", "catalog": "ok", "clock": "ok"}
    assert all(token not in check.found and token[-20:] not in check.found for check in found.values())
    late = by_name(catalog.checks(shelf.url, token, now=lambda: time.time() + 3600))["clock"]
    assert (late.verdict, late.found.partition(" s ")[2]) == ("warn", "ahead of the catalog's")
    assert by_name(catalog.checks(shelf.url, None))["token"].verdict == "fail"
    assert by_name(catalog.checks("http://127.0.0.1:9", token))["catalog"].verdict == "warn"
    other = token[:4] + token[5] + token[4] + token[6:] if token[4] != token[5] else token[:4] + "__" + token[6:]
    assert by_name(catalog.checks(shelf.url, other))["catalog"].verdict == "warn"


def test_a_mount_is_looked_at_and_its_cache_found(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with PlainMount(tmp_path, tmp_path / "source") as mount:
        found = by_name(mounted.checks(mount.mountpoint))
        assert (found["mount"].verdict, found["read-ahead"].verdict) == ("ok", "ok")
        score = Path(f"/proc/{mount.process.pid}/oom_score_adj").read_text().strip()
        assert found["memory shortage"].found == f"oom_score_adj of the supervisor {score}"
        assert found["memory shortage"].verdict == ("ok" if score == "-900" else "warn")
        code, told = doctor(mount.mountpoint, OPENSHELF_TOKEN="")
        checks = {check["name"]: check for check in told["checks"]}
        assert str(mount.cache) in checks["cache folder"]["found"]
        assert code == 1
        assert checks["token"]["verdict"] == "fail"
        assert all(check["fix"] for check in told["checks"] if check["verdict"] != "ok")


def test_the_capability_is_read_from_the_right_bit(tmp_path: Path) -> None:
    status = tmp_path / "status"
    for mask, expected in (("0000000000200000", True), ("ffffffffffdfffff", False), ("0", False)):
        status.write_text(f"Name:\tx\nCapEff:\t{mask}\n")
        assert host.may_administer(status) is expected


@pytest.mark.parametrize(
    ("driver", "awake_ns", "verdict", "said"),
    [
        ("haltpoll", "0", "warn", "halt at once"),
        ("haltpoll", "200000", "ok", "halt after 200 µs"),
        ("intel_idle", None, "ok", "driver intel_idle"),
        (None, None, "ok", "nothing known about them"),
    ],
)
def test_virtual_processors_that_halt_at_once_are_said(
    tmp_path: Path, driver: str | None, awake_ns: str | None, verdict: str, said: str
) -> None:
    for path, content in (
        ("devices/system/cpu/cpuidle/current_driver", driver),
        ("module/haltpoll/parameters/guest_halt_poll_ns", awake_ns),
    ):
        if content is not None:
            (tmp_path / path).parent.mkdir(parents=True)
            (tmp_path / path).write_text(content + "\n")
    device = tmp_path / "cpu_dma_latency"
    found = host.idle_processors(tmp_path, device)
    assert (found.verdict, found.found) == (verdict, said)
    assert ("guest_halt_poll_ns" in found.fix and str(device) in found.fix) is (verdict == "warn")
    device.touch()
    found = host.idle_processors(tmp_path, device)
    assert (found.verdict, found.found) == ("ok", "kept within reach while many requests come")
