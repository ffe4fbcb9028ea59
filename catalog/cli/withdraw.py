"""``openshelf withdraw``."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.cli.connection import Json, Ref, open_client, print_release
from catalog.names import parse_release


def withdraw(
    ref: Ref,
    reason: Annotated[str, typer.Option("--reason", metavar="CODE", help="A short code, e.g. takedown.")],
    note: Annotated[str, typer.Option("--note", help="Kept in the ledger.")] = "",
    legal_basis: Annotated[str, typer.Option("--legal-basis", help="Kept in the ledger.")] = "",
    as_json: Json = False,
) -> None:
    """Take a published release down for good: it and its tags vanish from every node. Its version is never used again.

    Example: openshelf withdraw datasets/belle/chat@1.0 --reason takedown --note "asked by the owner"
    """
    release = parse_release(ref)
    with open_client() as client:
        print_release(client.withdraw(release, reason, note, legal_basis), as_json)
