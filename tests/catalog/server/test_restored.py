"""A backup is put back: nodes follow it only in a new epoch, and the ledger says that it happened."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from catalog.client import Client
from catalog.restored import begin_epoch
from catalog.start import open_records
from catalog.trust import OlderFeed, Trust
from openshelf.__main__ import run
from tests.support.catalog_api import People, release_path
from tests.support.catalog_server import running_catalog

KEPT, LOST, NEWER = (f"datasets/backup/{name}@1.0" for name in ("kept", "lost", "newer"))


@contextlib.contextmanager
def catalog_of(data: Path) -> Iterator[People]:
    with running_catalog(data) as running:
        people = People(running)
        yield people
        people.close()


def back_up(data: Path, copy: Path) -> None:
    """As the operators' page says."""
    with contextlib.closing(sqlite3.connect(data / "catalog.db")) as database:
        database.execute("VACUUM INTO ?", (str(copy),))


def put_back(copy: Path, data: Path) -> None:
    for left in data.glob("catalog.db*"):
        left.unlink()
    shutil.copy(copy, data / "catalog.db")


def follow(people: People, trust: Trust) -> list[str]:
    """What a node does when it looks at the feed; the releases of the snapshot, if it took one."""
    with Client(people.catalog.url, people.catalog.admin_token.strip()) as client:
        trust.bootstrap(client)
        trust.accept_head(client.feed_head())
        if trust.needs_snapshot:
            releases = trust.accept_snapshot(client.feed_snapshot())["releases"]
            return sorted(f"{item['collection']}@{item['version']}" for item in releases)
        trust.accept_events(client.feed_events(trust.serial))
        return []


def test_a_node_refuses_a_restored_catalog_until_it_begins_a_new_epoch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    trust = Trust(tmp_path / "trust.json")
    with catalog_of(data) as people:
        people.publish(KEPT, {"a": b"kept"})
        back_up(data, copy)
        people.publish(LOST, {"a": b"lost"})
        assert follow(people, trust) == [KEPT, LOST]
        seen = trust.head
        lost_entries = len(people.administrator.ok("GET", "/v1/ledger?limit=10000")["entries"])
        in_use = run(["store", "restored", "--data", str(data)])
        assert in_use == 1
        assert "Another catalog is serving" in capfd.readouterr().err

    put_back(copy, data)
    with catalog_of(data) as people:
        with pytest.raises(OlderFeed):
            follow(people, trust)
        # Once the restored catalog has made up the numbers, the node would follow a history that is not its own.
        assert people.administrator.ok("GET", "/v1/ledger/verification")["intact"] is False

    capfd.readouterr()
    assert run(["store", "restored", "--data", str(data), "--json"]) == 0
    done = json.loads(capfd.readouterr().out)
    assert (done["epoch_before"], done["serial"], done["known_entries"]) == (1, 1, lost_entries)
    assert done["entries"] < lost_entries
    with catalog_of(data) as people:
        assert follow(people, trust) == [KEPT]
        assert trust.head > seen
        people.publish(NEWER, {"a": b"newer"})
        assert follow(people, trust) == []
        assert (trust.epoch, trust.serial) == (done["epoch"], 2)
        fresh = Trust(tmp_path / "fresh.json")
        assert follow(people, fresh) == [KEPT, NEWER]
        assert people.administrator.ok("GET", "/v1/ledger/verification")["intact"] is True
        entries = [item["entry"] for item in people.administrator.ok("GET", "/v1/ledger?limit=10000")["entries"]]
        said = next(entry for entry in entries if entry["event"] == "catalog.restored")
        assert said["actor"] is None
        assert said["details"]["known_entries"] == lost_entries
        assert len(said["details"]["known_hash"]) == 64
        people.alice.refused("GET", release_path(LOST), 404, "no_release")
    assert (data / f"ledger.checkpoint.before-{done['epoch']}").exists()


def test_the_same_backup_twice_begins_two_epochs(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy.db"
    with running_catalog(data):
        back_up(data, copy)
    now = datetime(2026, 11, 30, tzinfo=UTC)
    epochs = []
    for later in (timedelta(0), timedelta(minutes=5)):
        put_back(copy, data)
        with open_records(data) as records:
            epochs.append(begin_epoch(records, now + later).epoch)
    with open_records(data) as records:
        epochs.append(begin_epoch(records, now - timedelta(days=9)).epoch)
    assert epochs == [int(now.timestamp()), int(now.timestamp()) + 300, int(now.timestamp()) + 301]


@pytest.mark.parametrize("lacking", ["catalog.db", "catalog.key"])
def test_where_no_catalog_is_none_is_made(tmp_path: Path, capfd: pytest.CaptureFixture[str], lacking: str) -> None:
    there = {"catalog.db", "catalog.key"} - {lacking}
    for name in there:
        (tmp_path / name).write_bytes(b"")
    assert run(["store", "restored", "--data", str(tmp_path)]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "There is no catalog" in err
    assert {path.name for path in tmp_path.iterdir()} == there
