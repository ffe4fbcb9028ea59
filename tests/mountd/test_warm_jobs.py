"""Jobs that bring files to the cache: what comes, in how many requests, when, and what happens when something fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mountd.interfaces import Opened
from mountd.tree import CollectionState
from mountd.warm import runner
from mountd.warm.commands import Warming
from mountd.warm.runner import Means
from mountd.warm.windows import parse
from openshelf.errors import OpenshelfError, UsageError
from tests.mountd.conftest import Bench, MakeBench
from tests.support.releases import pattern

RELEASE = "datasets/belle/chat@1.0"
MIB = 1 << 20
FILES = {
    "README.md": b"# chat\n",
    "data/a.bin": pattern(21 * MIB + 5, 1),
    "data/b.bin": pattern(9 * MIB, 2),
    "data/c.bin": pattern(2 * MIB, 3),
    **{f"images/{n:03}.jpg": pattern(20_000 + n, n + 10) for n in range(200)},
}
TOTAL = sum(map(len, FILES.values()))


class Clock:
    """A wall clock that the test sets."""

    def __init__(self, text: str = "2026-03-04T19:00:00") -> None:
        self.now = datetime.fromisoformat(text)

    def __call__(self) -> datetime:
        return self.now


class Warm:
    """The commands over a bench, as the worker has them."""

    def __init__(self, bench: Bench, clock: Callable[[], datetime] = datetime.now, bandwidth: str = "") -> None:
        self.bench = bench
        manifest = bench.cache.layout.manifest_path(bench.made.digest)
        if not manifest.exists():
            shutil.copyfile(bench.made.manifest, manifest)
        self.online = True
        self.passes = 0
        means = Means(bench.tree, bench.reader, bench.cache, bench.supply, parse(bandwidth), clock, self._is_online)
        self.warming = Warming(means)
        self.reader = self.warming.watched(bench.reader)

    def _is_online(self) -> bool:
        """Asked after each pass that did not bring everything."""
        self.passes += 1
        return self.online

    def do(self, command: str, **given: Any) -> dict[str, Any]:
        return dict(list(self.warming.work()[command](given))[-1])

    def order(self, *globs: str, **more: Any) -> int:
        return int(self.do("warm", references=[RELEASE], globs=globs, **more)["id"])

    def job(self, number: int) -> dict[str, Any]:
        return self.do("warm_job", id=number)

    def finish(self, number: int) -> dict[str, Any]:
        self.bench.wait_until(lambda: bool(self.job(number)["over"]), 20)
        return self.job(number)

    def cached(self) -> set[str]:
        return {path for path in FILES if self.bench.cache.is_sealed(self.bench.sha256(path))}

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read as a job does through the mount, served by the daemon."""
        node = self.bench.node(path)
        handle = self.reader.open(node)
        self.warming.opened(Opened(node, 1, 0, "served"))
        try:
            return bytes(handle.read(start, (node.size if stop is None else stop) - start))
        finally:
            handle.close()


MakeWarm = Callable[..., Warm]


@pytest.fixture
def make_warm(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWarm]:
    monkeypatch.setattr(runner, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(runner, "PAUSES_S", (0.05, 0.05, 0.05))
    monkeypatch.setattr(runner, "OFFLINE_PAUSE_S", 0.05)
    with ExitStack() as stack:

        def make(
            bench: Bench | None = None, *, start: bool = True, clock: Callable[[], datetime] = datetime.now,
            bandwidth: str = "", **more: Any,
        ) -> Warm:  # fmt: skip
            made = Warm(bench or make_bench(FILES, **more), clock, bandwidth)
            stack.callback(made.warming.close)
            if start:
                made.warming.start()
            return made

        yield make


def test_a_release_comes_whole_large_files_in_long_requests_and_each_pack_in_one(make_warm: MakeWarm) -> None:
    warm = make_warm()
    assert not warm.do("warm_check", references=[RELEASE])["complete"]
    job = warm.finish(warm.order())
    assert (job["state"], job["files"], job["files_done"]) == ("done", len(FILES), len(FILES))
    assert (job["size_bytes"], job["bytes_done"]) == (TOTAL, TOTAL)
    assert warm.cached() == set(FILES)
    assert warm.do("warm_check", references=[RELEASE])["complete"]
    lengths = sorted(stop - start for _, start, stop in warm.bench.store.requests)
    assert len(lengths) <= 2 + 1 + 1 + 1, "21 MiB in two, 9 in one, 2 in one, 200 small files in one"
    for path in ("README.md", "data/a.bin", "images/007.jpg"):
        assert warm.bench.read_all(path) == FILES[path]
    assert len(warm.bench.store.requests) == len(lengths), "reading it again asks the store for nothing"


def test_a_pattern_brings_these_files_and_no_neighbour(make_warm: MakeWarm) -> None:
    warm = make_warm()
    job = warm.finish(warm.order("images/00?.jpg", "c.bin"))
    wanted = {f"images/00{n}.jpg" for n in range(10)} | {"data/c.bin"}
    assert (job["state"], job["files"]) == ("done", 11)
    assert warm.cached() == wanted
    checked = warm.do("warm_check", references=[RELEASE], globs=["images/00?.jpg"])
    assert checked["complete"] and checked["releases"][0]["cached_files"] == 10
    whole = warm.do("warm_check", references=[RELEASE + "/images"])
    assert not whole["complete"] and whole["releases"][0]["cached_files"] == 10


def test_what_is_cached_already_is_not_fetched_again(make_warm: MakeWarm) -> None:
    warm = make_warm()
    warm.finish(warm.order("data/"))
    before = len(warm.bench.store.requests)
    job = warm.finish(warm.order("data/"))
    assert job["state"] == "done"
    assert len(warm.bench.store.requests) == before


def test_a_store_that_fails_for_a_while_only_delays_the_job(make_warm: MakeWarm) -> None:
    warm = make_warm(deadline_s=0.1)
    warm.bench.store.always = "error"
    warm.online = False
    number = warm.order("c.bin")
    warm.bench.wait_until(lambda: warm.passes > len(runner.PAUSES_S) + 1, 20)
    assert "did not come yet" in warm.job(number)["message"], "without the catalog it is tried for any time"
    warm.online = True
    assert warm.finish(number)["state"] == "failed"
    warm.online = False
    number = warm.order()
    warm.bench.wait_until(lambda: "did not come yet" in warm.job(number)["message"], 20)
    warm.bench.store.always = None
    assert warm.finish(number)["state"] == "done"
    assert warm.cached() == set(FILES)


def test_a_file_that_never_comes_right_fails_the_job_and_all_others_come(make_warm: MakeWarm) -> None:
    warm = make_warm(deadline_s=0.2)
    stored = warm.bench.made.entries["data/c.bin"].object.hex()
    warm.bench.store.objects[stored] = bytes(2 * MIB)
    job = warm.finish(warm.order())
    assert job["state"] == "failed"
    assert "1 files did not come" in job["message"] and "wrong bytes" in job["message"]
    assert warm.cached() == set(FILES) - {"data/c.bin"}


def test_what_the_cache_cannot_hold_is_refused_with_figures(make_warm: MakeWarm) -> None:
    warm = make_warm(limit_bytes=20 * MIB)
    with pytest.raises(OpenshelfError, match=r"needs 3\d.* MiB, and the cache holds 20 MiB at most"):
        warm.order()
    job = warm.finish(warm.order("images/"))
    assert job["state"] == "done"
    warm.bench.cache.pins.add(RELEASE, warm.bench.made.digest)
    with pytest.raises(OpenshelfError, match=r"beside the 3.* MiB that are pinned"):
        warm.order("data/b.bin")
    assert warm.do("warm_jobs")["jobs"][0]["id"] == job["id"]


def test_names_and_patterns_that_are_wrong_are_refused_before_anything_is_entered(make_warm: MakeWarm) -> None:
    warm = make_warm()
    with pytest.raises(OpenshelfError, match="lists no release"):
        warm.do("warm", references=["datasets/belle/chat@9"])
    with pytest.raises(UsageError):
        warm.order("[")
    with pytest.raises(UsageError, match="past"):
        warm.order(at="2001-01-01T00:00")
    with pytest.raises(OpenshelfError, match="no job 5"):
        warm.do("warm_cancel", id=5)
    assert warm.do("warm_jobs")["jobs"] == []


def test_a_job_can_be_ended_while_it_runs_and_what_came_stays(make_warm: MakeWarm) -> None:
    warm = make_warm()
    warm.bench.store.delay_s = 0.3
    number = warm.order()
    warm.bench.wait_until(lambda: warm.job(number)["state"] == "running" and len(warm.bench.store.requests) > 0)
    warm.do("warm_cancel", id=number)
    job = warm.finish(number)
    assert job["state"] == "cancelled"
    with pytest.raises(OpenshelfError, match="over already"):
        warm.do("warm_cancel", id=number)
    assert warm.finish(warm.order("README.md"))["state"] == "done", "the next job is not held up"


def test_a_reader_goes_before_all_that_is_still_to_come(make_warm: MakeWarm, make_bench: MakeBench) -> None:
    files = {f"{n:02}.bin": pattern(MIB + 4096, n) for n in range(41)}
    warm = make_warm(make_bench(files, eager=False))
    store = warm.bench.store
    store.delay_s = 0.1
    number = warm.order("[0-3]?.bin")
    warm.bench.wait_until(lambda: len(store.requests) >= 4)
    assert warm.bench.read_all("40.bin") == files["40.bin"]
    behind = 40 - warm.job(number)["files_done"]
    assert behind > 20, "most of the job was still to come when the reader had his file"
    store.delay_s = 0
    assert warm.finish(number)["state"] == "done"


def test_a_release_that_is_withdrawn_meanwhile_is_brought_no_further(make_warm: MakeWarm) -> None:
    warm = make_warm()
    warm.bench.store.delay_s = 0.3
    number = warm.order()
    warm.bench.wait_until(lambda: len(warm.bench.store.requests) > 0)
    warm.bench.tree.update([CollectionState(warm.bench.made.ref.collection, [], {})])
    job = warm.finish(number)
    assert job["state"] == "failed" and "lists no release" in job["message"]
    assert len(warm.cached()) < len(FILES)


def test_the_next_worker_goes_on_with_a_job(make_warm: MakeWarm) -> None:
    first = make_warm(start=False)
    number = first.order("images/")
    second = make_warm(first.bench)
    assert second.finish(number)["state"] == "done"
    assert second.cached() == {path for path in FILES if path.startswith("images/")}
    third = make_warm(first.bench)
    assert third.job(number)["state"] == "done"
    assert third.order("README.md") == number + 1


def test_a_damaged_list_of_jobs_is_begun_anew(make_warm: MakeWarm, caplog: pytest.LogCaptureFixture) -> None:
    warm = make_warm()
    warm.finish(warm.order("README.md"))
    (warm.bench.cache.layout.root / "warm" / "jobs.json").write_text('{"next": 2, "jobs": [{"id": 1')
    again = make_warm(warm.bench)
    assert again.do("warm_jobs")["jobs"] == []
    assert "is damaged" in caplog.text


def test_a_job_for_the_evening_begins_then_and_once_however_the_clock_jumps(make_warm: MakeWarm) -> None:
    clock = Clock("2026-03-04T19:00:00")
    warm = make_warm(clock=clock)
    number = warm.order("README.md", at="20:00")
    due = warm.job(number)["due"]
    assert datetime.fromtimestamp(due) == datetime(2026, 3, 4, 20)
    later = warm.order("images/", at="2026-03-06 01:30")
    assert datetime.fromtimestamp(warm.job(later)["due"]) == datetime(2026, 3, 6, 1, 30)
    warm.finish(warm.order("data/c.bin"))  # one that is not scheduled comes through meanwhile
    assert warm.job(number)["state"] == "waiting"
    clock.now = datetime(2026, 3, 2, 21)  # put back by two days: the next evening is nearer than it was
    warm.bench.wait_until(lambda: bool(warm.job(number)["due"] < due))
    assert datetime.fromtimestamp(warm.job(number)["due"]) == datetime(2026, 3, 3, 20)
    again = make_warm(warm.bench, clock=clock, start=False)
    assert again.job(number)["state"] == "waiting", "it is on disk"
    clock.now = datetime(2026, 3, 5, 12)  # and forward, past it
    job = warm.finish(number)
    assert (job["state"], datetime.fromtimestamp(job["started"])) == ("done", datetime(2026, 3, 5, 12))
    clock.now -= timedelta(days=1)
    warm.finish(warm.order("data/b.bin"))
    assert warm.job(number)["ended"] == job["ended"], "it is not done again"
    assert warm.job(later)["state"] == "waiting"


def test_nothing_is_fetched_while_the_bandwidth_is_zero(make_warm: MakeWarm) -> None:
    clock = Clock("2026-03-04T12:00:00")
    warm = make_warm(clock=clock, bandwidth="08:00-20:00=0")
    number = warm.order("images/")
    warm.bench.wait_until(lambda: "paused" in warm.job(number)["message"])
    assert warm.bench.store.requests == []
    clock.now = datetime(2026, 3, 4, 20)
    assert warm.finish(number)["state"] == "done"


def record(warm: Warm, path: Path, **given: Any) -> list[str]:
    """End the recording: the lines of its document."""
    reports = list(warm.warming.work()["warm_record_stop"](given))
    return [line for report in reports[:-1] for line in report["lines"]]


def replay(warm: Warm, lines: list[str]) -> dict[str, Any]:
    listing = warm.do("warm_deposit", lines=lines[:2])["listing"]
    listing = warm.do("warm_deposit", lines=lines[2:], listing=listing)["listing"]
    return warm.finish(int(warm.do("warm", listing=listing)["id"]))


def forget_everything(warm: Warm) -> None:
    bench = warm.bench
    for path in FILES:
        bench.cache.discard(bench.sha256(path))


def test_what_was_recorded_comes_back_exactly_and_in_that_order(make_warm: MakeWarm, tmp_path: Path) -> None:
    warm = make_warm(eager=False)
    warm.do("warm_record", target=str(tmp_path / "list.jsonl"))
    with pytest.raises(OpenshelfError, match="recording for"):
        warm.do("warm_record", target="other")
    warm.read("images/150.jpg")
    warm.read("data/c.bin")
    warm.read("images/020.jpg")
    warm.read("images/150.jpg")
    warm.read("data/a.bin", 5 * MIB, 6 * MIB)
    warm.read("data/a.bin", 17 * MIB, 21 * MIB)
    lines = record(warm, tmp_path)
    assert lines == [
        '{"openshelf_access_list": 1, "releases": ["datasets/belle/chat@1.0"]}',
        '{"in": 0, "path": "images/150.jpg"}',
        '{"in": 0, "path": "data/c.bin"}',
        '{"in": 0, "path": "images/020.jpg"}',
        '{"in": 0, "path": "data/a.bin", "chunks": [[1, 2], [4, 6]]}',
    ]
    warm.do("warm_record_forget")
    forget_everything(warm)
    assert warm.cached() == set()
    job = replay(warm, lines)
    assert (job["state"], job["files"]) == ("done", 4)
    assert warm.cached() == {"images/150.jpg", "data/c.bin", "images/020.jpg"}
    assert warm.bench.reader.cached_bytes(warm.bench.node("data/a.bin")) == 2 * 4 * MIB + MIB + 4096, "in whole blocks"
    before = len(warm.bench.store.requests)
    assert warm.read("data/a.bin", 17 * MIB, 21 * MIB) == FILES["data/a.bin"][17 * MIB : 21 * MIB]
    assert len(warm.bench.store.requests) == before


def test_a_recording_goes_on_in_the_next_worker(make_warm: MakeWarm, tmp_path: Path) -> None:
    warm = make_warm(eager=False)
    warm.do("warm_record", target=str(tmp_path / "list.jsonl"))
    warm.read("data/b.bin", 0, MIB)
    recording = warm.bench.cache.layout.root / "warm" / "recording.jsonl"
    warm.bench.wait_until(lambda: "chunks" in recording.read_text())
    with recording.open("a") as sink:
        sink.write('{"n": 5, "rel')  # what a killed worker was writing
    again = make_warm(warm.bench)
    again.read("README.md")
    again.read("data/b.bin", 8 * MIB, 9 * MIB)
    assert record(again, tmp_path)[1:] == [
        '{"in": 0, "path": "data/b.bin", "chunks": [[0, 1], [2, 3]]}',
        '{"in": 0, "path": "README.md"}',
    ]


def test_a_recording_ends_by_itself_when_its_time_is_over(make_warm: MakeWarm, tmp_path: Path) -> None:
    warm = make_warm()
    warm.do("warm_record", target=str(tmp_path / "list.jsonl"), for_s=0.3)
    warm.read("README.md")
    warm.bench.wait_until(lambda: not warm.do("warm_recorded")["recording"])
    warm.read("images/001.jpg")
    assert record(warm, tmp_path)[1:] == ['{"in": 0, "path": "README.md"}']
    with pytest.raises(OpenshelfError, match="Nothing is being recorded"):
        warm.do("warm_record_forget")
        record(warm, tmp_path)


def test_files_of_a_list_that_are_gone_are_left_out_and_said(make_warm: MakeWarm) -> None:
    warm = make_warm()
    header = '{"openshelf_access_list": 1, "releases": ["datasets/belle/chat@1.0", "datasets/belle/gone@1.0"]}'
    job = replay(warm, [header, '{"in": 0, "path": "README.md"}', '{"in": 1, "path": "x"}', '{"in": 0, "path": "no"}'])
    assert (job["state"], job["files"]) == ("done", 1)
    assert job["message"] == "2 files of the access list are in no listed release"
    for lines in ([header, '{"in": 1, "path": "x"}'], [header]):
        with pytest.raises(OpenshelfError, match="access list"):
            replay(warm, lines)
    for broken in ('{"in": 2, "path": "x"}', '{"in": 0, "path": "../x"}', '{"in": 0}', "nonsense"):
        with pytest.raises(UsageError, match="Line 2"):
            replay(warm, [header, broken])
    with pytest.raises(UsageError, match="no such access list"):
        warm.do("warm", listing="../../etc/passwd")
