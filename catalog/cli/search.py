"""``openshelf search``."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.cli.connection import Json, open_client
from openshelf.console import emit_json, say


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words, Chinese or English.")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many at most.")] = 50,
    as_json: Json = False,
) -> None:
    """Find collections by name, title and summary, best match first.

    Examples:

    openshelf search 对话

    openshelf search "poetry tang" --json
    """
    with open_client() as client:
        found = client.search(query, limit=limit)
    if as_json:
        emit_json({"collections": found})
        return
    for item in found:
        title = item.get("title")
        print(f"{item.get('collection')}{f'  {title}' if title else ''}")
    if not found:
        say("Nothing found.")
