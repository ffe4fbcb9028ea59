"""What the worker does for ``openshelf warm``: jobs ordered, listed and ended, standings, and recordings."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mountd.interfaces import Opened, Reader, Work
from mountd.warm.jobs import Job, Jobs
from mountd.warm.plans import refuse_too_large
from mountd.warm.recording import Recorder, WatchedReader
from mountd.warm.references import parse_reference
from mountd.warm.runner import Means, Runner, make_plan
from mountd.warm.schedule import begins_at
from mountd.warm.selection import select
from mountd.warm.standing import sealed, standing
from openshelf.errors import OpenshelfError, UsageError

LINES_A_REPORT = 500
LISTS_KEPT_S = 3600.0
"""An access list that is being sent may be without its job for this long."""


class Warming:
    """Jobs, their runner and the recorder of one mount, in ``<cache>/warm``."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._folder: Path = means.cache.layout.root / "warm"
        self._jobs = Jobs(self._folder)
        self._runner = Runner(self._jobs, means)
        self._recorder = Recorder(self._folder, means.tree)

    def opened(self, opened: Opened) -> None:
        """Take note of an open; quick."""
        self._recorder.opened(opened)

    def watched(self, reader: Reader) -> Reader:
        """The reader, of which the recorder sees what is read."""
        return WatchedReader(reader, self._recorder)

    def start(self) -> None:
        """Go on with what an earlier worker left."""
        self._sweep()
        self._recorder.start()
        self._runner.start()

    def close(self) -> None:
        """End; what is not finished is the next worker's."""
        self._runner.close()
        self._recorder.close()

    def _sweep(self) -> None:
        """Remove access lists that no job took, or whose job is over."""
        needed = {job.listing for job in self._jobs.all() if not job.over}
        for path in self._folder.glob("*.list"):
            if path.name not in needed and path.stat().st_mtime < time.time() - LISTS_KEPT_S:
                path.unlink(missing_ok=True)

    def work(self) -> Mapping[str, Work]:
        """The commands by name."""
        return {
            "warm": self._order,
            "warm_job": self._job,
            "warm_jobs": self._list,
            "warm_cancel": self._cancel,
            "warm_check": self._check,
            "warm_deposit": self._deposit,
            "warm_record": self._record,
            "warm_recorded": self._recorded,
            "warm_record_stop": self._stop_recording,
            "warm_record_forget": self._forget_recording,
        }

    # -- jobs

    def _order(self, given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Enter a job: ``references`` and ``globs``, or ``listing``; ``at`` when it begins, if not now."""
        now = self._means.clock()
        at = str(given.get("at") or "")
        job = Job(
            0,
            tuple(str(parse_reference(each)) for each in given.get("references", ())),
            tuple(given.get("globs", ())),
            self._deposited(given["listing"]).name if given.get("listing") else "",
            at,
            begins_at(at, now).timestamp() if at else 0.0,
            now.timestamp(),
        )
        plan = make_plan(job, self._means, self._folder)
        refuse_too_large(plan, self._means.cache)
        counted = plan.standing()
        entered = self._jobs.add(
            dataclasses.replace(
                job,
                files=counted.files,
                size_bytes=counted.size_bytes,
                files_done=counted.cached_files,
                bytes_done=counted.cached_bytes,
                message=plan.remark,
            )
        )
        yield shown(entered)

    def _job(self, given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield shown(self._jobs.get(int(given["id"])))

    def _list(self, _given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield {"jobs": [shown(job) for job in self._jobs.all()], "recording": self._recorder.facts()}

    def _cancel(self, given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield shown(self._jobs.cancel(int(given["id"]), self._runner.now_s()))

    def _check(self, given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """How each release of ``references`` stands, as far as ``globs`` name files of it."""
        layout = self._means.cache.layout
        here = sealed(self._means.cache)
        releases = []
        for text in given["references"]:
            selection = select(self._means.tree, layout, parse_reference(text), given.get("globs", ()))
            counted = standing(selection, here)
            named = {"reference": text, "release": str(selection.release)}
            releases.append({**named, **dataclasses.asdict(counted), "complete": counted.complete})
        yield {"complete": all(each["complete"] for each in releases), "releases": releases}

    # -- access lists

    def _deposit(self, given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Take some lines of an access list; the answer's ``listing`` names it for further lines and for ``warm``."""
        if given.get("listing"):
            path = self._deposited(given["listing"])
        else:
            path = self._folder / f"{secrets.token_hex(8)}.list"
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with path.open("a", encoding="utf-8") as sink:
                sink.writelines(f"{line}\n" for line in given["lines"])
        except OSError as error:
            raise OpenshelfError(
                "list_not_kept", f"The access list cannot be kept in the cache: {error.strerror}", "Free space there."
            ) from error
        yield {"listing": path.name}

    def _deposited(self, name: str) -> Path:
        path = self._folder / Path(name).name
        if path.suffix != ".list" or not path.exists():
            raise UsageError("no_access_list", "There is no such access list here", "Replay it again.")
        return path

    def _record(self, given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        until = self._runner.now_s() + float(given["for_s"]) if given.get("for_s") else None
        self._recorder.begin(str(given["target"]), until)
        yield self._recorder.facts()

    def _recorded(self, _given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield self._recorder.facts()

    def _stop_recording(self, _given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The recorded document in portions of ``lines``, then the facts. It stays until ``warm_record_forget``."""
        facts = self._recorder.end()
        lines: list[str] = []
        for line in self._recorder.document():
            lines.append(line)
            if len(lines) == LINES_A_REPORT:
                yield {"lines": lines}
                lines = []
        yield {"lines": lines}
        yield facts

    def _forget_recording(self, _given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        self._recorder.forget()
        yield {}


def shown(job: Job) -> dict[str, Any]:
    """A job as it travels to the command line."""
    return {**dataclasses.asdict(job), "over": job.over}
