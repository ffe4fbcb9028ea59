"""``openshelf ingest``: corpora in, a sealed draft out."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from catalog.client import Client
from catalog.names import ReleaseRef, is_name, parse_collection
from compliance.licences import parse as parse_licence
from compliance.policy import Policy
from ingest.recipe import Licence, Recipe, load
from ingest.run import Outcome, Request
from ingest.run import ingest as run_ingest
from openshelf import settings
from openshelf.console import Progress, emit_json, progress, say
from openshelf.errors import UsageError
from openshelf.units import format_size


class _Terminal:
    """Progress bars and notes on stderr."""

    def stage(self, title: str, total: int | None) -> AbstractContextManager[Progress]:
        return progress(title, total)

    def note(self, text: str) -> None:
        say(text)


def ingest(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SRC…", help="Files and folders, read in the order given; a recipe may name them too."),
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="datasets/NS/NAME", help="The collection.")] = "",
    version: Annotated[str, typer.Option(help="The release's version, e.g. 1.0.")] = "",
    recipe: Annotated[Path | None, typer.Option(help="A recipe: one YAML file.")] = None,
    licence: Annotated[str | None, typer.Option(metavar="SPDX", help="The licence, an SPDX expression.")] = None,
    source_url: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Where the corpus comes from; may be repeated.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default one a core.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Clean, de-identify, deduplicate and shard a corpus, and seal it as a draft release.

    Reads JSONL, JSON, CSV, TSV, Parquet, text and Markdown, plain or as .gz and .zst. Without a recipe the defaults
    are used and kept with the run. The same command after an interruption goes on where it stopped.

    Examples:

      openshelf ingest chat.jsonl --to datasets/belle/chat --version 1.0 --licence Apache-2.0

      openshelf ingest corpus/ --to datasets/law/statutes --version 2026.11 --recipe law.yaml --json
    """
    request = _request(sources or [], to, version, recipe, licence, source_url or [], jobs)
    known = settings.load()
    with Client(known.catalog, known.require_token()) as client:
        outcome = run_ingest(request, client, _Terminal())
    if as_json:
        emit_json(outcome.to_json())
    else:
        _tell(outcome)
    if outcome.release is None:
        cut = ", ".join(outcome.truncated)
        say(
            f"openshelf: Incomplete, nothing was sealed: cut short or damaged is {cut}. Fetch it again whole"
            f" and run the same command; the rows that could be read are in {outcome.folder / 'release'}."
        )
        raise typer.Exit(1)


def _request(
    sources: list[Path],
    to: str,
    version: str,
    recipe_path: Path | None,
    licence: str | None,
    source_urls: list[str],
    jobs: int | None,
) -> Request:
    ref = _reference(to, version)
    recipe = load(recipe_path) if recipe_path else Recipe()
    update: dict[str, object] = {}
    if licence is not None:
        update["licence"] = Licence(expression=parse_licence(licence).expression)
    if source_urls:
        update["source_urls"] = source_urls
    if update:
        recipe = recipe.model_copy(update=update)
    home = recipe_path.parent if recipe_path else Path()
    if not sources:
        sources = [home / source for source in recipe.sources]
    if not sources:
        raise UsageError("no_source", "No source is given", "Name files or folders, or `sources` in the recipe.")
    beside = home / recipe.policy
    policy = Policy.load(beside if recipe_path and beside.is_file() else recipe.policy)
    return Request(tuple(sources), ref, recipe, policy, jobs or len(os.sched_getaffinity(0)), settings.load().data)


def _reference(to: str, version: str) -> ReleaseRef:
    if not to:
        raise UsageError("no_collection", "No collection is given", "Add --to datasets/NAMESPACE/NAME.")
    collection = parse_collection(to)
    if collection.folder != "datasets":
        raise UsageError("bad_collection", f"{to!r} is not a dataset", "ingest makes datasets: --to datasets/NS/NAME.")
    if not is_name(version):
        raise UsageError(
            "bad_version",
            f"{version!r} is not a version" if version else "No version is given",
            "Add --version with letters, digits, '.', '_', '-', e.g. --version 1.0.",
        )
    return ReleaseRef(collection, version)


def _tell(outcome: Outcome) -> None:
    account = outcome.account
    found = ", ".join(f"{entity} {count:,}" for entity, count in outcome.findings.items()) or "none"
    refused = ", ".join(f"{reason} {count:,}" for reason, count in account.rejected.items())
    state = outcome.release.state if outcome.release else "incomplete"
    digest = outcome.release.manifest_digest if outcome.release else None
    typer.echo(f"release     {outcome.ref}  ({state})")
    if digest:
        typer.echo(f"manifest    {digest}")
    typer.echo(
        f"rows        {account.rows_in:,} in = {account.rows_out:,} out + {account.rejected_rows:,} rejected"
        f" + {account.duplicates:,} duplicates"
    )
    if refused:
        typer.echo(f"rejected    {refused}")
    typer.echo(f"findings    {found}")
    typer.echo(f"files       {outcome.files:,}, {format_size(outcome.size_bytes)}, in {outcome.seconds:.1f} s")
    typer.echo(f"run         {outcome.run}  {outcome.folder}")
    if outcome.release and outcome.release.state == "sealed":
        typer.echo(f"next        openshelf submit {outcome.ref}")
