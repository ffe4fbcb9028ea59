"""Bandwidth by time of day."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mountd.warm.windows import parse, rate_at
from openshelf.errors import UsageError
from tests.support.real_mount import OPENSHELF

M, G = 1 << 20, 1 << 30


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-04T{text}")


@pytest.mark.parametrize(
    ("text", "when", "rate"),
    [
        ("", "12:00", None),
        ("1G", "12:00", G),
        ("0", "12:00", 0),
        ("08:00-20:00=200M,1G", "07:59:59", G),
        ("08:00-20:00=200M,1G", "08:00", 200 * M),
        ("08:00-20:00=200M,1G", "19:59:59", 200 * M),
        ("08:00-20:00=200M,1G", "20:00", G),
        ("1G, 08:00-20:00=200M", "12:00", 200 * M),
        ("8:00 - 20:00 = 200M", "21:00", None),
        ("22:00-06:00=0", "23:30", 0),
        ("22:00-06:00=0", "05:59", 0),
        ("22:00-06:00=0", "06:00", None),
        ("22:00-24:00=5M", "23:59", 5 * M),
        ("22:00-24:00=5M", "00:00", None),
        ("00:00-24:00=5M", "00:00", 5 * M),
        ("22:00-00:00=5M", "23:59", 5 * M),
        ("08:00-12:00=1M,10:00-14:00=2M", "11:00", M),
        ("08:00-12:00=1M,10:00-14:00=2M", "12:00", 2 * M),
    ],
)
def test_the_rate_is_that_of_the_first_window_which_holds(text: str, when: str, rate: int | None) -> None:
    assert rate_at(text, at(when)) == rate
    assert rate_at(parse(text), at(when)) == rate


@pytest.mark.parametrize(
    "part",
    ["fast", "08:00=1M", "08:00-20:00=", "25:00-26:00=1M", "08:60-09:00=1M", "24:00-06:00=1M", "08:00-08:00=1M",
     "08:00-20:00=1X", "2M"],
)  # fmt: skip
def test_a_wrong_part_is_named(part: str) -> None:
    with pytest.raises(UsageError, match=f"'{part}'"):
        parse(f"1M,{part}")


def test_a_time_with_a_zone_is_taken_as_the_nodes_local_time() -> None:
    local = datetime(2026, 3, 4, 8, 30).astimezone()
    assert rate_at("08:00-09:00=7,1", local.astimezone(UTC)) == 7


def test_a_mount_with_a_wrong_bandwidth_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    command = [OPENSHELF, "mount", str(tmp_path / "m"), "--cache", str(tmp_path / "c"), "--cache-size", "1G"]
    done = subprocess.run([*command, "--bandwidth", "8-20=1M"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'8-20=1M'" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert list(tmp_path.iterdir()) == []
