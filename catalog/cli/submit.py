"""``openshelf submit``."""

from __future__ import annotations

from catalog.cli.connection import Json, Ref, open_client, print_release
from catalog.names import parse_release


def submit(ref: Ref, as_json: Json = False) -> None:
    """Ask for the review of a sealed draft. Its licence must be known.

    Example: openshelf submit datasets/belle/chat@1.0
    """
    release = parse_release(ref)
    with open_client() as client:
        print_release(client.submit(release), as_json)
