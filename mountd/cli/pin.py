"""``openshelf pin``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mountd.cli.cache_worker import carry_out
from openshelf.console import emit_json, say
from openshelf.errors import UsageError
from openshelf.units import format_size


def pin(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=Path, help="The folder that is mounted.")],
    references: Annotated[
        list[str] | None, typer.Argument(metavar="REF", help="COLLECTION@VERSION or @TAG, or a release's path.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Unpin the releases.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the pins as JSON.")] = False,
) -> None:
    """Keep releases in the node's cache: files of pinned releases are never evicted. Without REF, show the pins.

    A pin fetches nothing (openshelf warm does) and survives restarts. One that could not fit beside the other pins is
    refused. A withdrawn release goes all the same.

    Examples:

      openshelf pin /public datasets/belle/chat@1.0

      openshelf pin /public datasets/belle/chat@1.0 --remove

      openshelf pin /public --json
    """
    if remove and not references:
        raise UsageError("no_release", "--remove needs the releases to unpin", "See the pins: openshelf pin DIR")
    command = "pin" if references else "pins"
    outcome = carry_out(directory, command, "Pinning", references or (), remove=remove)
    if as_json:
        emit_json(outcome)
        return
    for line in _lines(outcome):
        print(line)
    if any(row["listed"] and row["cached_files"] < row["files"] for row in outcome["pins"]) and not remove:
        say("Bring what is missing: openshelf warm DIR REF")


def _lines(outcome: dict[str, Any]) -> list[str]:
    lines = []
    for row in outcome["pins"]:
        if row["listed"]:
            figures = (
                f"{row['cached_files']} of {row['files']} files, "
                f"{format_size(row['cached_bytes'])} of {format_size(row['size_bytes'])} cached"
            )
        else:
            figures = "no longer listed here"
        lines.append(f"{row['release']}  {figures}")
    room = f"{format_size(outcome['pinned_bytes'])} of {format_size(outcome['available_bytes'])}"
    return [*lines, f"{len(outcome['pins'])} pinned, {room} when complete"]
