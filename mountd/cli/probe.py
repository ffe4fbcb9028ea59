"""``openshelf probe``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mountd import probing
from openshelf.console import emit_json

_WITHIN_S = 1.7
"""After this the answer is printed, the start of the program included; asking the daemon may add a little."""


def probe(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=Path, help="The folder that is mounted.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Say within two seconds whether a mount serves, also when it hangs, its worker is stopped, or nothing is there.

    Exit codes: 0 serves; 1 nothing is mounted there; 2 wrong usage; 3 hung (no answer in time); 4 serves, but something
    is not as it should be (offline, stale, the supervisor or the worker is missing or silent, the cache is in trouble);
    5 broken (mounted, but every access fails: the daemon is gone). No passthrough is no fault here; openshelf doctor
    tells of it.

    Examples:

      openshelf probe /public

      openshelf probe /public --json | jq -r .standing
    """
    found = probing.probe(directory, probing.time_left(_WITHIN_S))
    standing = found.standing.name.lower()
    if as_json:
        emit_json(
            {
                "mountpoint": str(found.mountpoint),
                "standing": standing,
                "exit_code": int(found.standing),
                "reasons": list(found.reasons),
                "answered_ms": found.answered_ms,
                "worker_pid": found.state["worker_pid"] if found.state else None,
                "supervisor_pid": found.state["supervisor_pid"] if found.state else None,
            }
        )
    else:
        took = f", answered in {found.answered_ms:.0f} ms" if found.answered_ms is not None else ""
        print(f"{found.mountpoint}: {standing.replace('_', ' ')}{took}" + "".join(f"; {why}" for why in found.reasons))
    raise typer.Exit(int(found.standing))
