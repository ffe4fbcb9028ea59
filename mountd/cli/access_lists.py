"""Access lists between the user's files and the worker: ``warm --record``, ``--record-stop``, ``--replay``.

The files are read and written here, by the user's own hand; the worker sees only lines.
"""

from __future__ import annotations

import time
from pathlib import Path

from mountd.cli.warm_worker import LOOK_EVERY_S, MountWorker
from mountd.warm.access_list import from_lines
from mountd.warm.schedule import parse_duration
from openshelf.console import emit_json, progress, say
from openshelf.errors import OpenshelfError, UsageError

PORTION_BYTES = 16 << 10
"""Lines go to the worker in portions of about this size."""


def send_list(worker: MountWorker, source: Path) -> str:
    """Send an access list to the worker, after reading all of it; the name that it has there."""
    try:
        lines = source.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError("no_access_list", f"{source} cannot be read: {reason}", "Give a recorded file.") from error
    if not list(from_lines(lines)):
        raise UsageError("empty_access_list", f"{source} names no file", "Record it while a job reads.")
    listing, portion, size = "", list[str](), 0
    for number, line in enumerate(lines):
        portion.append(line)
        size += 2 * len(line.encode()) + 8
        if size >= PORTION_BYTES or number == len(lines) - 1:
            listing = worker.one("warm_deposit", listing=listing, lines=portion)["listing"]
            portion, size = [], 0
    return listing


def record_for(worker: MountWorker, target: Path, for_time: str | None, *, wait: bool, as_json: bool) -> None:
    """Begin a recording; with a time, stay for it and write the file, unless not to ``wait``."""
    target = target.absolute()
    if not target.parent.is_dir() or target.is_dir():
        raise UsageError("bad_file", f"{target} cannot be written", "Name a file in a folder that exists.")
    for_s = parse_duration(for_time) if for_time is not None else None
    facts = worker.one("warm_record", target=str(target), for_s=for_s)
    if for_s is not None and wait:
        _stay(worker, target, for_s)
        stop_recording(worker, as_json=as_json)
    elif as_json:
        emit_json(facts)
    else:
        say(f"recording. End it, and have {target} written: openshelf warm {worker.point} --record-stop")


def _stay(worker: MountWorker, target: Path, for_s: float) -> None:
    """Wait until the recording has ended."""
    begun, shown = time.monotonic(), 0
    try:
        with progress(f"recording for {target.name}", int(for_s), unit="seconds") as bar:
            while worker.one("warm_recorded")["recording"]:
                passed = min(int(time.monotonic() - begun), int(for_s))
                bar.advance(passed - shown)
                shown = passed
                time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        say(f"the recording goes on. End it, and have {target} written: openshelf warm {worker.point} --record-stop")
        raise


def stop_recording(worker: MountWorker, *, as_json: bool) -> None:
    """End the recording and write its file."""
    *portions, facts = worker.ask("warm_record_stop")
    if "target" not in facts:
        raise OpenshelfError("no_worker", "The worker ended while it answered", "Try it again: nothing is lost.")
    target = Path(facts["target"])
    fresh = target.with_name(target.name + ".new")
    try:
        with fresh.open("w", encoding="utf-8") as sink:
            for portion in portions:
                sink.writelines(f"{line}\n" for line in portion["lines"])
        fresh.rename(target)
    except OSError as error:
        raise OpenshelfError(
            "not_written", f"{target} cannot be written: {error.strerror}", "Correct that, and try it again."
        ) from error
    worker.one("warm_record_forget")
    if as_json:
        emit_json(facts)
    else:
        say(f"{target}: {facts['files']} files. Bring them: openshelf warm {worker.point} --replay {target}")
        if facts["dropped"]:
            say(f"warning: {facts['dropped']} opens came faster than they could be noted, and are missing")
