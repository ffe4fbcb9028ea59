"""``openshelf umount``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mountd import control
from mountd.children import has_ended
from mountd.duties import end
from mountd.kernel.mounting import FILESYSTEM_TYPE, canonical, mounted_at
from openshelf.console import emit_json, say

_GONE_WITHIN_S = 10.0


def umount(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=Path, help="The folder that is mounted.")],
    lazy: Annotated[bool, typer.Option("--lazy", help="Free the folder at once; open files go on.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Unmount, and end the daemon; says who holds files open when that is in the way.

    Examples:

      openshelf umount /public

      openshelf umount /public --lazy
    """
    mountpoint = canonical(directory)
    pids: list[int] = []
    try:
        pids = control.ask(mountpoint, "unmount", lazy=lazy)["pids"]
    except control.NotMounted:
        present = mounted_at(mountpoint)
        if present is None or present.type != FILESYSTEM_TYPE:
            raise
        end(mountpoint, lazy=lazy)  # a mount whose daemon is gone
    if not lazy:
        deadline = time.monotonic() + _GONE_WITHIN_S
        # Its cache may be used again when this returns, by another mount too.
        while not all(map(has_ended, pids)) and time.monotonic() < deadline:
            time.sleep(0.02)
    if as_json:
        emit_json({"unmounted": str(mountpoint), "lazy": lazy})
    else:
        say(f"{mountpoint} is unmounted.")
