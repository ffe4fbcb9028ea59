"""``openshelf pull``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catalog.cli.connection import CatalogKey, Json, Ref
from catalog.client import Client
from catalog.client.pulling import pull as pull_release
from catalog.client.trusted import believe, published_release
from catalog.names import parse_release
from openshelf.console import emit_json, progress, say
from openshelf.settings import load
from openshelf.units import format_size


def pull(
    ref: Ref,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or one that an earlier pull began.")],
    catalog_key: CatalogKey = None,
    as_json: Json = False,
) -> None:
    """Download a published release into a folder, every byte verified against its signed manifest.

    An interrupted pull goes on where it stopped when the same command runs again.

    Example: openshelf pull datasets/belle/chat@1.0 ./chat
    """
    parse_release(ref)
    settings = load()
    token = settings.require_token()
    with Client(settings.catalog, token) as client:
        release = published_release(client, ref, believe(client, token, catalog_key))
        total = release.document.get("totals", {}).get("size_bytes")
        with progress(f"Pulling {release.ref}", total) as bar:
            done = pull_release(client, release, folder, bar)
    if as_json:
        emit_json(
            {
                "release": str(release.ref),
                "manifest_digest": release.manifest_digest,
                "folder": str(folder),
                "files": done.files,
                "size_bytes": done.size_bytes,
                "fetched_bytes": done.fetched_bytes,
                "seconds": round(done.seconds, 3),
            }
        )
    else:
        say(f"{release.ref}: {done.files} files, {format_size(done.size_bytes)}, verified, in {folder}.")
