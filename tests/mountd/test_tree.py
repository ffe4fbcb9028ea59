"""The tree: names from manifests, node ids that never change, tags, and what is told when something changes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.manifest import DEFAULT_MTIME_NS, Manifest
from catalog.names import parse_collection, parse_release
from mountd.inodes import InodeTable
from mountd.interfaces import ROOT_ID, Invalidation, Node
from mountd.releases import ListedRelease
from mountd.rows import Rows
from mountd.tree import CollectionState, MountTree
from tests.support.releases import MadeRelease, make_release

FILES = {
    "README.md": b"# chat\n",
    "data/train-00000-of-00001.parquet": b"PAR1",
    "data/a.txt": b"beside a folder of nearly the same name",
    "data/a/one": b"1",
    "data/a/two": b"22",
    "data/a-b/three": b"333",
    "诗/静夜思.txt": "床前明月光".encode(),
    "zero": b"",
}
CHAT = parse_collection("datasets/belle/chat")


def listed(made: MadeRelease) -> ListedRelease:
    return ListedRelease(
        made.ref,
        made.digest,
        len(made.entries),
        made.size_bytes,
        DEFAULT_MTIME_NS,
        "CC-BY-4.0",
        b'{"version":"1.0"}',
        b'{"signature":"abc"}',
        lambda: Rows(Manifest.open(made.manifest)),
    )


@pytest.fixture
def table(tmp_path: Path) -> Iterator[InodeTable]:
    opened = InodeTable.open(tmp_path / "inodes")
    yield opened
    opened.close()


@pytest.fixture
def made(tmp_path: Path) -> MadeRelease:
    return make_release(parse_release("datasets/belle/chat@1.0"), FILES, tmp_path)


def walk(tree: MountTree, path: str) -> Node:
    node = tree.node(ROOT_ID)
    for name in path.split("/"):
        assert node is not None
        node = tree.lookup(node.nodeid, name.encode())
    assert node is not None, path
    return node


def all_nodes(tree: MountTree, nodeid: int = ROOT_ID, path: str = "") -> dict[str, Node]:
    found = {}
    for name, node in tree.children(nodeid):
        here = f"{path}/{name.decode()}"
        found[here] = node
        if node.kind == "dir":
            found |= all_nodes(tree, node.nodeid, here)
    return found


def test_an_empty_mount_has_the_folders_of_the_kinds(table: InodeTable) -> None:
    tree = MountTree(table)
    assert [name for name, _ in tree.children(ROOT_ID)] == [
        b".openshelf",
        b"code",
        b"datasets",
        b"images",
        b"models",
        b"templates",
    ]
    assert tree.children(walk(tree, "datasets").nodeid) == []
    assert tree.lookup(ROOT_ID, b"belle") is None


def test_every_file_is_found_with_its_true_attributes(table: InodeTable, made: MadeRelease) -> None:
    tree = MountTree(table)
    tree.update([CollectionState(CHAT, [listed(made)], {"latest": "1.0"})])
    for path, content in FILES.items():
        node = walk(tree, f"datasets/belle/chat/1.0/{path}")
        assert (node.kind, node.mode, node.size, node.mtime_ns) == ("file", 0o444, len(content), DEFAULT_MTIME_NS)
        assert node.entry == made.entries[path]
        assert tree.node(node.nodeid) == node
    folder = walk(tree, "datasets/belle/chat/1.0/data")
    assert (folder.kind, folder.mode, folder.nlink) == ("dir", 0o555, 1)
    assert tree.totals().files == len(FILES)
    assert tree.totals().size_bytes == sum(map(len, FILES.values()))
    assert tree.licence(made.ref) == "CC-BY-4.0"


def test_entries_come_in_order_of_paths_behind_the_record(table: InodeTable, made: MadeRelease) -> None:
    tree = MountTree(table)
    tree.update([CollectionState(CHAT, [listed(made)], {})])
    release = walk(tree, "datasets/belle/chat/1.0")
    names = [name.decode() for name, _ in tree.children(release.nodeid)]
    assert names == ["release.json", "release.json.sig", "README.md", "data", "zero", "诗"]
    data = tree.children(walk(tree, "datasets/belle/chat/1.0/data").nodeid)
    # As whole paths are ordered: "a-b/three" and "a.txt" stand before "a/one".
    assert [name for name, _ in data] == [b"a-b", b"a.txt", b"a", b"train-00000-of-00001.parquet"]


def test_what_is_listed_is_what_is_looked_up(table: InodeTable, made: MadeRelease) -> None:
    tree = MountTree(table)
    tree.update([CollectionState(CHAT, [listed(made)], {"latest": "1.0"})])
    for path, node in all_nodes(tree).items():
        if path.startswith("/.openshelf/"):
            continue
        found = walk(tree, path[1:])
        assert found._replace(entry=None) == node
        parent = tree.place(node.nodeid)
        assert parent is not None
        assert parent[1].decode() == path.rpartition("/")[2]
        assert tree.lookup(*parent) == found


def test_names_that_do_not_exist_are_answered_with_nothing(table: InodeTable, made: MadeRelease) -> None:
    tree = MountTree(table)
    tree.update([CollectionState(CHAT, [listed(made)], {})])
    release = walk(tree, "datasets/belle/chat/1.0")
    data = walk(tree, "datasets/belle/chat/1.0/data")
    for parent, name in ((release, b"dat"), (release, b"data/a"), (data, b"a/"), (data, b"zero"), (data, b"\xff")):
        assert tree.lookup(parent.nodeid, name) is None
    assert tree.node(1 << 59) is None
    assert tree.node(data.nodeid + 1) is None
    assert tree.lookup(walk(tree, "datasets/belle/chat/1.0/zero").nodeid, b"x") is None


def test_node_ids_are_the_same_for_another_worker(table: InodeTable, made: MadeRelease, tmp_path: Path) -> None:
    other = make_release(parse_release("datasets/belle/chat@2.0"), {"x": b"x"}, tmp_path)
    first = MountTree(table)
    first.update([CollectionState(CHAT, [listed(made)], {"latest": "1.0"})])
    first.update([CollectionState(CHAT, [listed(made), listed(other)], {"latest": "2.0"})])
    reopened = InodeTable.open(tmp_path / "inodes")
    second = MountTree(reopened)
    second.update([CollectionState(CHAT, [listed(other), listed(made)], {"latest": "2.0"})])
    ids = {path: node.nodeid for path, node in all_nodes(first).items() if "status" not in path}
    assert {path: node.nodeid for path, node in all_nodes(second).items() if "status" not in path} == ids
    assert len(set(ids.values())) == len(ids)
    for path, nodeid in ids.items():
        node = second.node(nodeid)
        assert node is not None and node.ino == nodeid, path
    reopened.close()


def test_a_tag_is_a_relative_link_and_gets_another_id_when_it_moves(
    table: InodeTable, made: MadeRelease, tmp_path: Path
) -> None:
    other = make_release(parse_release("datasets/belle/chat@2.0"), {"x": b"x"}, tmp_path)
    tree = MountTree(table)
    tree.update([CollectionState(CHAT, [listed(made), listed(other)], {"latest": "1.0"})])
    before = walk(tree, "datasets/belle/chat/latest")
    assert (before.kind, tree.readlink(before.nodeid), before.size) == ("link", b"1.0", 3)
    tree.update([CollectionState(CHAT, [listed(made), listed(other)], {"latest": "2.0"})])
    after = walk(tree, "datasets/belle/chat/latest")
    assert tree.readlink(after.nodeid) == b"2.0"
    assert after.nodeid != before.nodeid
    assert after.ttl_s <= 1


def test_only_the_names_concerned_are_invalidated(table: InodeTable, made: MadeRelease, tmp_path: Path) -> None:
    other = make_release(parse_release("datasets/belle/chat@2.0"), {"x": b"x"}, tmp_path)
    tree = MountTree(table)
    told: list[Invalidation] = []
    tree.subscribe(lambda change: None if change.name == b"releases.json" else told.append(change))
    tree.update([CollectionState(CHAT, [listed(made)], {"latest": "1.0"})])
    assert Invalidation(walk(tree, "datasets").nodeid, b"belle") in told
    chat = walk(tree, "datasets/belle/chat")
    release = walk(tree, "datasets/belle/chat/1.0")
    told.clear()
    tree.update([CollectionState(CHAT, [listed(made), listed(other)], {"latest": "1.0"})])
    assert told == [Invalidation(chat.nodeid, b"2.0")]
    told.clear()
    tree.update([CollectionState(CHAT, [listed(made), listed(other)], {"latest": "2.0"})])
    assert told == [Invalidation(chat.nodeid, b"latest")]
    told.clear()
    tree.update([CollectionState(CHAT, [listed(made)], {})])
    assert told == [Invalidation(chat.nodeid, b"2.0"), Invalidation(chat.nodeid, b"latest")]
    assert walk(tree, "datasets/belle/chat/1.0") == release


def test_a_withdrawn_release_has_no_names_but_its_open_files_stay(table: InodeTable, made: MadeRelease) -> None:
    tree = MountTree(table)
    tree.update([CollectionState(CHAT, [listed(made)], {"latest": "1.0"})])
    datasets = walk(tree, "datasets")
    release = walk(tree, "datasets/belle/chat/1.0")
    opened = walk(tree, "datasets/belle/chat/1.0/README.md")
    tree.update([CollectionState(CHAT, [], {})])
    assert tree.children(datasets.nodeid) == []
    assert tree.lookup(release.nodeid, b"README.md") is None
    assert list(tree.children(release.nodeid)) == []
    assert tree.node(opened.nodeid) == opened
    assert tree.totals().files == 0


def test_release_json_has_the_signed_bytes(table: InodeTable, made: MadeRelease) -> None:
    tree = MountTree(table)
    tree.update([CollectionState(CHAT, [listed(made)], {})])
    record = walk(tree, "datasets/belle/chat/1.0/release.json")
    assert (record.content, record.size) == (b'{"version":"1.0"}', 17)
    assert walk(tree, "datasets/belle/chat/1.0/release.json.sig").content == b'{"signature":"abc"}'


def test_status_json_keeps_its_size_and_never_changes_under_an_id(table: InodeTable) -> None:
    serial = iter(range(100, 200))
    tree = MountTree(table, lambda: {"feed_serial": next(serial)})
    node = walk(tree, ".openshelf/status.json")
    assert node.content is not None and len(node.content) == node.size == 4096
    assert json.loads(node.content)["feed_serial"] == 100
    assert tree.node(node.nodeid) == node
    assert [name for name, _ in tree.children(walk(tree, ".openshelf").nodeid)] == [b"releases.json", b"status.json"]
    assert tree.place(node.nodeid) == (walk(tree, ".openshelf").nodeid, b"status.json")


def test_releases_json_tells_what_everybody_may_see_and_changes_its_id(
    table: InodeTable, made: MadeRelease, tmp_path: Path
) -> None:
    tree = MountTree(table)
    told: list[Invalidation] = []
    tree.subscribe(told.append)
    empty = walk(tree, ".openshelf/releases.json")
    assert empty.content is not None and json.loads(empty.content) == {"releases": []}
    hidden = make_release(parse_release("datasets/hospital/notes@1.0"), {"x": b"x"}, tmp_path)
    private = dataclasses.replace(listed(hidden), restricted=True, gid=5012)
    tree.update([
        CollectionState(CHAT, [listed(made)], {"latest": "1.0", "best": "1.0"}),
        CollectionState(hidden.ref.collection, [private], {"latest": "1.0"}),
    ])  # fmt: skip
    assert told[0] == Invalidation(walk(tree, ".openshelf").nodeid, b"releases.json")
    now = walk(tree, ".openshelf/releases.json")
    assert now.content is not None and now.size == len(now.content)
    assert json.loads(now.content) == {
        "releases": [
            {
                "release": "datasets/belle/chat@1.0",
                "manifest_digest": made.digest,
                "files": 8,
                "size_bytes": sum(map(len, FILES.values())),
                "licence": "CC-BY-4.0",
                "tags": ["best", "latest"],
            }
        ]
    }
    assert now.nodeid != empty.nodeid
    assert (tree.node(empty.nodeid), tree.node(now.nodeid)) == (empty, now)
    assert MountTree(table).node(now.nodeid) is None
    assert tree.place(now.nodeid) == (walk(tree, ".openshelf").nodeid, b"releases.json")


def test_folders_of_a_restricted_collection_have_its_group_and_other_ids(table: InodeTable, made: MadeRelease) -> None:
    tree = MountTree(table)
    tree.update([CollectionState(CHAT, [listed(made)], {})])
    public = walk(tree, "datasets/belle/chat/1.0/data")
    told: list[Invalidation] = []
    tree.subscribe(told.append)
    for gid, mode in ((77, 0o750), (0, 0o700)):
        told.clear()
        release = dataclasses.replace(listed(made), restricted=True, gid=gid)
        tree.update([CollectionState(CHAT, [release], {})])
        chat = walk(tree, "datasets/belle/chat")
        assert Invalidation(chat.nodeid, b"1.0") in told
        for path in ("datasets/belle/chat", "datasets/belle/chat/1.0", "datasets/belle/chat/1.0/data/a"):
            folder = walk(tree, path)
            assert (folder.mode, folder.gid) == (mode, gid)
        data = walk(tree, "datasets/belle/chat/1.0/data")
        assert data.nodeid != public.nodeid
        assert {(node.kind, node.mode, node.gid) for _, node in tree.children(data.nodeid)} == {
            ("file", 0o444, 0),
            ("dir", mode, gid),
        }
        assert walk(tree, "datasets/belle").mode == 0o555
        assert tree.listed() == [release]
    assert list(tree.children(public.nodeid)) == []
    tree.update([CollectionState(CHAT, [listed(made)], {})])
    assert walk(tree, "datasets/belle/chat/1.0/data") == public
    assert walk(tree, "datasets/belle/chat").mode == 0o555


def test_the_next_worker_knows_the_ids_of_every_access_rule_until_they_are_forgotten(
    table: InodeTable, made: MadeRelease
) -> None:
    before = MountTree(table)
    opened, chats = [], set()
    for rule in ({}, {"restricted": True}, {"restricted": True, "gid": 77}):
        before.update([CollectionState(CHAT, [dataclasses.replace(listed(made), **rule)], {})])
        opened.append(walk(before, "datasets/belle/chat/1.0/README.md"))
        chats.add(walk(before, "datasets/belle/chat").nodeid)
    belle, [chat] = walk(before, "datasets/belle"), chats
    after = MountTree(table)
    after.keep_hidden([listed(made)])
    assert [after.node(each.nodeid) for each in opened] == opened
    assert after.listed() == []
    assert after.lookup(walk(after, "datasets").nodeid, b"belle") is None
    assert (after.place(chat), after.place(belle.nodeid)) == (
        (belle.nodeid, b"chat"),
        (walk(after, "datasets").nodeid, b"belle"),
    )
    after.forget(after.slots(listed(made)))
    assert [after.node(each.nodeid) for each in opened] == [None] * 3


def test_folders_with_many_files_and_folders_are_listed_whole(table: InodeTable, tmp_path: Path) -> None:
    names = [f"{number:05d}.jpg" for number in range(3000)]
    files = {f"{folder:03d}/x": b"" for folder in range(0, 400, 3)} | dict.fromkeys(names, b"")
    files |= {f"deep/{number}/y/z": b"" for number in range(200)}
    made = make_release(parse_release("datasets/belle/chat@1.0"), files, tmp_path)
    tree = MountTree(table)
    tree.update([CollectionState(CHAT, [listed(made)], {})])
    root = tmp_path / "plain"
    for path in files:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    for folder in ("", "deep", "deep/7", "003"):
        node = walk(tree, f"datasets/belle/chat/1.0/{folder}".rstrip("/"))
        expected = {os.fsencode(entry.name): entry.is_dir() for entry in os.scandir(root / folder)}
        found = [(name, child.kind) for name, child in tree.children(node.nodeid) if child.content is None]
        assert {name: kind == "dir" for name, kind in found} == expected
        assert len(found) == len(expected)
