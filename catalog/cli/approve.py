"""``openshelf approve``."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.cli.connection import Json, Ref, contents, open_client, print_release
from catalog.client import ReleaseInfo
from catalog.names import is_digest, parse_release
from openshelf.console import say
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

    The approval is of one manifest: what is approved is shown, and nothing else can be published under it.

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
        release = client.release(name)
        seen = digest or release.manifest_digest
        say(_approving(release, seen))
        print_release(client.approve(name, note, seen), as_json)


def _approving(release: ReleaseInfo, digest: str | None) -> str:
    licence = (release.licence or {}).get("expression", "none")
    return f"Approving {release.ref}: manifest {digest}, {contents(release)}, licence {licence}, by {release.uploader}."
