"""``openshelf doctor``."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

from mountd import control, options
from mountd.cache.layout import is_overlay
from mountd.doctor import catalog as catalog_checks
from mountd.doctor import disk, host, mounted
from mountd.doctor.check import Check
from mountd.doctor.path import DataPath, data_path
from mountd.doctor.trial import try_mount
from mountd.kernel.mounting import canonical
from openshelf import settings
from openshelf.console import emit_json
from openshelf.errors import OpenshelfError

_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


def doctor(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", parser=Path, help="The folder that is mounted, or is to be.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", parser=Path, help="The cache folder; else that of the mount.")
    ] = None,
    catalog: Annotated[str | None, typer.Option(metavar="URL", help="The catalog's address.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say which way the bytes take on this host (materialised, passthrough, served, libfuse), why, and what would make
    it better. Needs no mount; one that is there is looked at without waiting for it.

    Exit code 1 when something would keep a mount from working.

    Examples:

      openshelf doctor /public --cache /nvme/openshelf

      openshelf doctor --json | jq '.checks[] | select(.verdict != "ok")'
    """
    mountpoint = canonical(directory) if directory is not None else None
    folder = canonical(cache) if cache is not None else _cache_of(mountpoint)
    chosen = settings.load(catalog=catalog)
    trial = try_mount(folder)
    found = list(host.checks(trial))
    if folder is not None:
        found += disk.checks(folder)
    else:
        found.append(Check("cache folder", "warn", "not looked at", "Name it: openshelf doctor --cache DIR"))
    if mountpoint is not None:
        found += mounted.checks(mountpoint)
    found += catalog_checks.checks(chosen.catalog, chosen.token)
    way = data_path(
        trial,
        options.load({}),
        may_administer=host.may_administer(),
        stacked_cache=folder is not None and is_overlay(folder),
        libfuse=importlib.util.find_spec("fuse") is not None,
    )
    if as_json:
        emit_json({"path": dataclasses.asdict(way), "checks": [check.to_json() for check in found]})
    else:
        for line in _lines(way, found):
            print(line)
    if any(check.verdict == "fail" for check in found):
        sys.exit(1)


def _cache_of(mountpoint: Path | None) -> Path | None:
    """The cache folder of a mount that answers."""
    if mountpoint is None:
        return None
    try:
        return Path(control.ask_within(1.0, mountpoint, "status")["cache"])
    except OpenshelfError:
        return None


def _lines(way: DataPath, found: list[Check]) -> list[str]:
    """The findings for people."""
    lines = [
        f"complete releases: {way.complete_releases}; other complete files: {way.complete_files}; "
        f"the rest: {way.others}"
    ]
    lines += [f"  because {why}" for why in way.why]
    width = max(len(check.name) for check in found)
    for check in found:
        lines.append(f"{_MARKS[check.verdict]}  {check.name:<{width}}  {check.found}")
        if check.fix:
            lines.append(f"      {'':<{width}}  {check.fix}")
    return lines
