"""What READDIR and READDIRPLUS answer: the same in portions of any size, and byte for byte what single nodes give."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from catalog.manifest import DEFAULT_MTIME_NS, FileEntry, Manifest, write_manifest
from catalog.names import parse_release
from mountd import rows as rows_module
from mountd.inodes import InodeTable
from mountd.interfaces import ROOT_ID, Node
from mountd.kernel import ahead, listing
from mountd.kernel.attributes import attr_bytes, validity
from mountd.kernel.listing import Form, Listings, piece_of
from mountd.kernel.opens import OpenTable
from mountd.kernel.operations import Operations, Request
from mountd.kernel.protocol import ENTRY_BYTES, ENTRY_OUT, READ_IN, Opcode
from mountd.releases import ListedRelease
from mountd.rows import Rows
from mountd.shared_state import SharedState
from mountd.tree import CollectionState, MountTree
from tests.support.plain_tree import PlainReader, PlainTree

REF = parse_release("datasets/belle/chat@1.0")


def entry_bytes(node: Node) -> bytes:
    seconds, nanoseconds = validity(node.ttl_s)
    return ENTRY_OUT.pack(node.nodeid, 0, seconds, seconds, nanoseconds, nanoseconds) + attr_bytes(node)


Found = tuple[bytes, int, int, bytes]
"""name, ino, type, entry"""


def read_from(listings: Listings, directory: Node, size: int, form: Form, cookie: int = 0) -> list[Found]:
    """All entries as a reader with a buffer of ``size`` bytes sees them."""
    found = []
    head = 0 if form is Form.NAMES else ENTRY_BYTES
    while part := bytes(listings.answer(directory, cookie, size, form)):
        assert len(part) <= size
        at = 0
        while at < len(part):
            ino, cookie, length, kind = struct.unpack_from("=QQII", part, at + head)
            start = at + head + 24
            found.append((part[start : start + length], ino, kind, part[at : at + head]))
            end = (start + length + 7) // 8 * 8
            assert part[start + length : end] == bytes(end - start - length)
            at = end
    return found


def expected_of(tree: MountTree, directory: Node, form: Form) -> list[Found]:
    """The same from the nodes one by one."""
    parent = tree.place(directory.nodeid)
    assert parent is not None
    none = b"" if form is Form.NAMES else bytes(ENTRY_BYTES)
    dots = [(b".", directory.ino, 4, none), (b"..", parent[0], 4, none)]
    for name, node in tree.children(directory.nodeid):
        looked_up = tree.lookup(directory.nodeid, name)
        assert looked_up is not None
        assert looked_up._replace(entry=None) == node == tree.glance(directory.nodeid, name)
        entry = entry_bytes(looked_up) if form is Form.WHOLE else none
        dots.append((name, node.ino, {"dir": 4, "file": 8}[node.kind], entry))
    return dots


@pytest.fixture
def table(tmp_path: Path) -> Iterator[InodeTable]:
    opened = InodeTable.open(tmp_path / "inodes")
    yield opened
    opened.close()


def release_of(paths: list[str], folder: Path, table: InodeTable, gid: int = 0) -> MountTree:
    """A tree with one release of these files; each size and time is another."""
    entries = [
        FileEntry(path, number, (0o444, 0o555)[number % 2], DEFAULT_MTIME_NS + number, bytes(32), bytes(32), 0, ())
        for number, path in enumerate(paths)
    ]
    for number, entry in enumerate(entries):
        entries[number] = FileEntry(
            *(getattr(entry, name) for name in entry.__slots__[:7]), (bytes(32),) * bool(number)
        )
    manifest = folder / "files.arrow"
    digest = write_manifest(entries, manifest).hex()
    tree = MountTree(table)
    listed = ListedRelease(
        REF, digest, len(paths), 0, DEFAULT_MTIME_NS + 7, None, b"{}", b"{ }", lambda: Rows(Manifest.open(manifest)),
        restricted=bool(gid), gid=gid,
    )  # fmt: skip
    tree.update([CollectionState(REF.collection, [listed], {})])
    return tree


def find(tree: MountTree, path: str) -> Node:
    node = tree.node(ROOT_ID)
    for name in path.strip("/").split("/"):
        assert node is not None
        node = tree.lookup(node.nodeid, name.encode())
    assert node is not None
    return node


MIXED = [
    "a",
    *[f"many/{'n' * (number % 40 + 1)}{number}" for number in range(3000)],
    *[f"folders/{number // 3}/{number}" for number in range(3000)],
    *[f"large/{number // 500}/{number:05d}" for number in range(3000)],
    *[f"mixed/{number:04d}{'/x' if number % 3 else '.txt'}" for number in range(400)],
    "mixed/same-length/a", "mixed/same-lengti/a", "mixed/same-length.txt", "mixed/诗/静夜思.txt",
    "deep/" + "/".join("abcdefghij"),
]  # fmt: skip


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("size", [400, 4096, 1 << 20])
def test_a_release_is_listed_as_its_nodes_are(
    form: Form, size: int, table: InodeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "LAST_BLOCK_ROWS", 256)
    tree = release_of(MIXED, tmp_path, table, gid=77)
    listings = Listings(tree, entry_bytes, dict)
    for path in ("", "many", "folders", "folders/7", "large", "large/2", "mixed", "deep", "deep/a/b/c"):
        directory = find(tree, f"datasets/belle/chat/1.0/{path}")
        expected = expected_of(tree, directory, form)
        assert read_from(listings, directory, size, form) == expected
        names = [name for name, *_ in expected[2:]]
        below = f"{path}/" if path else ""
        inside = {each.removeprefix(below).split("/")[0] for each in MIXED if each.startswith(below)}
        assert set(names) - {b"release.json", b"release.json.sig"} == {name.encode() for name in inside}
        assert len(set(names)) == len(names)


def test_another_worker_goes_on_from_any_cookie(table: InodeTable, tmp_path: Path) -> None:
    tree = release_of(MIXED, tmp_path, table)
    chosen = random.Random(3)
    for path in ("", "mixed", "folders"):
        directory = find(tree, f"datasets/belle/chat/1.0/{path}")
        listings, cookie, rest = Listings(tree, entry_bytes, dict), 0, {}
        entries = read_from(listings, directory, 1 << 20, Form.NAMES)
        while one := bytes(listings.answer(directory, cookie, 24 + 256, Form.NAMES)):
            _, cookie, _, _ = struct.unpack_from("=QQII", one)
            rest[cookie] = entries[len(rest) + 1 :]
        assert len(rest) == len(entries)
        for cookie in chosen.sample(sorted(rest), min(len(rest), 40)):
            fresh = Listings(tree, entry_bytes, dict)
            assert read_from(fresh, directory, 4096, Form.NAMES, cookie=cookie) == rest[cookie]


def test_little_is_kept_of_a_large_folder(table: InodeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "KEPT_BYTES", 20_000)
    monkeypatch.setattr(rows_module, "LAST_BLOCK_ROWS", 64)
    tree = release_of([f"x/{number:06d}" for number in range(20_000)], tmp_path, table)
    listings = Listings(tree, entry_bytes, dict)
    directory = find(tree, "datasets/belle/chat/1.0/x")
    for _ in range(2):
        assert len(read_from(listings, directory, 4096, Form.WHOLE)) == 20_002
    assert listings._kept_bytes == sum(map(len, listings._kept.values())) < 60_000


def test_a_file_handed_out_under_another_id_is_so_in_the_listing(table: InodeTable, tmp_path: Path) -> None:
    tree = release_of(["a", "b"], tmp_path, table)
    release, other = find(tree, "datasets/belle/chat/1.0"), find(tree, "datasets/belle/chat/1.0/b").nodeid
    listings = Listings(tree, entry_bytes, lambda: {other: other | 1 << 60})
    entries = {name: (ino, entry) for name, ino, _, entry in read_from(listings, release, 4096, Form.WHOLE)}
    assert entries[b"b"][0] == other
    assert struct.unpack_from("=Q", entries[b"b"][1]) == (other | 1 << 60,)
    assert struct.unpack_from("=Q", entries[b"a"][1]) == (find(tree, "datasets/belle/chat/1.0/a").nodeid,)


def look_up(operations: Operations, state: SharedState, parent: int, name: bytes, pid: int = 1) -> object:
    request = Request(Opcode.LOOKUP, 1, parent, 0, pid, 0, memoryview(name + b"\0"), state.counters(0))
    return operations.handlers[Opcode.LOOKUP](request)


def list_from(operations: Operations, state: SharedState, directory: int, cookie: int, pid: int) -> bytes:
    """A page of READDIRPLUS."""
    body = memoryview(READ_IN.pack(0, cookie, 4096) + bytes(16))
    answer = operations.handlers[Opcode.READDIRPLUS](
        Request(Opcode.READDIRPLUS, 1, directory, 0, pid, 0, body, state.counters(0))
    )
    assert isinstance(answer, tuple)
    return bytes(answer[0])


def test_entries_come_with_the_listing_to_whom_looks_at_what_it_lists(
    table: InodeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``du`` lists a whole folder and then looks at each file: from the second folder on it need not ask for them."""
    tree = release_of(MIXED, tmp_path, table)
    state = SharedState()
    opens = OpenTable(state, -1, passthrough=False)
    operations = Operations(tree, PlainReader(PlainTree(tmp_path), tmp_path), opens, lambda _: None, lambda _: None)
    many, mixed = (find(tree, f"datasets/belle/chat/1.0/{path}").nodeid for path in ("many", "mixed"))
    _, first = next(iter(tree.children(mixed)))
    whole, bare = entry_bytes(tree.node(first.nodeid) or first), bytes(ENTRY_BYTES)

    def after_the_dots(pid: int) -> bytes:
        return list_from(operations, state, mixed, 2, pid)[:ENTRY_BYTES]

    assert whole in list_from(operations, state, mixed, 0, 7)
    assert after_the_dots(7) == bare
    for name in [name for name, _ in tree.children(many)][:10]:
        look_up(operations, state, many, name, pid=7)
    assert after_the_dots(7) == whole
    assert after_the_dots(8) == bare
    monkeypatch.setattr(ahead, "LOOKS_FOR_S", 0.0)
    assert after_the_dots(7) == bare


def test_names_looked_up_in_any_order_have_the_same_entries(
    table: InodeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the listing most are made beforehand; they must not differ from those made one by one."""
    monkeypatch.setattr(ahead, "MOST", 50)
    tree = release_of(MIXED, tmp_path, table, gid=77)
    state = SharedState()
    opens = OpenTable(state, -1, passthrough=False)
    operations = Operations(tree, PlainReader(PlainTree(tmp_path), tmp_path), opens, lambda _: None, lambda _: None)
    chosen = random.Random(2)
    glances: list[bytes] = []
    glance = tree.glance
    monkeypatch.setattr(tree, "glance", lambda parent, name: glances.append(name) or glance(parent, name))
    for path in ("", "many", "mixed", "folders/7"):
        folder = find(tree, f"datasets/belle/chat/1.0/{path}").nodeid
        listed = [name for name, _ in tree.children(folder)]
        shuffled = chosen.sample(listed, len(listed))
        backwards = listed[::-1]
        for names in (listed, shuffled, listed + listed[:30], backwards, [*listed[:20], b"missing", *listed[20:]]):
            glances.clear()
            for name in names:
                node = tree.lookup(folder, name)
                answer = look_up(operations, state, folder, name)
                if node is None:
                    assert name == b"missing"
                    continue
                assert answer == (entry_bytes(node),)
            if path == "many" and names is listed:
                assert len(glances) < len(listed) / 8
    last = find(tree, "datasets/belle/chat/1.0/many").nodeid
    listed = [name for name, _ in tree.children(last)]
    for name in listed[:10]:
        look_up(operations, state, last, name)
    tree.subscribe(operations.name_changed)
    tree.update([CollectionState(REF.collection, [], {})])
    assert look_up(operations, state, last, listed[10]) == errno.ENOENT


@pytest.mark.parametrize("size", [64, 100, 4096, 1 << 20])
def test_a_small_directory_is_the_same_in_portions_of_any_size(size: int) -> None:
    names = [(b"n" * (number % 30 + 1), number + 10, "file", b"") for number in range(500)]
    piece = piece_of(names)
    found, cookie = [], 0
    while part := bytes(piece.slice(cookie, size)):
        assert len(part) <= size
        at = 0
        while at < len(part):
            ino, cookie, length, kind = struct.unpack_from("=QQII", part, at)
            found.append((part[at + 24 : at + 24 + length], ino, kind))
            at += (24 + length + 7) // 8 * 8
    assert found == [(name, ino, 8) for name, ino, _, _ in names]


def test_an_entry_too_large_for_the_buffer_gives_nothing_rather_than_half() -> None:
    assert bytes(piece_of([(b"long-name", 1, "file", b"")]).slice(0, 20)) == b""


def test_rows_are_found_across_batches_and_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a list: every path, every place between two paths, and every part of the rows."""
    from scripts.lib.synthetic_manifest import make_release

    made = make_release(tmp_path, 150_000, 7)
    rows = Rows(Manifest.open(made.manifest))
    paths = [rows.path(row) for row in range(len(rows))]
    assert paths == sorted(paths) and len(set(paths)) == 150_000
    chosen = random.Random(1)
    for row in [0, 1, 63, 64, 65_535, 65_536, 131_071, 149_999, *chosen.sample(range(150_000), 400)]:
        assert rows.find(paths[row], 0, len(rows)) == row
        low, high = sorted((chosen.randrange(150_000), chosen.randrange(150_000)))
        assert rows.find(paths[row], low, high) == (row if low <= row < high else None)
        assert rows.find(paths[row][:-1], 0, len(rows)) is None and rows.find(paths[row] + b"!", 0, len(rows)) is None
        for path, place in ((paths[row], row), (paths[row] + b"!", row + 1), (b"", 0), (b"zzz", 150_000)):
            assert rows.lower_bound(path, 0, len(rows)) == place
            assert rows.lower_bound(path, low, high) == min(max(place, low), high)
    assert int(np.sum([len(part) for part in rows.sha256_column()])) == 150_000
