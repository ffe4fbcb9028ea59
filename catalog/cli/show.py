"""``openshelf show``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from catalog.cli.confirmations import confirmation_lines
from catalog.cli.connection import Json, Ref, open_client, release_lines
from catalog.client import Client, FileInfo, Forbidden, ReleaseInfo
from catalog.names import parse_release
from openshelf.console import emit_json
from openshelf.units import format_size

SHOWN_FILES = 10_000


def show(
    ref: Ref,
    report: Annotated[bool, typer.Option("--report", help="Print the review report (Markdown) instead.")] = False,
    as_json: Json = False,
) -> None:
    """Show a release: state, manifest digest, licence, tags, and up to 10,000 files. A tag may stand for the version.

    Of a withdrawn one, its owners and auditors see which nodes have carried that out and who still holds files.

    Examples:

    openshelf show datasets/belle/chat@1.0

    openshelf show datasets/belle/chat@latest --json

    openshelf show datasets/belle/chat@1.0 --report
    """
    name = parse_release(ref)
    with open_client() as client:
        release = client.release(name)
        if report:
            text = client.report(release.ref)
            if as_json:
                emit_json({"release": str(release.ref), "report": text})
            else:
                print(text, end="" if text.endswith("\n") else "\n")
            return
        files = _files(client, release)
        withdrawal = _withdrawal(client, release)
    if as_json:
        listed = [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in files or ()]
        told = {} if withdrawal is None else {"withdrawal": withdrawal}
        emit_json(release.to_json() | {"files": listed if files is not None else None} | told)
        return
    lines = release_lines(release)
    lines += [] if withdrawal is None else confirmation_lines(withdrawal)
    lines += [f"  {file.sha256}  {format_size(file.size):>9}  {file.path}" for file in files or ()]
    if files is not None and release.files > len(files):
        lines.append(f"  … and {release.files - len(files)} more")
    print("\n".join(lines))


def _withdrawal(client: Client, release: ReleaseInfo) -> dict[str, Any] | None:
    """How far a withdrawal has come, where the caller may know it."""
    if release.state != "withdrawn":
        return None
    try:
        return client.confirmations(release.ref)
    except Forbidden:
        return None


def _files(client: Client, release: ReleaseInfo) -> list[FileInfo] | None:
    """The files, or None when the release has none to show: not sealed, withdrawn, or not yet open to the caller."""
    if release.manifest_digest is None or release.state == "withdrawn":
        return None
    try:
        return client.files(release.ref, SHOWN_FILES)
    except Forbidden:
        return None
