"""``openshelf cache ls`` and ``openshelf cache verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mountd.cli.cache_worker import carry_out
from openshelf.console import emit_json
from openshelf.units import format_size

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Directory = Annotated[Path, typer.Argument(metavar="DIR", parser=Path, help="The folder that is mounted.")]
_References = Annotated[
    list[str] | None, typer.Argument(metavar="REF", help="COLLECTION@VERSION or @TAG, or a release's path.")
]


@app.callback()
def cache() -> None:
    """See and check what a node's cache holds."""


@app.command("ls")
def list_releases(
    directory: _Directory,
    references: _References = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show per release how much of it is in the node's cache, how it is served now, and whether it is pinned.

    Examples:

      openshelf cache ls /public

      openshelf cache ls /public datasets/belle/chat@latest --json
    """
    outcome = carry_out(directory, "cache-ls", "Counting", references or ())
    if as_json:
        emit_json(outcome)
        return
    for line in _lines(outcome):
        print(line)


def _lines(outcome: dict[str, Any]) -> list[str]:
    table = [("RELEASE", "FILES", "BYTES", "SERVED", "")]
    table += [
        (
            row["release"],
            f"{row['cached_files']}/{row['files']}",
            f"{format_size(row['cached_bytes'])}/{format_size(row['size_bytes'])}",
            row["tier"],
            "pinned" if row["pinned"] else "",
        )
        for row in outcome["releases"]
    ]
    widths = [max(len(line[column]) for line in table) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    files = f" of {outcome['limit_files']}" if outcome["limit_files"] else ""
    lines.append(
        f"{format_size(outcome['used_bytes'])} of {format_size(outcome['limit_bytes'])} used, "
        f"{outcome['used_files']}{files} files"
    )
    lines += [f"disk {disk['folder']} is out: {disk['out']}" for disk in outcome["disks"] if disk["out"]]
    return lines


@app.command("verify")
def verify(
    directory: _Directory,
    references: _References = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hash the complete files of the node's cache again; damaged ones are removed and fetched again when they are read.

    Exit code 1 when any was damaged. The daemon does the same by itself, slowly, once in 30 days.

    Examples:

      openshelf cache verify /public

      openshelf cache verify /public datasets/belle/chat@1.0 --json
    """
    outcome = carry_out(directory, "cache-verify", "Hashing", references or ())
    damaged = outcome["damaged"]
    if as_json:
        emit_json(outcome)
    else:
        for sha256 in damaged:
            print(f"damaged, removed: {sha256}")
        print(f"{outcome['files']} files, {format_size(outcome['bytes'])} hashed, {len(damaged)} damaged")
    if damaged:
        raise typer.Exit(1)
