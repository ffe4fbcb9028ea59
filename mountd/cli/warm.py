"""``openshelf warm``."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from mountd.cli.access_lists import record_for, send_list, stop_recording
from mountd.cli.warm_worker import LOOK_EVERY_S, MountWorker
from mountd.warm.globs import to_regex
from mountd.warm.references import parse_reference
from mountd.warm.schedule import begins_at
from openshelf.console import emit_json, progress, say
from openshelf.errors import OpenshelfError, UsageError
from openshelf.units import format_size


def warm(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=Path, help="The folder that is mounted.")],
    references: Annotated[
        list[str] | None,
        typer.Argument(metavar="REF", help="COLLECTION@VERSION or @TAG, or a path below DIR."),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--files", metavar="GLOB", help="Only these files, such as 'data/*.parquet'; may be repeated."),
    ] = None,
    wait: Annotated[
        bool | None, typer.Option("--wait/--no-wait", help="Stay until it is done, with a progress bar.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin then: 20:00 (the next), or 2026-12-01T20:00.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say how much is cached; exit 0 when all of it is, else 1.")
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Show the jobs and what is recorded.")] = False,
    cancel: Annotated[int | None, typer.Option(metavar="ID", help="End a job.")] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record which files are opened, for --replay.")
    ] = None,
    for_time: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Record that long, such as 10m, then write FILE.")
    ] = None,
    record_stop: Annotated[bool, typer.Option("--record-stop", help="End the recording and write its FILE.")] = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Bring what was recorded in FILE, in that order.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Bring releases, or some of their files, into the cache before a job reads them.

    This goes on in the background, behind whatever is being read, and survives restarts of worker and node. With
    --wait the command stays until it is done (exit 1 when it failed); Ctrl-C then leaves the job running.

    In GLOB, * and ? stop at /, ** does not; a GLOB without / is the file's name in any folder.

    Examples:

      openshelf warm /public datasets/belle/chat@1.0 --wait

      openshelf warm /public datasets/belle/chat@latest --files 'data/train-*' --at 20:00

      openshelf warm /public datasets/belle/chat@1.0 --check && sbatch train.sh

      openshelf warm /public --record epoch.jsonl; python train.py; openshelf warm /public --record-stop

      openshelf warm /public --replay epoch.jsonl --wait
    """
    named = references or []
    _require_one(
        {
            "REF": bool(named),
            "--list": show_list,
            "--cancel": cancel is not None,
            "--record": record is not None,
            "--record-stop": record_stop,
            "--replay": replay is not None,
        }
    )
    _require_fit("--files", files, fits=bool(named))
    _require_fit("--check", check, fits=bool(named))
    _require_fit("--at", at, fits=(bool(named) and not check) or replay is not None)
    _require_fit("--for", for_time, fits=record is not None)
    for glob in files or ():
        to_regex(glob)
    if at is not None:
        begins_at(at, datetime.now())
    worker = MountWorker(directory)
    if named:
        meant = [str(parse_reference(each, worker.names)) for each in named]
        if check:
            _check(worker, meant, files or [], as_json=as_json)
        else:
            job = worker.one("warm", references=meant, globs=files or [], at=at)
            _follow(worker, job, wait=bool(wait), as_json=as_json)
    elif replay is not None:
        job = worker.one("warm", listing=send_list(worker, replay), at=at)
        _follow(worker, job, wait=bool(wait), as_json=as_json)
    elif show_list:
        _list(worker, as_json=as_json)
    elif cancel is not None:
        _cancel(worker, cancel, as_json=as_json)
    elif record is not None:
        record_for(worker, record, for_time, wait=wait is not False, as_json=as_json)
    else:
        stop_recording(worker, as_json=as_json)


def _require_one(doing: dict[str, bool]) -> None:
    """UsageError unless exactly one thing is to be done."""
    chosen = [name for name, given in doing.items() if given]
    if len(chosen) != 1:
        but = f", not {' and '.join(chosen)}" if chosen else ""
        raise UsageError("one_thing", f"Give one of {', '.join(doing)}{but}", "See: openshelf warm --help")


def _require_fit(option: str, given: object, *, fits: bool) -> None:
    if given and not fits:
        raise UsageError("not_together", f"{option} does not go with this", "See: openshelf warm --help")


def _follow(worker: MountWorker, job: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    """Say what was entered, or wait until it is over."""
    if wait:
        job = _wait(worker, job)
    if as_json:
        emit_json(job)
    elif not wait:
        begins = f", begins {_clock(job['due'])}" if job["due"] else ""
        say(
            f"job {job['id']}: {job['files']} files, {format_size(job['size_bytes'])}, of which "
            f"{format_size(job['bytes_done'])} are cached{begins}. See it with: openshelf warm {worker.point} --list"
        )
    elif job["state"] == "done":
        say(f"job {job['id']} is done: {job['files']} files, {format_size(job['size_bytes'])} are cached")
    if job["state"] == "failed":
        raise OpenshelfError("warm_failed", f"Job {job['id']} failed: {job['message']}")
    if job["state"] == "cancelled":
        raise OpenshelfError("warm_cancelled", f"Job {job['id']} was ended before all of it came")
    if job["message"] and not as_json:
        say(f"note: {job['message']}")


def _wait(worker: MountWorker, job: dict[str, Any]) -> dict[str, Any]:
    """Follow a job until it is over, whatever becomes of the worker."""
    number, shown = job["id"], 0
    try:
        with progress(_title(job), job["size_bytes"]) as bar:
            while True:
                bar.advance(job["bytes_done"] - shown)
                shown = job["bytes_done"]
                bar.describe(_title(job))
                if job["over"]:
                    return job
                time.sleep(LOOK_EVERY_S)
                job = worker.one("warm_job", id=number)
    except KeyboardInterrupt:
        say(
            f"job {number} goes on in the background. See it: openshelf warm {worker.point} --list; "
            f"end it: openshelf warm {worker.point} --cancel {number}"
        )
        raise


def _title(job: dict[str, Any]) -> str:
    if job["state"] == "waiting":
        return f"job {job['id']} waits" + (f" until {_clock(job['due'])}" if job["due"] else "")
    note = f" ({job['message']})" if job["message"] else ""
    return f"{job['files_done']}/{job['files']} files{note}"


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "minutes")


def _list(worker: MountWorker, *, as_json: bool) -> None:
    found = worker.one("warm_jobs")
    if as_json:
        emit_json(found)
        return
    for job in found["jobs"]:
        what = ", ".join(job["references"]) or "an access list"
        narrowed = "".join(f" --files {glob}" for glob in job["globs"])
        when = f", begins {_clock(job['due'])}" if job["due"] and job["state"] == "waiting" else ""
        note = f": {job['message']}" if job["message"] else ""
        print(
            f"{job['id']:>4}  {job['state']:<9}  {job['files_done']}/{job['files']} files, "
            f"{format_size(job['bytes_done'])} of {format_size(job['size_bytes'])}  {what}{narrowed}{when}{note}"
        )
    recording = found["recording"]
    if recording["target"]:
        print(
            f"{'recording' if recording['recording'] else 'recorded'} {recording['files']} files "
            f"for {recording['target']}"
        )


def _cancel(worker: MountWorker, number: int, *, as_json: bool) -> None:
    job = worker.one("warm_cancel", id=number)
    if as_json:
        emit_json(job)
    else:
        say(f"job {number} ends; what it has brought stays cached")


def _check(worker: MountWorker, meant: list[str], globs: list[str], *, as_json: bool) -> None:
    found = worker.one("warm_check", references=meant, globs=globs)
    if as_json:
        emit_json(found)
    else:
        for each in found["releases"]:
            print(
                f"{each['release']}: {each['cached_files']} of {each['files']} files, "
                f"{format_size(each['cached_bytes'])} of {format_size(each['size_bytes'])} cached"
            )
    if not found["complete"]:
        raise typer.Exit(1)
