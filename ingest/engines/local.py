"""The local engine: a pool of processes, or this process alone for small work."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TypeVar

from openshelf.errors import OpenshelfError

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
"""Tasks in flight for each process: one worked on, one waiting. It bounds memory and what a crash repeats."""
_PARENT_CHECK_S = 1.0


class WorkerKilled(OpenshelfError):
    """The operating system ended a worker process, most likely for want of memory."""

    def __init__(self) -> None:
        super().__init__(
            "worker_killed",
            "A worker process was killed, most likely because memory ran out",
            "Run the same command again with a smaller --jobs: finished parts are kept.",
        )


@dataclass(frozen=True, slots=True)
class _Failure:
    """An :class:`OpenshelfError` of a worker on its way here: exceptions with arguments of their own do not pickle."""

    code: str
    message: str
    hint: str
    exit_code: int

    def to_error(self) -> OpenshelfError:
        error = OpenshelfError(self.code, self.message, self.hint)
        error.exit_code = self.exit_code
        return error


def _attempt(function: Callable[[Task], Result], task: Task) -> Result | _Failure:
    try:
        return function(task)
    except OpenshelfError as error:
        return _Failure(error.code, error.message, error.hint, error.exit_code)


def _end_with_parent(parent: int) -> None:
    """A killed parent must not leave workers behind that still write."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def run_tasks(function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Result]]:
    """Carry out ``function`` for each of ``tasks`` and give (number of the task, result) as they finish.

    ``function`` must be a module-level function. Processes are started fresh (spawn): Hyperscan's databases and
    Arrow's threads do not survive a fork. An error of a task is raised here, after the tasks in flight.
    """
    if jobs <= 1 or len(tasks) <= 1:
        for number, task in enumerate(tasks):
            yield number, function(task)
        return
    context = multiprocessing.get_context("spawn")
    workers = min(jobs, len(tasks))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent, initargs=(os.getpid(),))
    try:
        yield from _in_flight(pool, function, tasks, workers * _AHEAD)
    except BrokenProcessPool as error:
        raise WorkerKilled from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _in_flight(
    pool: ProcessPoolExecutor, function: Callable[[Task], Result], tasks: Sequence[Task], most: int
) -> Iterator[tuple[int, Result]]:
    running: dict[Future[Result | _Failure], int] = {}
    upcoming = iter(enumerate(tasks))
    while True:
        while len(running) < most and (task := next(upcoming, None)) is not None:
            running[pool.submit(_attempt, function, task[1])] = task[0]
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            number = running.pop(future)
            result = future.result()
            if isinstance(result, _Failure):
                raise result.to_error()
            yield number, result
