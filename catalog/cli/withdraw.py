"""``openshelf withdraw``."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.cli.connection import Json, Ref, open_client, print_release
from catalog.names import REASON_CODE_FORM, is_reason_code, parse_release
from openshelf.errors import UsageError


def withdraw(
    ref: Ref,
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="CODE", help="A short code: personal_data, licence, court_order, takedown, …"),
    ],
    note: Annotated[str, typer.Option("--note", help="Kept in the ledger.")] = "",
    legal_basis: Annotated[str, typer.Option("--legal-basis", help="Kept in the ledger.")] = "",
    as_json: Json = False,
) -> None:
    """Take a published release down for good: it and its tags vanish from every node. Its version is never used again.

    Example: openshelf withdraw datasets/belle/chat@1.0 --reason takedown --note "asked by the owner"
    """
    release = parse_release(ref)
    if not is_reason_code(reason):
        raise UsageError(
            "bad_reason_code",
            f"{reason[:80]!r} is not a reason's code",
            f"Write {REASON_CODE_FORM}; words go into --note.",
        )
    with open_client() as client:
        print_release(client.withdraw(release, reason, note, legal_basis), as_json)
