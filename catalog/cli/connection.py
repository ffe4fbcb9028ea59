"""What the catalog's commands share: their client, their options, and how a release is printed."""

from __future__ import annotations

from typing import Annotated

import typer

from catalog.client import Client, ReleaseInfo
from openshelf.console import emit_json
from openshelf.settings import load
from openshelf.units import format_size

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Ref = Annotated[str, typer.Argument(metavar="REF", help="COLLECTION@VERSION, e.g. datasets/belle/chat@1.0")]
CatalogKey = Annotated[
    str | None,
    typer.Option(
        "--catalog-key", metavar="SHA256", help="Fingerprint of the catalog's key; the token vouches for it otherwise."
    ),
]


def open_client() -> Client:
    """A client for the catalog and token of the settings; the token must be set."""
    settings = load()
    return Client(settings.catalog, settings.require_token())


def print_release(release: ReleaseInfo, as_json: bool) -> None:
    """Print a release as JSON, or as a few lines."""
    if as_json:
        emit_json(release.to_json())
        return
    print("\n".join(release_lines(release)))


def release_lines(release: ReleaseInfo) -> list[str]:
    """What people want to know of a release, one fact a line."""
    licence = release.licence or {}
    facts = {
        "state": release.state,
        "title": release.title,
        "reason": release.reason,
        "manifest": release.manifest_digest,
        "licence": licence.get("expression"),
        "tags": ", ".join(release.tags),
        "contents": f"{release.files} files, {format_size(release.size_bytes)}, {release.rows} rows",
        "uploader": release.uploader,
        "submitter": release.submitter,
        "approver": release.approver,
    }
    return [str(release.ref), *(f"  {name:<9} {value}" for name, value in facts.items() if value)]
