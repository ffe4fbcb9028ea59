"""Who may read a collection, from the catalog's rule to the mode of a folder: on a real mount of a real catalog."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import urllib3

from catalog.names import parse_collection, parse_release
from catalog.signing import Signed, SigningKey
from mountd.cache.store import Cache
from mountd.feed_state import FeedState
from mountd.follow import Credentials, Follower
from mountd.inodes import InodeTable
from mountd.tree import MountTree
from tests.support.catalog_server import RunningCatalog, catalog_process
from tests.support.publishing import Publisher
from tests.support.real_mount import RealMount
from tests.support.releases import make_release
from tests.support.signed_feed import SignedFeed

NOBODY = 65534
GROUP = 54321
OPEN = parse_release("datasets/belle/chat@1.0")
NOTES = parse_release("datasets/hospital/notes@1.0")
FILES = {"README.md": b"# notes\n", "deep/er/a.txt": b"one", "deep/er/b.txt": b"two"}


def wait_until(true: Callable[[], bool], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    with catalog_process(tmp_path_factory.mktemp("catalog") / "data") as running:
        people = Publisher(running, tmp_path_factory.mktemp("uploads"))
        for ref in (OPEN, NOTES):
            people.publish(ref, FILES)
        people.close()
        yield running


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that every user reaches, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="openshelf-access-"))
    folder.chmod(0o755)
    yield folder

    def is_gone() -> bool:  # the daemon may still be closing its files
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_until(is_gone)


def set_access(catalog: RunningCatalog, access: str, *readers: str) -> None:
    with urllib3.PoolManager() as pool:
        answer = pool.request(
            "PUT",
            f"{catalog.url}/v1/collections/{NOTES.collection}/access",
            body=json.dumps({"access": access, "readers": readers}),
            headers={"Authorization": f"Bearer {catalog.admin_token}", "Content-Type": "application/json"},
        )
    assert answer.status == 200, answer.data


def as_user(path: Path, *groups: int) -> str:
    """What ``cat`` says to somebody who is in these groups only."""
    done = subprocess.run(
        ["cat", path], capture_output=True, text=True, check=False, user=NOBODY, group=NOBODY, extra_groups=groups
    )
    return done.stdout or done.stderr.rpartition(": ")[2].strip()


def folders(top: Path) -> set[tuple[int, int]]:
    """Mode and group of every folder from ``top`` on."""
    states = [Path(folder).stat() for folder, _, _ in os.walk(top)]
    return {(state.st_mode & 0o7777, state.st_gid) for state in states}


def test_a_rule_that_changes_at_the_catalog_changes_the_mount(catalog: RunningCatalog, base: Path) -> None:
    groups = base / "groups"
    groups.write_text(f"datasets/hospital/*  {GROUP}\n")
    token = catalog.token("node", "node")
    with RealMount(base, catalog.url, token, OPENSHELF_GROUPS=str(groups)) as mount:
        notes = mount.mountpoint / "datasets" / "hospital" / "notes"
        file = notes / "1.0" / "deep" / "er" / "a.txt"

        def public() -> list[str]:
            told = json.loads((mount.mountpoint / ".openshelf" / "releases.json").read_text())
            return [line["release"] for line in told["releases"]]

        assert folders(notes) == {(0o555, 0)}
        assert as_user(file) == "one"
        assert public() == [str(OPEN), str(NOTES)]

        set_access(catalog, "restricted", "node")
        wait_until(lambda: folders(notes) == {(0o750, GROUP)})
        wait_until(lambda: public() == [str(OPEN)])
        assert as_user(file) == "Permission denied"
        assert as_user(file, GROUP) == "one"
        assert file.stat().st_mode & 0o7777 == 0o444
        assert as_user(mount.mountpoint / "datasets" / "belle" / "chat" / "1.0" / "README.md") == "# notes\n"
        os.kill(mount.status()["worker_pid"], 9)
        assert as_user(notes / "1.0" / "deep" / "er" / "b.txt") == "Permission denied"
        assert as_user(notes / "1.0" / "deep" / "er" / "b.txt", GROUP) == "two"

        set_access(catalog, "restricted")
        wait_until(lambda: not notes.exists())
        assert not notes.parent.exists()

        set_access(catalog, "restricted", "node")
        wait_until(file.exists)
        assert folders(notes) == {(0o750, GROUP)}
        assert as_user(file, GROUP) == "one"

        set_access(catalog, "public")
        wait_until(lambda: folders(notes) == {(0o555, 0)})
        assert as_user(file) == "one"
        wait_until(lambda: public() == [str(OPEN), str(NOTES)])


def test_without_a_mapping_a_restricted_collection_is_for_root_alone(catalog: RunningCatalog, base: Path) -> None:
    token = catalog.token("other", "node")
    set_access(catalog, "restricted", "other")
    with RealMount(base, catalog.url, token) as mount:
        notes = mount.mountpoint / "datasets" / "hospital" / "notes"
        assert folders(notes) == {(0o700, 0)}
        assert (notes / "1.0" / "README.md").read_bytes() == b"# notes\n"
        assert as_user(notes / "1.0" / "README.md", 0) == "Permission denied"


def test_a_bad_mapping_file_is_said_when_mounting(catalog: RunningCatalog, base: Path) -> None:
    groups = base / "groups"
    groups.write_text("datasets/hospital/notes\n")
    mount = RealMount(base, catalog.url, catalog.token("node", "node"), OPENSHELF_GROUPS=str(groups))
    done = mount.call(*mount._command, check=False)
    assert done.returncode != 0
    assert f"{groups} of groups line 1 is not a collection and a group" in done.stderr


def test_a_state_of_before_is_good_to_start_from_and_asks_for_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "names.sqlite"
    with sqlite3.connect(path) as old:
        old.executescript(
            """
            CREATE TABLE releases (collection TEXT, version TEXT, manifest_digest TEXT,
                PRIMARY KEY (collection, version)) WITHOUT ROWID;
            CREATE TABLE tags (collection TEXT, tag TEXT, version TEXT, PRIMARY KEY (collection, tag)) WITHOUT ROWID;
            CREATE TABLE position (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER, serial INTEGER);
            INSERT INTO releases VALUES ('datasets/hospital/notes', '1.0', 'ab');
            INSERT INTO position VALUES (1, 3, 17);
            """
        )
    old.close()
    notes = parse_collection("datasets/hospital/notes")
    for _ in range(2):
        state = FeedState.open(path)
        assert state.position == (3, -1)
        assert state.releases(notes) == {"1.0": "ab"}
        assert not state.is_restricted(notes)
        state.close()
    state = FeedState.open(path)
    release = {"collection": str(notes), "version": "1.0", "manifest_digest": "ab" * 32, "access": "restricted"}
    state.replace({"epoch": 3, "serial": 17, "releases": [release], "tags": []})
    state.close()
    state = FeedState.open(path)
    assert state.position == (3, 17)
    assert state.is_restricted(notes)
    state.close()


def test_a_catalog_that_does_not_say_the_rule_is_asked_for_a_snapshot(tmp_path: Path) -> None:
    """An event of an older catalog lacks the rule; whether the collection is restricted only a snapshot may say."""
    feed = SignedFeed(SigningKey.load_or_create(tmp_path / "key.pem"))
    made = make_release(parse_release("datasets/hospital/notes@1.0"), FILES, tmp_path)
    cache = Cache.open(tmp_path / "cache", 1 << 30)
    table = InodeTable.open(cache.layout.inodes)
    tree = MountTree(table)
    follower = Follower(feed, Credentials(None, None), cache, tree, wait_s=0.2)
    follower.start()

    def without_rule(signed: Signed) -> Signed:
        if signed.document.get("type") != "published":
            return signed
        return feed.key.sign("feed-event", {k: v for k, v in signed.document.items() if k != "access"})

    try:
        feed.alter = without_rule
        before = feed.snapshots
        feed.restricted.add("datasets/hospital/notes")
        feed.publish(made)
        wait_until(lambda: bool(tree.listed()))
        assert feed.snapshots == before + 1
        assert [(each.ref, each.restricted, each.gid) for each in tree.listed()] == [(made.ref, True, 0)]
        feed.restrict("datasets/hospital/notes", restricted=False)
        wait_until(lambda: not tree.listed()[0].restricted)
    finally:
        follower.close()
        table.close()
        cache.close()
