"""The mapping file of groups: which line counts, and what is said of a bad one."""

from __future__ import annotations

import grp
from pathlib import Path

import pytest

from catalog.names import parse_collection
from mountd.groups import Groups, read_groups
from openshelf.errors import UsageError


def test_a_collection_counts_before_its_namespace_and_no_line_means_root(tmp_path: Path) -> None:
    named = grp.getgrgid(0)
    path = tmp_path / "groups"
    path.write_text(
        f"# who may enter\n\ndatasets/hospital/*  5012   # all of it\n"
        f"datasets/hospital/notes\t5013\nmodels/belle/chat {named.gr_name}\n"
    )
    groups = read_groups(str(path))
    found = {
        name: groups.gid(parse_collection(name))
        for name in ("datasets/hospital/notes", "datasets/hospital/images", "models/hospital/x", "models/belle/chat")
    }
    assert found == {
        "datasets/hospital/notes": 5013,
        "datasets/hospital/images": 5012,
        "models/hospital/x": 0,
        "models/belle/chat": 0,
    }
    assert read_groups("") == Groups()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datasets/a/b", "line 1 is not a collection and a group"),
        ("\ndatasets/a/b 1 2", "line 2 is not a collection and a group"),
        ("datasets/a 1", "neither a collection nor a namespace"),
        ("datasets/*/b 1", "neither a collection nor a namespace"),
        ("things/a/b 1", "neither a collection nor a namespace"),
        ("datasets/a/b 1\ndatasets/a/b 2", "line 2: 'datasets/a/b' stands there twice"),
        ("datasets/a/b no-such-group-here", "has no group 'no-such-group-here'"),
        ("datasets/a/b 4294967295", "4294967295 is no group id"),
        ("datasets/a/b -1", "has no group '-1'"),
        ("x" * (1 << 20) + "x", "larger than 1 MiB"),
    ],
)
def test_a_bad_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "groups"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_groups(str(path))
    assert message in caught.value.message
    assert str(path) in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none of groups cannot be read: No such file"):
        read_groups(str(tmp_path / "none"))
