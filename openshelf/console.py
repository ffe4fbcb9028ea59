"""Output: data on stdout, people's lines on stderr, JSON when asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """What a long step reports to."""

    def advance(self, amount: int) -> None:
        """Report that ``amount`` more units (bytes, rows) are done."""

    def describe(self, text: str) -> None:
        """Say what is being done now."""


class _Silent:
    def advance(self, amount: int) -> None:
        pass

    def describe(self, text: str) -> None:
        pass


SILENT: Progress = _Silent()


def emit_json(value: object) -> None:
    """Print ``value`` as one JSON document on stdout."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line for people on stderr."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: int | None, *, unit: str = "bytes", enabled: bool = True) -> Iterator[Progress]:
    """A progress bar on stderr when that is a terminal, else nothing. ``total`` in ``unit``s, None if unknown."""
    if not enabled or not sys.stderr.isatty():
        yield SILENT
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as RichProgress

    amounts: list[ProgressColumn] = (
        [DownloadColumn(binary_units=True), TransferSpeedColumn()] if unit == "bytes" else [MofNCompleteColumn()]
    )
    bar = RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        *amounts,
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(title, total=total)

        class _Bar:
            def advance(self, amount: int) -> None:
                bar.advance(task, amount)

            def describe(self, text: str) -> None:
                bar.update(task, description=text)

        yield _Bar()
