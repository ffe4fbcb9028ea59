"""``openshelf usage``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import typer

from catalog.cli.confirmations import confirmation_lines
from catalog.cli.connection import Json, open_client
from catalog.client import Client
from catalog.names import parse_collection, parse_release
from openshelf.console import emit_json, say
from openshelf.errors import UsageError
from openshelf.units import format_size

By = Literal["job", "user", "release", "node"]
_AGO = re.compile(r"(\d{1,5})([hdw])")
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
"""No record is older."""
_HOURS = {"h": 1, "d": 24, "w": 168}


def usage(
    of: Annotated[
        str | None, typer.Argument(metavar="[REF|COLLECTION]", help="Of this release or collection only.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Such as 2026-01-31, 12h, 7d or 4w. Default: ever.")
    ] = None,
    by: Annotated[By | None, typer.Option("--by", help="Take records together by job, user, release or node.")] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Of this pod, Slurm step or unit.")] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="On this node.")] = None,
    withdrawal: Annotated[
        bool, typer.Option("--withdrawal", help="Show which nodes have carried out the withdrawal of REF instead.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Lines at most.")] = 1000,
    as_json: Json = False,
) -> None:
    """Show which job opened which release on which node, the newest first; nodes report within a minute or two.

    Jobs are told by control groups: Kubernetes pods, Slurm steps, systemd units. What a job only claims, in variables
    of its environment, is marked so. Bytes are the sizes of the files opened, not what was read of them.

    Examples:

      openshelf usage datasets/belle/chat --since 7d

      openshelf usage --by job --since 2026-01-31

      openshelf usage --withdrawal datasets/belle/chat@1.0
    """
    if withdrawal:
        _show_withdrawal(of, as_json)
        return
    wanted = _wanted(of, since, job, node)
    with open_client() as client:
        if by is None:
            _show_records(client, wanted, limit, as_json)
        else:
            _show_groups(client, wanted, by, limit, as_json)


def _wanted(of: str | None, since: str | None, job: str | None, node: str | None) -> dict[str, str | int]:
    wanted: dict[str, str | int] = {}
    if of is not None and "@" in of:
        wanted["release"] = str(parse_release(of))
    elif of is not None:
        wanted["collection"] = str(parse_collection(of))
    if since is not None:
        wanted["since"] = _moment(since)
    if job is not None:
        wanted["job"] = job
    if node is not None:
        wanted["node"] = node
    return wanted


def _moment(text: str) -> str:
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            moment = datetime.now(UTC) - timedelta(hours=int(ago.group(1)) * _HOURS[ago.group(2)])
        else:
            given = datetime.fromisoformat(text)
            moment = (given if given.tzinfo else given.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            "bad_time", f"{text[:80]!r} is not a time", "Write it like 2026-01-31, 2026-01-31T12:00:00Z, 12h, 7d or 4w."
        ) from error
    return max(moment, _FIRST).strftime("%Y-%m-%dT%H:%M:%SZ")


def _show_records(client: Client, wanted: dict[str, str | int], limit: int, as_json: bool) -> None:
    found = client.usage(wanted, limit)
    if as_json:
        emit_json({"records": found})
        return
    rows = [
        (
            str(each["last"]),
            str(each["node"]),
            _job(each["job"]),
            str(each["uid"]),
            str(each["opens"]),
            _at_least(each, each["files"]),
            _at_least(each, format_size(each["bytes_declared"])),
            str(each["release"]),
        )
        for each in found
    ]
    _print_table(("last open", "node", "job", "uid", "opens", "files", "bytes", "release"), rows)


def _show_groups(client: Client, wanted: dict[str, str | int], by: By, limit: int, as_json: bool) -> None:
    found = client.usage_groups(wanted, by, min(limit, 1000))
    if as_json:
        emit_json(found)
        return
    rows = [
        (
            str(each["key"]),
            str(each["last"]),
            str(each["nodes"]),
            str(each["releases"]),
            str(each["opens"]),
            _at_least(each, each["files"]),
            _at_least(each, format_size(each["bytes_declared"])),
        )
        for each in found["groups"]
    ]
    _print_table((by, "last open", "nodes", "releases", "opens", "files", "bytes"), rows)
    if found["more"]:
        say("There are more; narrow it with --since, --job or --node.")
    if found["unrecorded"]:
        say(f"warning: {found['unrecorded']} opens on all nodes are known to be missing from these records.")


def _job(job: dict[str, Any]) -> str:
    """A job for people; what it claims stands in brackets."""
    name = f"{job['kind']}:{job['name']}" if job["name"] else str(job["kind"])
    claimed = job.get("claimed") or {}
    return name + (f" (claims {', '.join(f'{key}={value}' for key, value in claimed.items())})" if claimed else "")


def _at_least(each: dict[str, Any], value: object) -> str:
    return str(value) if each["exact"] else f"≥ {value}"


def _print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        say("Nothing was reported.")
        return
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _show_withdrawal(of: str | None, as_json: bool) -> None:
    if of is None:
        raise UsageError("no_release", "No release is named", "Write: openshelf usage --withdrawal COLLECTION@VERSION")
    with open_client() as client:
        found = client.confirmations(parse_release(of))
    if as_json:
        emit_json(found)
        return
    print("\n".join(confirmation_lines(found)))
