"""``openshelf store``: care for a catalog's data folder while it is stopped."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from catalog.cli.connection import Json
from catalog.restored import begin_epoch
from catalog.start import open_records
from openshelf.console import emit_json, say

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def store() -> None:
    """Care for a catalog's data folder while it is stopped."""


@app.command("restored")
def restored(
    data: Annotated[Path, typer.Option(help="The catalog's folder, with the backup put back.")],
    as_json: Json = False,
) -> None:
    """Begin a new epoch of the feed after a backup was put back, before the catalog is served again.

    Nodes refuse a feed that goes back. In a new epoch they take a snapshot and show what the catalog lists now. The
    ledger says that it happened and how many of its entries the copy lacks.

    Example: openshelf store restored --data /srv/openshelf
    """
    with open_records(data.expanduser().resolve()) as records:
        done = begin_epoch(records, datetime.now(UTC))
    if as_json:
        emit_json(asdict(done))
        return
    say(f"The feed goes on in epoch {done.epoch} (before: {done.epoch_before}) after serial {done.serial}.")
    if done.known_entries > done.entries:
        say(f"The ledger had {done.known_entries} entries; the copy has {done.entries}. The ledger says so.")
