"""``openshelf reject``."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.cli.connection import Json, Ref, open_client, print_release
from catalog.names import parse_release


def reject(
    ref: Ref,
    reason: Annotated[str, typer.Option("--reason", help="What is wrong; the curator reads it.")],
    changes: Annotated[
        bool, typer.Option("--changes", help="Ask for changes: it becomes a draft again instead of rejected.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Reject a submitted release, or ask for changes. Its version may be ingested again.

    Examples:

    openshelf reject datasets/belle/chat@1.0 --reason "the licence has no evidence"

    openshelf reject datasets/belle/chat@1.0 --changes --reason "mask the plates too"
    """
    release = parse_release(ref)
    with open_client() as client:
        done = client.return_to_draft(release, reason) if changes else client.reject(release, reason)
        print_release(done, as_json)
