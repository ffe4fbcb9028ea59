"""``openshelf status``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mountd import control
from mountd.kernel.mounting import canonical
from openshelf.console import emit_json
from openshelf.units import format_size


def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=Path, help="The folder that is mounted.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (as always when not on a terminal).")] = False,
) -> None:
    """Show the state of a mount; answered even while its worker is being replaced, without touching the mount.

    Examples:

      openshelf status /public

      openshelf status /public --json | jq .feed_serial
    """
    state = control.ask(canonical(directory), "status")
    if as_json or not sys.stdout.isatty():
        emit_json(state)
        return
    for line in _lines(state):
        print(line)


_ELSEWHERE = frozenset(
    {
        "mountpoint", "cache", "catalog", "supervisor_pid", "worker_pid", "transport", "passthrough", "stale", "online",
        "passthrough_reason", "uptime_s", "restarts", "takeovers", "worker_silent_s", "waiting", "requests", "lookups",
        "opens_passthrough", "opens_served", "reads_served", "bytes_served", "read_errors", "resent", "cache_bytes",
        "cache_limit_bytes", "feed_epoch", "feed_serial", "reason", "releases", "open_files", "worker_anonymous_bytes",
        "memory_limit_bytes",
    }
)  # fmt: skip
"""Fields that have a place of their own; all others are shown by group."""
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "network": ("fetch_", "bytes_", "chunks_", "breaker_", "reads_timed_out", "proxies_", "sources_"),
    "disk": ("cache_", "evictions", "files_", "disks_", "pin"),
    "materialised": ("releases_materialised", "opens_"),
    "ledger": ("ledger_", "usage_"),
    "warm": ("warm",),
}
"""Beginnings of names that belong together; a name goes to the first group that has one of its beginnings."""
_HIDDEN = ("chunk_latency_",)
"""For machines only: the steps of a histogram."""


def _lines(state: dict[str, Any]) -> list[str]:
    """The state for people."""
    health = "online" if state["online"] else f"offline ({state['reason'] or 'the catalog cannot be reached'})"
    if state["online"] and state["reason"]:
        health += f" ({state['reason']})"
    if state["stale"]:
        health += ", stale"
    how = "passthrough" if state["passthrough"] else f"no passthrough: {state['passthrough_reason']}"
    worker = state["worker_pid"] or "none, being replaced"
    waiting = "" if state["waiting"] is None else f", {state['waiting']} requests waiting"
    return [
        f"{state['mountpoint']}  up {state['uptime_s']:.0f} s, {health}",
        f"  catalog       {state['catalog']}, feed position {state['feed_epoch']}.{state['feed_serial']}",
        f"  releases      {state['releases']}",
        f"  transport     {state['transport']}, {how}",
        f"  processes     supervisor {state['supervisor_pid'] or 'gone'}, worker {worker}, "
        f"{state['restarts']} restarts, {state['takeovers']} take-overs",
        f"  memory        {format_size(state['worker_anonymous_bytes'])} of {format_size(state['memory_limit_bytes'])}",
        f"  opens         {state['opens_passthrough']} passthrough, {state['opens_served']} served, "
        f"{state['open_files']} open now",
        f"  reads         {state['reads_served']} served ({format_size(state['bytes_served'])}), "
        f"{state['read_errors']} failed{waiting}",
        f"  cache         {format_size(state['cache_bytes'])} of {format_size(state['cache_limit_bytes'])} in "
        f"{state['cache']}",
        *_grouped({name: value for name, value in state.items() if name not in _ELSEWHERE}),
    ]


def _grouped(counters: Mapping[str, Any]) -> list[str]:
    """What the parts of the data side count, a line for each group."""
    groups: dict[str, list[str]] = {}
    for name, value in sorted(counters.items()):
        if name.startswith(_HIDDEN):
            continue
        group = next((title for title, starts in _GROUPS.items() if name.startswith(starts)), "other")
        words = name.removesuffix("_bytes").removeprefix("bytes_").removeprefix(f"{group}_").replace("_", " ")
        amount = format_size(value) if name.endswith("_bytes") or name.startswith("bytes_") else value
        groups.setdefault(group, []).append(f"{words} {amount}")
    return [f"  {title:<13} {', '.join(groups[title])}" for title in (*_GROUPS, "other") if title in groups]
