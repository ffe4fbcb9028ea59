"""``openshelf status``."""

from __future__ import annotations

import sys
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


def _lines(state: dict[str, Any]) -> list[str]:
    """The state for people."""
    health = "online" if state["online"] else f"offline ({state['reason'] or 'the catalog cannot be reached'})"
    if state["stale"]:
        health += ", stale"
    how = "passthrough" if state["passthrough"] else f"no passthrough: {state['passthrough_reason']}"
    worker = state["worker_pid"] or "none, being replaced"
    return [
        f"{state['mountpoint']}  up {state['uptime_s']:.0f} s, {health}",
        f"  catalog     {state['catalog']}, feed position {state['feed_epoch']}.{state['feed_serial']}",
        f"  releases    {state['releases']}",
        f"  transport   {state['transport']}, {how}",
        f"  processes   supervisor {state['supervisor_pid'] or 'gone'}, worker {worker}, {state['restarts']} restarts",
        f"  opens       {state['opens_passthrough']} passthrough, {state['opens_served']} served, "
        f"{state['open_files']} open now",
        f"  reads       {state['reads_served']} served ({format_size(state['bytes_served'])}), "
        f"{state['read_errors']} failed",
        f"  cache       {format_size(state['cache_bytes'])} of {format_size(state['cache_limit_bytes'])} in "
        f"{state['cache']}",
    ]
