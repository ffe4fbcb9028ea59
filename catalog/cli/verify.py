"""``openshelf verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from catalog.cli.connection import CatalogKey, Json
from catalog.client import Client
from catalog.client.trusted import TrustedRelease, believe, published_release
from catalog.client.verifying import Verified, read_record, verify_folder, verify_store
from catalog.names import parse_release
from openshelf.console import emit_json, progress, say
from openshelf.errors import OpenshelfError
from openshelf.settings import load
from openshelf.units import format_size

NAMED_FILES = 10


def verify(
    target: Annotated[
        str, typer.Argument(metavar="DIR|REF", help="The folder of a mounted or pulled release, or COLLECTION@VERSION.")
    ],
    catalog_key: CatalogKey = None,
    as_json: Json = False,
) -> None:
    """Compare every file of a release with its signed manifest: in a folder by SHA-256, or, for a release's name,
    what the catalog delivers by the BLAKE3 of every chunk. Exit code 1 when anything is wrong.

    Examples:

    openshelf verify /public/datasets/belle/chat/1.0

    openshelf verify datasets/belle/chat@1.0 --json
    """
    folder = Path(target)
    is_folder = folder.is_dir()
    if not is_folder:
        parse_release(target)
    settings = load()
    token = settings.require_token()
    with Client(settings.catalog, token) as client:
        key = believe(client, token, catalog_key)
        release = read_record(folder, key) if is_folder else published_release(client, target, key)
        with progress(f"Verifying {target}", _size_bytes(release)) as bar:
            found = verify_folder(client, folder, release, bar) if is_folder else verify_store(client, release, bar)
    _report(target, found, as_json)


def _size_bytes(release: TrustedRelease) -> int | None:
    size = release.document.get("totals", {}).get("size_bytes")
    return size if isinstance(size, int) else None


def _report(target: str, found: Verified, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "release": found.release,
                "manifest_digest": found.manifest_digest,
                "files": found.files,
                "size_bytes": found.size_bytes,
                "ok": not found.bad,
                "bad": [{"path": path, "problem": problem} for path, problem in sorted(found.bad.items())],
            }
        )
    if found.bad:
        named = [f"{path!a} {problem}" for path, problem in sorted(found.bad.items())[:NAMED_FILES]]
        more = len(found.bad) - len(named)
        raise OpenshelfError(
            "verify_failed",
            f"{target} is not {found.release}: {'; '.join(named)}{f'; and {more} more' if more else ''}",
            "Pull it again, or tell the operator when it is a mount.",
        )
    if not as_json:
        say(f"{found.release}: {found.files} files, {format_size(found.size_bytes)}, all as signed.")
