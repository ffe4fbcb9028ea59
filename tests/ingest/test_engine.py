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


def die_once_on_three(path: Path) -> str:
    if path.name == "3" and not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_is_done_once(jobs: int) -> None:
    assert sorted(run_tasks(square, range(9), jobs, str)) == [(number, number * number) for number in range(9)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_task_arrives_with_its_code_and_hint(jobs: int) -> None:
    with pytest.raises(OpenshelfError) as caught:
        list(run_tasks(fail_on_three, range(9), jobs, str))
    assert (caught.value.code, caught.value.message) == ("disk_full", DiskFull(Path("/somewhere")).message)
    assert "run the same command again" in caught.value.hint


def test_work_over_which_a_process_dies_twice_is_named() -> None:
    with pytest.raises(OpenshelfError) as caught:
        list(run_tasks(die_on_three, range(9), 2, "task {}".format))
    assert caught.value.code == "worker_killed"
    assert "died over task 3," in caught.value.line()


def test_a_process_that_dies_once_costs_nothing(tmp_path: Path) -> None:
    tasks = [tmp_path / str(number) for number in range(9)]
    assert sorted(run_tasks(die_once_on_three, tasks, 2, str)) == [(number, str(number)) for number in range(9)]
