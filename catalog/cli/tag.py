"""``openshelf tag``."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.cli.connection import Json, open_client, print_release
from catalog.names import is_name, parse_collection, parse_release
from openshelf.console import emit_json
from openshelf.errors import UsageError


def tag(
    target: Annotated[str, typer.Argument(metavar="REF", help="COLLECTION@VERSION; with --delete just COLLECTION.")],
    name: Annotated[str, typer.Argument(metavar="TAG", help="e.g. latest")],
    delete: Annotated[bool, typer.Option("--delete", help="Remove the tag from the collection.")] = False,
    as_json: Json = False,
) -> None:
    """Let a tag name a published release (it becomes a link in the mount), or remove it.

    Examples:

    openshelf tag datasets/belle/chat@1.0 latest

    openshelf tag --delete datasets/belle/chat latest
    """
    if not is_name(name):
        raise UsageError("bad_tag", f"{name!r} is not a tag", "Use letters, digits, '.', '_' and '-', 64 at most.")
    if delete:
        collection = parse_collection(target)
        with open_client() as client:
            client.untag(collection, name)
        if as_json:
            emit_json({"collection": str(collection), "tag": name, "deleted": True})
        return
    release = parse_release(target)
    with open_client() as client:
        print_release(client.tag(release, name), as_json)
