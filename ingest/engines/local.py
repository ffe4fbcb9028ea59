"""The local engine: a pool of processes, or this process alone for small work."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """A worker process died twice over the same work: for want of memory, or because of a file that breaks a reader."""

    def __init__(self, title: str) -> None:
        super().__init__(
            "worker_killed",
            f"A worker process died over {title}, most likely because memory ran out or the file is damaged",
            "Look at that file, or free memory, and run the same command again: finished parts are kept.",
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


def run_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int, title: Callable[[Task], str]
) -> Iterator[tuple[int, Result]]:
    """Carry out ``function`` for each of ``tasks`` and give (number of the task, result) as they finish.

    ``function`` must be a module-level function. Processes are started fresh (spawn): Hyperscan's databases and
    Arrow's threads do not survive a fork. An error of a task is raised here, after the tasks in flight. When a process
    dies, the tasks that were in flight are tried once more, one at a time, and the work goes on; the one over which a
    process dies again ends the run with :class:`WorkerKilled`, which calls it by ``title``.
    """
    if jobs <= 1 or len(tasks) <= 1:
        for number, task in enumerate(tasks):
            yield number, function(task)
        return
    left = dict(enumerate(tasks))
    workers = min(jobs, len(tasks))
    while left:
        begun: list[int] = []
        try:
            for number, result in _in_flight(function, left, workers, begun):
                del left[number]
                yield number, result
        except BrokenProcessPool:
            for number in begun:
                if number in left:
                    yield number, _alone(function, left.pop(number), title)


def _alone(function: Callable[[Task], Result], task: Task, title: Callable[[Task], str]) -> Result:
    try:
        ((_, result),) = _in_flight(function, {0: task}, 1, [])
    except BrokenProcessPool as error:
        raise WorkerKilled(title(task)) from error
    return result


def _in_flight(
    function: Callable[[Task], Result], tasks: Mapping[int, Task], workers: int, begun: list[int]
) -> Iterator[tuple[int, Result]]:
    """One pool's work on ``tasks``; the numbers of those handed to a process are appended to ``begun``."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent, initargs=(os.getpid(),))
    running: dict[Future[Result | _Failure], int] = {}
    upcoming = iter(list(tasks.items()))
    try:
        while True:
            while len(running) < workers * _AHEAD and (item := next(upcoming, None)) is not None:
                begun.append(item[0])
                running[pool.submit(_attempt, function, item[1])] = item[0]
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                number = running.pop(future)
                result = future.result()
                if isinstance(result, _Failure):
                    raise result.to_error()
                yield number, result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
