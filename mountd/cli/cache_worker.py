"""What ``openshelf pin``, ``evict`` and ``cache`` have in common: an order to the worker, its progress and outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mountd import control
from mountd.cli.warm_worker import MountWorker
from mountd.warm.references import parse_reference
from openshelf.console import progress
from openshelf.errors import OpenshelfError


def carry_out(
    directory: Path, command: str, title: str, references: Sequence[str] = (), **arguments: object
) -> dict[str, Any]:
    """Have the worker behind ``directory`` carry out a command; its outcome. Raises OpenshelfError."""
    worker = MountWorker(directory)
    releases = [str(parse_reference(each, worker.names)) for each in references]
    reports = control.order(worker.point, command, releases=releases, **arguments)
    first = next(reports, None)
    last = first if first is None or "done" not in first else _followed(first, reports, title)
    if last is None or "done" in last:
        raise OpenshelfError(
            "worker_replaced", f"The worker of {worker.point} was replaced before it was done", "Run it again."
        )
    return last


def _followed(first: dict[str, Any], reports: Iterator[dict[str, Any]], title: str) -> dict[str, Any]:
    """The last report; until then the progress is shown."""
    last, done = first, 0
    with progress(title, first["total"], unit=first["unit"]) as bar:
        while "done" in last:
            bar.advance(last["done"] - done)
            done = last["done"]
            following = next(reports, None)
            if following is None:
                break
            last = following
    return last
