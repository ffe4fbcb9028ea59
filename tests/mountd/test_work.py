"""Commands that the worker carries out, through its socket."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mountd import control
from tests.support.plain_mount import PlainMount


def plain_source(base: Path) -> Path:
    source = base / "source"
    source.mkdir()
    (source / "a.txt").write_bytes(b"a")
    return source


def test_reports_come_one_by_one_and_a_killed_worker_is_followed_by_the_next(tmp_path):
    with PlainMount(tmp_path, plain_source(tmp_path)) as mount:
        reports = list(control.order(mount.mountpoint, "count", to=3))
        assert [report["number"] for report in reports[:-1]] == [0, 1, 2]
        first = reports[-1]["worker_pid"]
        assert first == mount.status()["worker_pid"]
        os.kill(first, signal.SIGKILL)
        *_, last = control.order(mount.mountpoint, "count", to=0)  # waits in the queue for the next worker
        assert last["worker_pid"] != first


def test_an_unknown_command_is_named_an_error(tmp_path):
    with PlainMount(tmp_path, plain_source(tmp_path)) as mount:
        with pytest.raises(control.ControlError, match="no such command"):
            list(control.order(mount.mountpoint, "dance"))
        with pytest.raises(control.ControlError, match="It failed: KeyError"):
            list(control.order(mount.mountpoint, "count"))


def test_no_mount_is_an_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(control.NotMounted, match="is not an openshelf mount"):
        list(control.order(tmp_path, "count", to=1))
