"""The access ledger from open to catalog: counted once, over outages, kills and full spools."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from catalog.client import Client, Forbidden, InvalidRequest
from catalog.names import parse_release
from mountd import inodes
from mountd.interfaces import Node, Opened
from mountd.ledger.jobs import Job
from mountd.ledger.ledger import Ledger
from mountd.ledger.records import IDLE_S, Record, Records, utc
from mountd.ledger.spool import Spool
from tests.support.catalog_server import CatalogProcess, catalog_process
from tests.support.publishing import Publisher

RELEASE = parse_release("datasets/belle/chat@1.0")


def node_of(row: int, size: int = 1000, release: str | None = str(RELEASE)) -> Node:
    nodeid = inodes.file_id(7, row)
    ref = None if release is None else parse_release(release)
    return Node(nodeid, nodeid, "file", 0o444, size, 0, 3600.0, release=ref)


def opened(row: int, *, pid: int = 0, uid: int = 1000, size: int = 1000, release: str | None = str(RELEASE)) -> Opened:
    return Opened(node_of(row, size, release), pid, uid, "served")


def wait_until(true: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


class Sink:
    """A catalog that remembers what it was told."""

    def __init__(self) -> None:
        self.records: dict[str, Mapping[str, Any]] = {}
        self.confirmed: list[Mapping[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def report_usage(self, node: str, records: Sequence[Mapping[str, Any]], **said: Any) -> None:
        if self.error is not None:
            raise self.error
        self.records.update((each["record"], each) for each in records)
        self.reports.append({"node": node, "records": len(records), **said})

    def confirm_withdrawal(self, told: Mapping[str, Any], **_: Any) -> None:
        if self.error is not None:
            raise self.error
        self.confirmed.append(told)

    def opens(self) -> int:
        return sum(each["opens"] for each in self.records.values())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountd.ledger.ledger.KEEP_EVERY_S", 0.05)
    monkeypatch.setattr("mountd.ledger.delivery.FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr("mountd.ledger.delivery.LONGEST_PAUSE_S", 0.2)
    monkeypatch.setattr("mountd.ledger.delivery.HURRY_WITHIN_S", 0.01)


# Records


JOB = Job("systemd", "train.service")


def changed(records: Records) -> list[dict[str, Any]]:
    return [record.to_json() for record in records.take_changed()]


def test_distinct_files_are_counted_once_and_opens_each_time() -> None:
    records = Records()
    for row, size in ((0, 10), (3_000_000, 20), (0, 10), (9, 30), (9, 30)):
        records.add(node_of(row, size), JOB, 1000, 1_800_000_000.0)
    [found] = changed(records)
    assert (found["opens"], found["files"], found["bytes_declared"], found["exact"]) == (5, 3, 60, True)
    assert changed(records) == []


def test_what_the_mount_makes_itself_is_no_file_of_the_release() -> None:
    records = Records()
    made = inodes.made_id(7, 0)
    records.add(node_of(0)._replace(nodeid=made, ino=made), JOB, 1000, 1_800_000_000.0)
    [found] = changed(records)
    assert (found["opens"], found["files"], found["bytes_declared"]) == (1, 0, 0)


def test_jobs_users_and_releases_are_told_apart() -> None:
    records = Records()
    for job in (JOB, Job("none"), Job(JOB.kind, JOB.name, None, (("SLURM_JOB_ID", "1"),))):
        for uid in (0, 1000):
            for release in ("datasets/belle/chat@1.0", "datasets/belle/chat@2.0"):
                records.add(node_of(1, release=release), job, uid, 1_800_000_000.0)
    found = changed(records)
    assert len(found) == len({each["record"] for each in found}) == 12


def test_without_memory_to_tell_files_apart_the_counts_are_a_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountd.ledger.records.BITMAPS_BYTES", 16)
    records = Records()
    for row in range(1000):
        records.add(node_of(row, 1), JOB, 0, 1_800_000_000.0)
    [found] = changed(records)
    assert (found["opens"], found["exact"]) == (1000, False)
    assert 64 <= found["files"] == found["bytes_declared"] <= 128


def test_an_idle_record_and_one_of_too_many_end_and_their_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountd.ledger.records.LIVE_RECORDS", 2)
    records = Records()
    records.add(node_of(1), JOB, 1, 1_800_000_000.0)
    records.add(node_of(1), JOB, 1, 1_800_000_000.0 + IDLE_S + 1)
    for uid in (2, 3, 1):
        records.add(node_of(1), JOB, uid, 1_800_030_000.0)
    found = changed(records)
    assert len(found) == 5
    assert sum(each["opens"] for each in found) == 5
    assert records._bitmaps_bytes == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1_772_359_200.9, "2026-03-01T10:00:00Z"),
        (0.0, "2000-01-01T00:00:00Z"),
        (-1e18, "2000-01-01T00:00:00Z"),
        (1e18, "2099-12-31T23:59:59Z"),
    ],
)
def test_a_broken_clock_gives_a_time_that_the_catalog_takes(seconds: float, text: str) -> None:
    assert utc(seconds) == text


# The spool


def record(number: int, opens: int = 1) -> Record:
    return Record((str(RELEASE), JOB, number), f"{number:032x}", 1_800_000_000.0, 1_800_000_000.0, opens)


def test_a_newer_state_takes_the_place_of_the_one_that_waits(tmp_path: Path) -> None:
    spool = Spool.open(tmp_path)
    spool.keep([record(1), record(2)], 2, 0)
    sent = spool.waiting(10)
    spool.keep([record(1, opens=5)], 4, 0)
    assert [(each.opens, each.body["opens"]) for each in spool.waiting(10)] == [(5, 5), (1, 1)]
    spool.delivered(sent)
    assert [each.opens for each in spool.waiting(10)] == [5]
    spool.close()


def test_the_spool_is_bounded_and_gives_up_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mountd.ledger.spool.MOST_RECORDS", 10)
    spool = Spool.open(tmp_path)
    for number in range(25):
        spool.keep([record(number)], 1, 0)
    assert [int(each.record, 16) for each in spool.waiting(100)] == list(range(15, 25))
    assert (spool.counts().waiting, spool.counts().dropped) == (10, 15)
    spool.close()


def test_a_record_takes_less_than_a_kibibyte() -> None:
    claims = tuple((name, "x" * 128) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    largest = Record(
        ("datasets/" + "n" * 64 + "/" + "n" * 64 + "@" + "v" * 64, Job("slurm", "9" * 40, None, claims), 0),
        "a" * 32,
        0,
        0,
    )
    spool_row = len(str(largest.to_json()))
    assert spool_row < 1024


def test_a_damaged_spool_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "usage.sqlite").write_bytes(b"no database" * 1000)
    spool = Spool.open(tmp_path)
    assert spool.waiting(10) == []
    assert "damaged" in caplog.text
    spool.close()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk on which nothing fits any more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    with (disk / "fill").open("wb", buffering=0) as sink, contextlib.suppress(OSError):
        while True:
            sink.write(bytes(4096))
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_on_a_full_disk_the_ledger_is_kept_in_memory_and_delivered(
    full_disk: Path, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(full_disk / "spool", sink, "gpu-1", lambda: 0, every_s=0.05)
    ledger.start()
    ledger.opened(opened(1))
    wait_until(lambda: sink.opens() == 1)
    ledger.close()
    assert "kept in memory" in caplog.text


def test_a_full_disk_loses_nothing_that_memory_holds(tmp_path: Path) -> None:
    sink = Sink()
    ledger = Ledger(tmp_path, sink, "gpu-1", lambda: 0, every_s=0.05)
    whole, ledger.spool._db = ledger.spool._db, sqlite3.connect(":memory:", isolation_level=None)
    for row in range(10):
        ledger.opened(opened(row))
    ledger._keep()
    assert ledger.spool.counts().waiting == 0
    ledger.spool._db.close()
    ledger.spool._db = whole
    ledger.start()
    wait_until(lambda: sink.opens() == 10)
    assert ledger.spool.counts().settled == 10
    ledger.close()


# The ledger


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def ledger(tmp_path: Path, sink: Sink) -> Iterator[Ledger]:
    made = Ledger(tmp_path, sink, "gpu-1", lambda: 7, every_s=0.05)
    made.start()
    yield made
    made.close()


def test_opens_reach_the_catalog_with_their_job_and_files_of_the_mount_itself_do_not(
    ledger: Ledger, sink: Sink
) -> None:
    for row in (1, 2, 2):
        ledger.opened(opened(row, pid=os.getpid()))
    ledger.opened(opened(3, release=None))
    ledger.opened(opened(4, pid=0))
    wait_until(lambda: sink.opens() == 4)
    by_kind = {each["job"]["kind"]: each for each in sink.records.values()}
    unknown = by_kind.pop("unknown")
    assert unknown["opens"] == 1
    [mine] = by_kind.values()
    assert (mine["opens"], mine["files"], mine["uid"], mine["release"]) == (3, 2, 1000, str(RELEASE))
    assert sink.reports[0] == {"node": "gpu-1", "records": 2, "feed_serial": 7, "unrecorded": 0, "ends": False} | {
        key: sink.reports[0][key] for key in ("timeout_s", "records")
    }
    assert ledger.facts()["ledger_unknown_jobs"] == 1
    assert ledger.facts()["ledger_opens"] == 4


def test_the_last_report_says_that_the_mount_ends(tmp_path: Path, sink: Sink) -> None:
    ledger = Ledger(tmp_path, sink, "gpu-1", lambda: 0, every_s=3600)
    ledger.start()
    ledger.opened(opened(1))
    ledger.close()
    assert sink.opens() == 1
    assert [each["ends"] for each in sink.reports] == [True]


def test_nothing_but_the_named_fields_leaves_the_node(ledger: Ledger, sink: Sink) -> None:
    ledger.opened(opened(1, pid=os.getpid()))
    wait_until(lambda: sink.opens() == 1)
    [sent] = sink.records.values()
    assert set(sent) == {
        "record", "release", "job", "uid", "first", "last", "opens", "files", "bytes_declared", "exact",
    }  # fmt: skip
    assert set(sent["job"]) == {"kind", "name", "container", "claimed"}


def test_too_many_at_once_are_counted_as_unrecorded(
    ledger: Ledger, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mountd.ledger.ledger.QUEUE", 0)
    for row in range(5):
        ledger.opened(opened(row))
    wait_until(lambda: ledger.facts()["ledger_unrecorded"] == 5)
    ledger.confirm({"release": str(RELEASE)})
    wait_until(lambda: bool(sink.reports) and sink.reports[-1]["unrecorded"] == 5)


def test_a_catalog_that_refuses_records_for_good_does_not_stop_those_that_follow(ledger: Ledger, sink: Sink) -> None:
    sink.error = InvalidRequest("invalid_request", "It is wrong")
    ledger.opened(opened(1))
    wait_until(lambda: ledger.facts()["ledger_dropped"] == 1)
    sink.error = None
    ledger.opened(opened(1, uid=5))
    wait_until(lambda: sink.opens() == 1)


def test_a_token_that_may_not_report_keeps_records_waiting(ledger: Ledger, sink: Sink) -> None:
    sink.error = Forbidden("forbidden", "It may not")
    ledger.opened(opened(1))
    wait_until(lambda: ledger.facts()["ledger_failures"] >= 2)
    assert ledger.facts()["ledger_waiting"] == 1
    sink.error = None
    wait_until(lambda: sink.opens() == 1)


def test_confirmations_go_before_records_and_the_newest_counts(ledger: Ledger, sink: Sink) -> None:
    sink.error = Forbidden("forbidden", "It may not")
    ledger.confirm({"release": str(RELEASE), "open_files": 2})
    wait_until(lambda: ledger.facts()["ledger_failures"] >= 1)
    ledger.confirm({"release": str(RELEASE), "open_files": 0})
    sink.error = None
    wait_until(lambda: bool(sink.confirmed))
    assert sink.confirmed == [{"release": str(RELEASE), "open_files": 0, "node": "gpu-1"}]


KILLED = """
import os, signal, sys, threading
sys.path.insert(0, {root!r})
from pathlib import Path
from mountd.ledger import ledger as module
from tests.mountd.test_ledger import Sink, opened
module.KEEP_EVERY_S = {keep_every_s}
sink = Sink()
ledger = module.Ledger(Path({folder!r}), sink, "gpu-1", lambda: 0)
ledger.start()
threads = [threading.Thread(target=lambda: [ledger.opened(opened(row)) for row in range(500)]) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
while {wait} and ledger.spool.counts().settled < 2000:
    pass
ledger.opened(opened(1))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kept", [True, False])
def test_what_a_killed_worker_had_not_kept_is_known_by_number(
    tmp_path: Path, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root = str(Path(__file__).parents[2])
    program = KILLED.format(root=root, folder=str(tmp_path), keep_every_s=0.05 if kept else 3600, wait=kept)
    done = subprocess.run([sys.executable, "-c", program], cwd=root, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    sink = Sink()
    ledger = Ledger(tmp_path, sink, "gpu-1", lambda: 0, every_s=0.05)
    ledger.start()
    ledger.opened(opened(1))
    expected = 2000 if kept else 0
    wait_until(lambda: sink.opens() == expected + 1)
    wait_until(lambda: bool(sink.reports))
    assert sink.reports[-1]["unrecorded"] == 2001 - expected
    assert f"{2001 - expected} opens before the last worker's end are missing" in caplog.text
    ledger.close()
    again = Spool.open(tmp_path)
    assert again.counts().unrecorded == 2001 - expected
    again.close()


def test_an_outage_of_the_real_catalog_costs_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with catalog_process(data) as catalog:
        port = int(catalog.url.rpartition(":")[2])
        people = Publisher(catalog, tmp_path)
        people.publish(RELEASE, {"a": b"x"})
        people.close()
        token, auditor = catalog.token("node-1", "node"), catalog.token("wu", "auditor")
        client = Client(catalog.url, token, timeout_s=5)
        ledger = Ledger(tmp_path / "spool", client, "gpu-1", lambda: 0, every_s=0.05)
        ledger.start()
        for row in range(10):
            ledger.opened(opened(row))
        wait_until(lambda: ledger.facts()["ledger_delivered"] >= 1)
        catalog.kill()
        for row in range(5, 25):
            ledger.opened(opened(row, uid=1000 + row % 2))
        wait_until(lambda: ledger.facts()["ledger_failures"] >= 1)
        assert ledger.facts()["ledger_waiting"] == 2
        ledger.close()  # the daemon ends while the catalog is away
    with catalog_process(data, port=port) as catalog:
        _deliver_the_rest(catalog, tmp_path / "spool", token, auditor)


def _deliver_the_rest(catalog: CatalogProcess, spool: Path, token: str, auditor: str) -> None:
    with Client(catalog.url, token, timeout_s=5) as client, Client(catalog.url, auditor) as reader:
        ledger = Ledger(spool, client, "gpu-1", lambda: 0, every_s=0.05)
        ledger.start()
        wait_until(lambda: ledger.facts()["ledger_waiting"] == 0)
        ledger.close()
        found = reader.usage({"release": str(RELEASE)})
        assert {(each["uid"], each["opens"], each["files"]) for each in found} == {(1000, 20, 18), (1001, 10, 10)}
        assert reader.usage_groups({}, "node")["unrecorded"] == 0
