"""What a node refuses to show, held against rules applied to one path at a time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from catalog.manifest import SCHEMA, FileEntry, Manifest, ManifestError, to_batches
from catalog.names import InvalidPath, check_path
from mountd import manifest_check
from mountd.manifest_check import check_manifest
from openshelf.errors import OpenshelfError


def entry(path: str, *, size: int = 1, mode: int = 0o444, chunks: int = 1) -> FileEntry:
    return FileEntry(path, size, mode, 0, bytes(32), bytes(32), 0, (bytes(32),) * chunks)


def written(entries: Iterable[FileEntry], folder: Path) -> Manifest:
    """A manifest with no check at all, in the order given."""
    path = folder / "files.arrow"
    with path.open("wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for batch in to_batches(list(entries)):
            writer.write_batch(batch)
    return Manifest.open(path)


def of_paths(paths: Iterable[str], folder: Path) -> Manifest:
    return written([entry(path) for path in sorted(set(paths), key=str.encode)], folder)


def is_refused(manifest: Manifest) -> bool:
    try:
        check_manifest(manifest, "datasets/belle/chat@1.0")
    except OpenshelfError:
        return True
    return False


def may_stand(path: str) -> bool:
    try:
        check_path(path)
    except InvalidPath:
        return False
    return True


ODD = [
    "", "/", "/a", "a/", "a//b", ".", "..", "./a", "a/.", "a/..", "a/../b", "...", "a.", "a./b", ".a", "a/.b", "..a",
    "a..b", "a b", " a", "a ", "a/ b", "a /b", "a  b", "a\\b", "a\tb", "a\nb", "a\x7fb", "a\x85b", "é", "e\u0301",
    "诗/静夜思", "诗 词", "诗.", "诗/",
    "a\u202eb", "a\u2028b", "a\u200eb", "a\u061cb", "a" * 180, "a" * 181, "诗" * 60, "诗" * 61,
    "/".join(["a" * 99] * 9), "/".join(["a" * 100] * 9), "a'b", 'a"b', "a*b?", "a:b|c", "-", "_", "~", "release.json",
    "release.json.sig", "x/release.json", "가", "\u1100\u1161", "a/b/c.d/e",
]  # fmt: skip


@pytest.mark.parametrize("path", ODD, ids=ascii)
def test_one_path_is_refused_exactly_when_the_catalog_refuses_it(path: str, tmp_path: Path) -> None:
    manifest = of_paths(["ok.txt", path, "zz/ok.txt"], tmp_path)
    assert is_refused(manifest) is not may_stand(path)


def test_random_paths_are_refused_exactly_when_the_catalog_refuses_one(tmp_path: Path) -> None:
    chosen = random.Random(7)
    outcomes = set()
    for _ in range(400):
        paths = {"".join(chosen.choices("ab.-/ 诗", (9, 9, 3, 3, 3, 1, 2), k=chosen.randint(1, 6))) for _ in range(3)}
        doubled = any(other.startswith(path + "/") for path, other in itertools.permutations(paths, 2))
        expected = doubled or not all(map(may_stand, paths))
        assert is_refused(of_paths(paths, tmp_path)) is expected, paths
        outcomes.add((expected, doubled))
    assert {(False, False), (True, False), (True, True)} <= outcomes


@pytest.mark.parametrize("between", [0, 1, 5, 20])
def test_a_file_named_as_a_folder_is_refused_however_far_they_stand_apart(between: int, tmp_path: Path) -> None:
    others = [f"data/a-{number:03d}" for number in range(between)]
    assert not is_refused(of_paths(["data/a", *others, "data/b/c"], tmp_path))
    with pytest.raises(InvalidPath, match="'data/a' is the name of a file and of a folder"):
        check_manifest(of_paths(["data/a", *others, "data/a/c"], tmp_path), "r")


def test_a_file_named_as_a_folder_of_the_next_batch_is_refused(tmp_path: Path) -> None:
    before = [f"0/{number:06d}" for number in range(65_535)]
    assert not is_refused(of_paths([*before, "a", "b/c"], tmp_path))
    assert is_refused(of_paths([*before, "a", "a/c"], tmp_path))
    assert is_refused(of_paths([*before[1:], "a", "a-b", "a/c"], tmp_path))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry("b"), entry("a")], "path order"),
        ([entry("a"), entry("a")], "path order"),
        ([entry("a", mode=0o644)], "mode"),
        ([entry("a", size=1 << 63)], "size"),
        ([entry("a", chunks=2)], "chunk digests"),
        ([entry("a", size=0)], "chunk digests"),
    ],
)
def test_rows_out_of_order_and_impossible_attributes_are_refused(
    entries: list[FileEntry], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ManifestError, match=message):
        check_manifest(written(entries, tmp_path), "r")


def test_more_files_than_node_ids_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_check, "MAX_ROWS", 2)
    assert not is_refused(of_paths(["a", "b"], tmp_path))
    assert is_refused(of_paths(["a", "b", "c"], tmp_path))
    assert not is_refused(of_paths([], tmp_path))
