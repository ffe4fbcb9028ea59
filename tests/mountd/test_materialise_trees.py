"""Trees of hard links: what they hold, when none is made, and what a crash leaves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from catalog.manifest import DEFAULT_MTIME_NS, Manifest
from catalog.names import parse_release
from mountd.cache.layout import Layout
from mountd.materialise import links
from mountd.materialise.binds import Bind, binds_below
from mountd.materialise.links import Incomplete, Stopped, Unsuitable, first_missing
from mountd.materialise.trees import Trees, tree_name
from mountd.releases import ListedRelease
from mountd.rows import Rows
from tests.support.releases import MadeRelease, make_release, pattern

CREATED_NS = 1_700_000_000_000_000_000
FILES = {
    "a": b"one",
    "a-b/x": b"two",
    "b/empty": b"",
    "b/c/d/deep": b"three",
    "b/c/shallow": b"four",
    "z": b"one",
}
FOLDERS = ["", "a-b", "b", "b/c", "b/c/d"]


class Sealed:
    """A cache folder with all files of a release sealed in it."""

    def __init__(self, base: Path, files: Mapping[str, bytes] = FILES) -> None:
        self.layout = Layout.prepare(base / "cache")
        self.made: MadeRelease = make_release(parse_release("datasets/belle/chat@1.0"), files, base)
        self.rows = Rows(Manifest.open(self.made.manifest))
        made = self.made
        self.listed = ListedRelease(
            made.ref, made.digest, len(files), made.size_bytes, CREATED_NS, None, b"{}", b"signed", lambda: self.rows
        )
        self.trees = Trees(self.layout)
        for path, content in files.items():
            if content:
                self.seal(path, content)

    def seal(self, path: str, content: bytes) -> Path:
        place = self.object(path)
        place.parent.mkdir(exist_ok=True)
        if not place.exists():
            place.write_bytes(content)
            place.chmod(0o444)
            os.utime(place, ns=(0, DEFAULT_MTIME_NS))
        return place

    def object(self, path: str) -> Path:
        return self.layout.object_path(self.made.entries[path].sha256)

    def row(self, path: str) -> int:
        return sorted(self.made.entries, key=str.encode).index(path)

    def build(self, most_inodes: int = 1000) -> Path:
        self.trees.build(self.listed, self.rows, most_inodes, lambda: False)
        return self.trees.path(tree_name(self.listed))

    def left(self) -> list[str]:
        """What is in the folder of trees."""
        return sorted(path.name for path in self.trees.root.iterdir()) if self.trees.root.exists() else []


def test_a_tree_has_the_releases_names_bytes_modes_and_times(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    root = sealed.build()
    found = {str(path.relative_to(root)) for path in root.rglob("*")}
    assert found == {*FILES, *FOLDERS[1:], "release.json", "release.json.sig"}
    for path, content in FILES.items():
        state = (root / path).stat()
        assert (root / path).read_bytes() == content
        assert (state.st_mode & 0o777, state.st_mtime_ns) == (0o444, DEFAULT_MTIME_NS)
        if content:
            assert state.st_ino == sealed.object(path).stat().st_ino
    assert (root / "a").stat().st_nlink == 3  # two names here, one in the cache
    for folder in FOLDERS:
        state = (root / folder).stat()
        assert (state.st_mode & 0o777, state.st_mtime_ns, state.st_uid) == (0o555, CREATED_NS, 0)
    assert (root / "release.json").read_bytes() == b"{}"
    assert (root / "release.json.sig").read_bytes() == b"signed"
    [marker] = sealed.trees.whole().values()
    assert marker.folders == FOLDERS
    assert (marker.files, marker.inodes) == (len(FILES), len(FOLDERS) + 1 + 2)


def test_a_restricted_releases_folders_are_for_its_group(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    plain = sealed.build()
    sealed.listed = ListedRelease(
        **{name: getattr(sealed.listed, name) for name in ListedRelease.__slots__} | {"restricted": True, "gid": 4321}
    )
    root = sealed.build()
    assert root != plain
    for folder in FOLDERS:
        state = (root / folder).stat()
        assert (state.st_mode & 0o777, state.st_gid) == (0o750, 4321)


def test_what_is_missing_or_not_on_the_disk_yet_is_found(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    objects = sealed.layout.objects

    def missing(start: int = 0) -> int | None:
        return first_missing(objects, sealed.rows, start, lambda: False)

    assert missing() is None
    sealed.object("b/c/shallow").chmod(0o400)
    assert missing() == sealed.row("b/c/shallow")
    assert missing(sealed.row("b/c/shallow") + 1) is None
    with pytest.raises(Incomplete) as raised:
        sealed.build()
    assert raised.value.row == sealed.row("b/c/shallow")
    sealed.object("b/c/shallow").chmod(0o444)
    sealed.object("a-b/x").unlink()
    assert missing() == sealed.row("a-b/x")
    with pytest.raises(Incomplete):
        sealed.build()
    assert sealed.left() == []


def test_another_time_too_many_links_and_too_many_folders_make_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = Sealed(tmp_path)
    with pytest.raises(Unsuitable, match="inodes"):
        sealed.build(most_inodes=len(FOLDERS))
    monkeypatch.setattr(links, "MAX_LINKS", 2)
    with pytest.raises(Unsuitable, match="more than 2 names"):
        sealed.build()
    monkeypatch.undo()
    os.utime(sealed.object("a"), ns=(0, DEFAULT_MTIME_NS + 1))
    with pytest.raises(Unsuitable, match="another time"):
        sealed.build()
    monkeypatch.setattr(links, "MAX_FILES", 5)
    with pytest.raises(Unsuitable, match="more than 5 files"):
        first_missing(sealed.layout.objects, sealed.rows, 0, lambda: False)
    assert sealed.left() == []
    assert all(sealed.object(path).stat().st_nlink == 1 for path in FILES if FILES[path])


def test_a_builder_stops_when_told(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    with pytest.raises(Stopped):
        sealed.trees.build(sealed.listed, sealed.rows, 1000, lambda: True)
    assert sealed.left() == []


def test_what_a_crash_left_goes_and_whole_trees_stay(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path)
    root = sealed.build()
    for left in (".new-x", ".old-y", "no-record"):
        (sealed.trees.root / left / "deep").mkdir(parents=True)
        os.link(sealed.object("a"), sealed.trees.root / left / "deep" / "a")
    (sealed.trees.root / "no-tree.json").write_text("{}")
    assert list(sealed.trees.whole()) == [root.name]
    assert sealed.left() == [root.name, f"{root.name}.json"]
    (sealed.trees.root / f"{root.name}.json").write_text("{")
    assert sealed.trees.whole() == {}
    assert sealed.left() == []
    assert sealed.object("a").stat().st_nlink == 1


def test_bind_mounts_of_trees_are_told_from_others(tmp_path: Path) -> None:
    lines = [
        "36 35 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
        r"40 36 0:50 / /pub\040lic ro,nosuid - fuse.openshelf openshelf ro",
        r"41 40 254:0 /c/trees/abc-1 /pub\040lic/datasets/a/b/1.0 ro,nosuid,nodev shared:1 - ext4 /dev/vda rw",
        r"42 40 254:0 /c/trees/.old-def-2//deleted /pub\040lic/datasets/a/b/2.0 ro - ext4 /dev/vda rw",
        r"43 40 254:0 /elsewhere/trees/x /pub\040lic/datasets/a/b/3.0 ro - ext4 /dev/vda rw",
        "44 36 254:0 /c/trees/abc-1 /other ro - ext4 /dev/vda rw",
    ]
    found = binds_below(Path("/pub lic"), Path("/c/trees"), "\n".join(lines))
    assert found == [
        Bind(Path("/pub lic/datasets/a/b/1.0"), "abc-1"),
        Bind(Path("/pub lic/datasets/a/b/2.0"), "def-2"),
    ]


def test_many_files_in_several_batches_are_linked(tmp_path: Path) -> None:
    content = pattern(10)
    files = {f"{number // 1000:03d}/{number:06d}": content if number % 7 else b"" for number in range(66_000)}
    sealed = Sealed(tmp_path, files)
    root = sealed.build(most_inodes=100_000)
    assert len(os.listdir(root)) == 66 + 2
    assert (root / "065" / "065999").read_bytes() == content
    assert sealed.object("000/000001").stat().st_nlink == sum(1 for each in files.values() if each) + 1
