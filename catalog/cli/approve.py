"""``openshelf approve``."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.cli.connection import Json, Ref, open_client, print_release
from catalog.names import parse_release


def approve(
    ref: Ref,
    note: Annotated[str, typer.Option("--note", help="Kept in the ledger.")] = "",
    as_json: Json = False,
) -> None:
    """Approve a submitted release. Auditors do this, never for what they uploaded or submitted themselves.

    Example: openshelf approve datasets/belle/chat@1.0 --note "read the report"
    """
    release = parse_release(ref)
    with open_client() as client:
        print_release(client.approve(release, note), as_json)
