"""``openshelf publish``."""

from __future__ import annotations

from catalog.cli.connection import Json, Ref, open_client, print_release
from catalog.names import parse_release


def publish(ref: Ref, as_json: Json = False) -> None:
    """Sign an approved release and announce it to every node.

    Example: openshelf publish datasets/belle/chat@1.0
    """
    release = parse_release(ref)
    with open_client() as client:
        print_release(client.publish(release), as_json)
