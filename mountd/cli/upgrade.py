"""``openshelf upgrade``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from mountd import control
from mountd.kernel.mounting import canonical
from openshelf.console import emit_json, say
from openshelf.errors import OpenshelfError

_CHECKED_WITHIN_S = 45.0
_DONE_WITHIN_S = 60.0


class UpgradeFailed(OpenshelfError):
    """The new code did not take over."""


def upgrade(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=Path, help="The folder that is mounted.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the state afterwards as JSON.")] = False,
) -> None:
    """Let the version of openshelf that runs this command take over a mount, under load, with nothing unmounted.

    Open files, mappings and working directories go on; reads wait for about a second at most. First the daemon tries
    whether the new code starts; if not, nothing changes. With the supervisor gone, the worker makes the new one.

    Examples:

      openshelf upgrade /public

      /opt/openshelf-2/bin/openshelf upgrade /public
    """
    mountpoint = canonical(directory)
    answer = control.ask_within(_CHECKED_WITHIN_S, mountpoint, "upgrade", python=sys.executable)
    state = _wait(mountpoint, int(answer["takeovers"]))
    if as_json:
        emit_json(state)
    else:
        say(f"{mountpoint}: supervisor {state['supervisor_pid']}, worker {state['worker_pid']}, nothing was unmounted.")


def _wait(mountpoint: Path, before: int) -> dict[str, Any]:
    """The state once a worker of the new code serves. Raises UpgradeFailed."""
    deadline = time.monotonic() + _DONE_WITHIN_S
    while time.monotonic() < deadline:
        state = control.ask(mountpoint, "status")
        if state["takeovers"] > before and state["worker_silent_s"] is not None:
            return state
        time.sleep(0.1)
    raise UpgradeFailed(
        "upgrade_failed", f"The new code did not take over {mountpoint} in time", "See the log in its cache folder."
    )
