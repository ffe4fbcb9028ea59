"""``openshelf approve``."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.cli.connection import Json, Ref, open_client, print_release
from catalog.names import is_digest, parse_release
from openshelf.errors import UsageError


def approve(
    ref: Ref,
    note: Annotated[str, typer.Option("--note", help="Kept in the ledger.")] = "",
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest",
            metavar="SHA256",
            help="The manifest you reviewed, as `show` prints it; any other is refused. Default: the one there now.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Approve a submitted release. Auditors do this, never for what they uploaded or submitted themselves.

    The approval is of one manifest, the one that is printed; with any other files it must be approved again.

    Examples:

    openshelf approve datasets/belle/chat@1.0 --note "read the report"

    openshelf approve datasets/belle/chat@1.0 --digest 5f0c…
    """
    name = parse_release(ref)
    if digest is not None and not is_digest(digest):
        raise UsageError(
            "bad_digest", "--digest is not a SHA-256", "Copy all 64 hexadecimal digits that `openshelf show` prints."
        )
    with open_client() as client:
        seen = digest or client.release(name).manifest_digest
        print_release(client.approve(name, note, seen), as_json)
