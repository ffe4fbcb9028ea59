from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ingest.durable import DiskFull
from ingest.engines.local import run_tasks
from openshelf.errors import OpenshelfError


def square(number: int) -> int:
    return number * number


def fail_on_three(number: int) -> int:
    if number == 3:
        raise DiskFull(Path("/somewhere"))
    return number


def die_on_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_is_done_once(jobs: int) -> None:
    assert sorted(run_tasks(square, range(9), jobs)) == [(number, number * number) for number in range(9)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_task_arrives_with_its_code_and_hint(jobs: int) -> None:
    with pytest.raises(OpenshelfError) as caught:
        list(run_tasks(fail_on_three, range(9), jobs))
    assert (caught.value.code, caught.value.message) == ("disk_full", DiskFull(Path("/somewhere")).message)
    assert "run the same command again" in caught.value.hint


def test_a_killed_worker_is_told_in_plain_words() -> None:
    with pytest.raises(OpenshelfError) as caught:
        list(run_tasks(die_on_three, range(9), 2))
    assert caught.value.code == "worker_killed"
