"""Slots are given once, survive a kill, and are on disk before they are used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mountd import inodes
from mountd.inodes import InodeTable
from openshelf.errors import OpenshelfError


def test_slots_are_the_same_after_reopening(tmp_path: Path) -> None:
    table = InodeTable.open(tmp_path / "inodes")
    first = table.slots(["d datasets/a", "d datasets/a/b", "d datasets/a"])
    table.close()
    again = InodeTable.open(tmp_path / "inodes")
    assert again.slots(["d datasets/a/b", "d new", "d datasets/a"]) == [first[1], 3, first[0]]
    assert first == [1, 2, 1]
    again.close()


def test_variants_of_a_name_are_it_and_those_with_words_added(tmp_path: Path) -> None:
    table = InodeTable.open(tmp_path / "inodes")
    table.slots(["r a@1 ff 7", "r a@1 ff", "r a@1 ff0", "r a@10 ff", "r a@1 ff 0", "d a@1"])
    assert table.variants(["r a@1 ff", "r a@1 ff0", "r a@2 ff", "r a@1 ff 7"]) == [[1, 2, 5], [3], [], [1]]
    table.close()
    assert (tmp_path / "inodes").read_text().count("\n") == 1 + 6


def test_a_line_cut_off_by_a_crash_is_given_to_another_name(tmp_path: Path) -> None:
    path = tmp_path / "inodes"
    table = InodeTable.open(path)
    table.slots(["d one"])
    table.close()
    with path.open("ab") as sink:
        sink.write(b"d tw")
    table = InodeTable.open(path)
    assert table.slots(["d three", "d one"]) == [2, 1]
    table.close()
    assert path.read_text() == "openshelf inodes 1\nd one\nd three\n"


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inodes").write_text("something else\n")
    with pytest.raises(OpenshelfError, match="damaged"):
        InodeTable.open(tmp_path / "inodes")


def test_slots_given_before_a_kill_are_kept(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path; from mountd.inodes import InodeTable\n"
        "table = InodeTable.open(Path(sys.argv[1]))\n"
        "for number in range(10**6):\n"
        "    [slot] = table.slots([f'd name-{number}'])\n"
        "    print(slot, flush=True)\n"
    )
    path = tmp_path / "inodes"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
    table = InodeTable.open(path)
    assert table.slots([f"d name-{number}" for number in range(20)]) == seen
    table.close()


def test_ids_of_files_folders_and_made_files_never_meet() -> None:
    ids = {
        inodes.base_id(5),
        *(inodes.file_id(5, row) for row in (0, 1, inodes.MAX_ROWS - 1)),
        *(inodes.folder_id(5, depth, row) for depth in (1, inodes.MAX_DEPTH - 1) for row in (0, inodes.MAX_ROWS - 1)),
        *(inodes.made_id(5, number) for number in (0, 1)),
    }
    assert len(ids) == 10
    assert all(inodes.split(each)[0] == 5 for each in ids)
    assert inodes.file_id(inodes.MAX_SLOTS - 1, inodes.MAX_ROWS - 1) < 1 << 60
