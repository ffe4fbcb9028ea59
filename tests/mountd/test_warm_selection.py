"""Which files a warm command means, and how many of them are in the cache."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from catalog.manifest import DEFAULT_MTIME_NS, Manifest
from catalog.names import parse_release
from mountd.cache.layout import Layout
from mountd.inodes import InodeTable
from mountd.releases import ListedRelease
from mountd.rows import Rows
from mountd.tree import CollectionState, MountTree
from mountd.warm.globs import to_regex
from mountd.warm.references import parse_reference
from mountd.warm.selection import resolve, select
from mountd.warm.standing import Standing, sealed, standing
from openshelf.errors import OpenshelfError, UsageError
from tests.mountd.conftest import Bench, MakeBench
from tests.support.releases import make_release, pattern

PATHS = ("README.md", "data/a.parquet", "data/b.parquet", "data/deep/c.parquet", "images/0/x.jpg", "images/x.jpg")


def shown(base: Path, files: dict[str, bytes]) -> tuple[MountTree, Layout]:
    """A tree that lists these files as datasets/belle/chat@1.0, tagged ``latest``."""
    layout = Layout.prepare(base / "cache")
    made = make_release(parse_release("datasets/belle/chat@1.0"), files, base)
    shutil.copyfile(made.manifest, layout.manifest_path(made.digest))
    listed = ListedRelease(
        made.ref, made.digest, len(files), made.size_bytes, DEFAULT_MTIME_NS, None, b"{}", b"{}",
        lambda: Rows(Manifest.open(made.manifest)),
    )  # fmt: skip
    tree = MountTree(InodeTable.open(layout.inodes))
    tree.update([CollectionState(made.ref.collection, [listed], {"latest": "1.0"})])
    return tree, layout


def chosen(tree: MountTree, layout: Layout, text: str, *globs: str) -> list[str]:
    selection = select(tree, layout, parse_reference(text), globs)
    return [selection.manifest.path(row) for piece in selection.pieces() for row in piece.rows.tolist()]


@pytest.mark.parametrize(
    ("glob", "matched"),
    [
        ("*.parquet", PATHS[1:4]),
        ("data/*.parquet", PATHS[1:3]),
        ("/data/*.parquet", PATHS[1:3]),
        ("data/**/*.parquet", PATHS[1:4]),
        ("data/", PATHS[1:4]),
        ("**/x.jpg", PATHS[4:]),
        ("images/?/*", PATHS[4:5]),
        ("[ab].parquet", PATHS[1:3]),
        ("[!ab].parquet", PATHS[3:4]),
        ("README?md", PATHS[:1]),
        ("readme.md", ()),
        ("data", ()),
    ],
)
def test_a_pattern_names_exactly_these_files(tmp_path: Path, glob: str, matched: tuple[str, ...]) -> None:
    assert tuple(path for path in PATHS if re.search(to_regex(glob), path)) == matched
    tree, layout = shown(tmp_path, dict.fromkeys(PATHS, b"x"))
    assert chosen(tree, layout, "datasets/belle/chat@1.0", glob) == list(matched)


def test_several_patterns_and_a_path_inside_narrow_together(tmp_path: Path) -> None:
    tree, layout = shown(tmp_path, dict.fromkeys((*PATHS, "data(1)/数据 a.b", "data.txt"), b"x"))
    assert chosen(tree, layout, "datasets/belle/chat@latest") == sorted((*PATHS, "data(1)/数据 a.b", "data.txt"))
    assert chosen(tree, layout, "datasets/belle/chat@latest/data", "a.*", "c.*") == [PATHS[1], PATHS[3]]
    assert chosen(tree, layout, "datasets/belle/chat/1.0/data/a.parquet") == [PATHS[1]]
    assert chosen(tree, layout, "datasets/belle/chat@1.0", "data(1)/数据 *.b") == ["data(1)/数据 a.b"]


@pytest.mark.parametrize("glob", ["", "/", "[a"])
def test_a_pattern_that_cannot_be_meant_is_refused(glob: str) -> None:
    with pytest.raises(UsageError, match="pattern"):
        to_regex(glob)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("datasets/belle/chat@1.0", "datasets/belle/chat@1.0"),
        ("openshelf://datasets/belle/chat@1.0/data", "datasets/belle/chat@1.0/data"),
        ("datasets/belle/chat/latest/a@b", "datasets/belle/chat@latest/a@b"),
        ("/public/datasets/belle/chat/1.0/", "datasets/belle/chat@1.0"),
        ("/data/public/../public/models/a/b/2/x", "models/a/b@2/x"),
    ],
)
def test_releases_are_named_by_reference_or_by_path(text: str, meant: str) -> None:
    parsed = parse_reference(text, (Path("/public"), Path("/data/public")))
    assert str(parsed) == meant
    assert parse_reference(meant) == parsed


@pytest.mark.parametrize("text", ["datasets/belle/chat", "data/belle/chat@1", "/elsewhere/datasets/a/b/1", "chat@1"])
def test_what_names_no_release_is_said_to(text: str) -> None:
    with pytest.raises(UsageError):
        parse_reference(text, (Path("/public"),))


def test_a_release_that_is_not_listed_is_an_error(tmp_path: Path) -> None:
    tree, _ = shown(tmp_path, {"a": b"a"})
    assert resolve(tree, parse_reference("datasets/belle/chat@latest")) == parse_release("datasets/belle/chat@1.0")
    for text in ("datasets/belle/chat@2.0", "datasets/belle/other@1.0", "models/belle/chat@1.0"):
        with pytest.raises(OpenshelfError, match="lists no release"):
            resolve(tree, parse_reference(text))


def test_the_standing_counts_what_is_complete(make_bench: MakeBench) -> None:
    files = {
        "empty": b"",
        "big.bin": pattern(9 << 20, 1),
        **{f"s/{n:03}": pattern(1000 + n, n + 2) for n in range(20)},
        "s/twin": pattern(1003, 5),
    }
    bench = make_bench(files, eager=False)
    publish_manifest(bench)
    layout, total = bench.cache.layout, sum(map(len, files.values()))
    selection = select(bench.tree, layout, parse_reference("datasets/belle/chat@1.0"))
    assert standing(selection, sealed(bench.cache)) == Standing(len(files), total, 1, 0)
    bench.read_all("s/003")
    bench.wait_until(lambda: len(sealed(bench.cache)) >= 1)
    bench.node("big.bin")
    handle = bench.reader.open(bench.node("big.bin"))
    handle.read(0, 10)
    handle.close()
    counted = standing(selection, sealed(bench.cache))
    assert counted.cached_files >= 3 and counted.cached_bytes >= 2 * 1003, "twins are one content"
    assert counted.cached_bytes < 9 << 20, "a partial file is not complete"
    bench.read_all("big.bin")
    bench.wait_sealed("big.bin")
    for path in files:
        bench.read_all(path)
    bench.wait_until(lambda: standing(selection, sealed(bench.cache)).complete)
    assert standing(selection, sealed(bench.cache)) == Standing(len(files), total, len(files), total)


def publish_manifest(bench: Bench) -> None:
    """Put the manifest where a node keeps it."""
    shutil.copyfile(bench.made.manifest, bench.cache.layout.manifest_path(bench.made.digest))
