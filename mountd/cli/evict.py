"""``openshelf evict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mountd.cli.cache_worker import carry_out
from openshelf.console import emit_json
from openshelf.errors import UsageError
from openshelf.units import format_size


def evict(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=Path, help="The folder that is mounted.")],
    references: Annotated[
        list[str] | None, typer.Argument(metavar="REF", help="COLLECTION@VERSION or @TAG, or a release's path.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Of all releases that are not pinned.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Remove what the node's cache holds of releases; it is fetched again when it is read.

    Files that are open stay, and so do those that a pinned release or one served from a tree of links shares.

    Examples:

      openshelf evict /public datasets/belle/chat@1.0

      openshelf evict /public --all
    """
    if bool(references) == everything:
        raise UsageError("no_release", "Name the releases to evict, or give --all", "See: openshelf cache ls DIR")
    outcome = carry_out(directory, "evict", "Evicting", references or (), all=everything)
    if as_json:
        emit_json(outcome)
        return
    kept = [f"{outcome[key]} {why}" for key, why in (("open", "open"), ("shared", "needed by others")) if outcome[key]]
    stay = f"; stay: {', '.join(kept)}" if kept else ""
    print(f"{outcome['files']} files, {format_size(outcome['bytes'])} removed{stay}")
