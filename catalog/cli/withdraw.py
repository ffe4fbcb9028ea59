"""``openshelf withdraw``."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.cli.confirmations import NotCarriedOut, confirmation_lines, wait_until_carried_out
from catalog.cli.connection import Json, Ref, open_client, print_release, release_lines
from catalog.names import REASON_CODE_FORM, is_reason_code, parse_release
from openshelf.console import emit_json
from openshelf.errors import UsageError


def withdraw(
    ref: Ref,
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="CODE", help="A short code: personal_data, licence, court_order, takedown, …"),
    ],
    note: Annotated[str, typer.Option("--note", help="Kept in the ledger.")] = "",
    legal_basis: Annotated[str, typer.Option("--legal-basis", help="Kept in the ledger.")] = "",
    revoke: Annotated[
        bool, typer.Option("--revoke", help="End files that jobs have open too, whatever the nodes' own settings say.")
    ] = False,
    wait: Annotated[
        int | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=1,
            max=86_400,
            help="Wait so long until every node has confirmed and no job holds a file; exit code 1 if it takes longer.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Take a published release down for good: it and its tags vanish from every node. Its version is never used again.

    Jobs that have files of it open go on reading them, unless --revoke is given or the node is set to revoke.
    `openshelf usage --withdrawal REF` shows which nodes have carried it out and who still holds files.

    Examples:

      openshelf withdraw datasets/belle/chat@1.0 --reason takedown --note "asked by the owner"

      openshelf withdraw datasets/belle/chat@1.0 --reason personal_data --revoke --wait 60
    """
    release = parse_release(ref)
    if not is_reason_code(reason):
        raise UsageError(
            "bad_reason_code",
            f"{reason[:80]!r} is not a reason's code",
            f"Write {REASON_CODE_FORM}; words go into --note.",
        )
    with open_client() as client:
        withdrawn = client.withdraw(release, reason, note, legal_basis, revoke=revoke)
        if wait is None:
            print_release(withdrawn, as_json)
            return
        try:
            found = wait_until_carried_out(client, release, wait, show=not as_json)
        except NotCarriedOut:
            print_release(withdrawn, as_json)
            raise
    if as_json:
        emit_json(withdrawn.to_json() | {"withdrawal": found})
        return
    print("\n".join([*release_lines(withdrawn), *confirmation_lines(found)]))
