"""The parts of the kernel transport by themselves: layouts, listings, shared memory, the table of opens."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from mountd.interfaces import MAX_NODEID, Node
from mountd.kernel import protocol
from mountd.kernel.answers import FileRange
from mountd.kernel.opens import OpenTable, base_id
from mountd.kernel.operations import Operations, Request
from mountd.kernel.protocol import Opcode
from mountd.shared_state import SLOTS, Counter, SharedState
from tests.support.plain_tree import PlainReader, PlainTree

# sizeof() of the C structures, from include/uapi/linux/fuse.h of Linux 6.18
SIZES = {
    "IN_HEADER": 40,
    "OUT_HEADER": 16,
    "INIT_OUT": 64,
    "ATTR": 88,
    "STATX": 256,
    "STATX_OUT": 32,
    "OPEN_OUT": 16,
    "STATFS_OUT": 80,
    "DIRENT": 24,
    "BACKING_MAP": 16,
    "LSEEK_IN": 24,
    "GETXATTR_IN": 8,
    "GETXATTR_OUT": 8,
    "NOTIFY_INVAL_ENTRY": 16,
}


@pytest.mark.parametrize("name", SIZES)
def test_layouts_have_the_sizes_of_the_kernel_header(name: str) -> None:
    assert getattr(protocol, name).size == SIZES[name]


def test_ioctl_numbers_are_those_of_the_header() -> None:
    assert protocol.ENTRY_BYTES == 128
    assert (protocol.DEV_IOC_CLONE, protocol.DEV_IOC_BACKING_OPEN, protocol.DEV_IOC_BACKING_CLOSE) == (
        0x8004E500,
        0x4010E501,
        0x4004E502,
    )


@pytest.fixture
def state() -> SharedState:
    return SharedState()


def test_counters_of_all_threads_add_up(state: SharedState) -> None:
    for slot in (0, 5, SLOTS):
        state.counters(slot)[Counter.LOOKUPS] += slot + 1
    assert state.total(Counter.LOOKUPS) == 1 + 6 + SLOTS + 1
    assert state.total(Counter.REQUESTS) == 0


def test_facts_are_read_whole_or_not_at_all(state: SharedState) -> None:
    assert state.facts() == {}
    state.publish({"名": "值", "n": 1})
    state.publish({"n": 2})
    assert state.facts() == {"n": 2}
    with pytest.raises(ValueError, match="fit"):
        state.publish({"x": "y" * 70_000})
    assert state.facts() == {"n": 2}


def test_a_change_of_the_table_that_was_cut_off_is_completed(state: SharedState) -> None:
    from mountd import shared_state

    state.change_row(0, 100, 0, 42, 7, 1)
    # Killed after the log was written and before anything else was: only the log knows.
    memory = state._map
    shared_state.LOG.pack_into(memory, 64, 1, 3, 200, 1, 43, 8, 1)
    assert state.rows() == 1
    state.redo()
    state.redo()
    assert state.row(1) == (43, 8, 1)
    assert state.rows() == 2
    assert state.applied() == {100, 200}


@pytest.fixture
def plain(tmp_path: Path) -> tuple[PlainTree, PlainReader]:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"aaa")
    (tmp_path / "marks").mkdir()
    tree = PlainTree(tmp_path / "source")
    return tree, PlainReader(tree, tmp_path / "marks")


def open_once(table: OpenTable, plain: tuple[PlainTree, PlainReader], nodeid: int, unique: int) -> None:
    tree, reader = plain
    if table.join(nodeid, 0, unique) is None:
        node = tree.node(base_id(nodeid))
        assert node is not None
        handle = reader.open(node)
        _, kept = table.begin(nodeid, handle, 0, unique)
        if not kept:
            handle.close()


def close_once(table: OpenTable, nodeid: int, unique: int) -> None:
    handle = table.end(nodeid, 0, unique)
    if handle is not None:
        handle.close()


def test_opens_are_counted_over_a_workers_death_and_a_resent_request_counts_once(
    state: SharedState, plain: tuple[PlainTree, PlainReader]
) -> None:
    nodeid = 2
    first = OpenTable(state, -1, passthrough=False)
    open_once(first, plain, nodeid, 10)
    open_once(first, plain, nodeid, 12)
    # The worker dies before its answer to request 12 reaches the kernel, which sends it again.
    second = OpenTable(state, -1, passthrough=False)
    open_once(second, plain, nodeid, 12 | protocol.RESENT_BIT)
    entry = second.get(nodeid)
    assert entry is not None
    assert entry.opens == 2
    close_once(second, nodeid, 20)
    third = OpenTable(state, -1, passthrough=False)
    close_once(third, nodeid, 20 | protocol.RESENT_BIT)
    assert len(third) == 1
    close_once(third, nodeid, 22)
    assert len(third) == 0
    assert len(OpenTable(state, -1, passthrough=False)) == 0
    held = first.get(nodeid)
    assert held is not None
    assert held.handle is not None
    held.handle.close()


def test_rows_are_used_again(state: SharedState, plain: tuple[PlainTree, PlainReader]) -> None:
    table = OpenTable(state, -1, passthrough=False)
    for number in range(50):
        open_once(table, plain, 2, 2 * number + 2)
        close_once(table, 2, 2 * number + 1001)
    assert state.rows() == 1


def ask(operations: Operations, state: SharedState, opcode: int, nodeid: int, body: bytes = b"") -> object:
    request = Request(opcode, 1, nodeid, 0, 1, 0, memoryview(body), state.counters(0))
    return operations.handlers[opcode](request)


@pytest.fixture
def operations(state: SharedState, plain: tuple[PlainTree, PlainReader]) -> Operations:
    tree, reader = plain
    return Operations(tree, reader, OpenTable(state, -1, passthrough=False), lambda _: None, lambda _: None)


WRITING = [
    "SETATTR", "SYMLINK", "MKNOD", "MKDIR", "UNLINK", "RMDIR", "RENAME", "RENAME2", "LINK", "WRITE", "SETXATTR",
    "REMOVEXATTR", "CREATE", "FALLOCATE", "COPY_FILE_RANGE", "COPY_FILE_RANGE_64", "TMPFILE",
]  # fmt: skip
UNKNOWN = ["FSYNC", "FLUSH", "FSYNCDIR", "GETLK", "SETLK", "SETLKW", "ACCESS", "BMAP", "POLL", "SETUPMAPPING", "SYNCFS"]


@pytest.mark.parametrize("name", WRITING)
def test_a_writing_request_that_reaches_us_is_refused(operations: Operations, state: SharedState, name: str) -> None:
    assert ask(operations, state, int(Opcode[name]), 2) == errno.EROFS


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_kernel_does_better_itself_has_no_handler(operations: Operations, name: str) -> None:
    assert int(Opcode[name]) not in operations.handlers  # the channel then says ENOSYS


def test_open_for_writing_is_refused_and_reading_finds_its_bytes(operations: Operations, state: SharedState) -> None:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
        assert ask(operations, state, Opcode.OPEN, 2, struct.pack("=II", flags, 0)) == errno.EROFS
    answer = ask(operations, state, Opcode.OPEN, 2, struct.pack("=II", os.O_RDONLY, 0))
    assert answer == (struct.pack("=QIi", 0, 1 << 1 | 1 << 5, 0),)  # FOPEN_KEEP_CACHE, FOPEN_NOFLUSH
    found = ask(operations, state, Opcode.READ, 2, struct.pack("=QQI", 0, 1, 4096))
    assert isinstance(found, FileRange)
    assert (found.offset, found.length) == (1, 2)
    assert ask(operations, state, Opcode.READ, 2, struct.pack("=QQI", 0, 3, 10)) == ()
    assert ask(operations, state, Opcode.RELEASE, 2) == ()
    assert ask(operations, state, Opcode.READ, 2, struct.pack("=QQI", 0, 1, 4096)) == errno.EBADF


def test_statx_fields_stand_where_the_header_has_them(operations: Operations, state: SharedState) -> None:
    answer = ask(operations, state, Opcode.STATX, 2)
    assert isinstance(answer, tuple)
    whole = b"".join(answer)
    assert len(whole) == 288
    fields = struct.unpack_from("=IIQIIIHHQQQQ", whole, 32)
    mask, blksize, _, nlink, uid, gid, mode, _, ino, size, blocks, _ = fields
    assert (mask & 0x7FF, blksize, nlink, uid, gid) == (0x7FF, 4096, 1, 0, 0)
    assert (mode, ino, size, blocks) == (0o100444, 1002, 3, 1)


def test_unknown_nodes_are_stale_and_generations_share_one_node(operations: Operations, state: SharedState) -> None:
    assert ask(operations, state, Opcode.GETATTR, 999) == errno.ESTALE
    plain_attr = ask(operations, state, Opcode.GETATTR, 2)
    assert ask(operations, state, Opcode.GETATTR, 2 + 3 * MAX_NODEID) == plain_attr
    assert isinstance(Node(2, 2, "file", 0o444, 0, 0, 1.0), Node)
