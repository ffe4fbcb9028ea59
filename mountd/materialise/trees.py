"""The trees of a cache folder: which are whole, and removing them.

<cache>/trees/<tree>/        folders and names of the release; files are links of the cache's sealed ones
<cache>/trees/<tree>.json    written last: what the tree holds; a tree without it is half built and is removed
<cache>/trees/.new-…, .old-… being built, being removed

A tree is named after the manifest's digest, the signed record, and the group that may enter, so that one name always
means the same names, bytes, times and modes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from mountd.cache.layout import Layout
from mountd.materialise.links import Stop, build
from mountd.releases import ListedRelease
from mountd.rows import Rows

log = logging.getLogger("openshelf.mount.materialise")

_NEW, _OLD = ".new-", ".old-"
_MARKER = ".json"


@dataclass(frozen=True, slots=True)
class Marker:
    """What a whole tree holds. ``inodes``: of its own, beside links; ``folders``: their paths, its own ``""``."""

    manifest_digest: str
    files: int
    inodes: int
    folders: list[str]


def tree_name(listed: ListedRelease) -> str:
    """The folder name of a release's tree."""
    record = hashlib.sha256(listed.record + b"\0" + listed.signature).hexdigest()[:16]
    return f"{listed.manifest_digest}-{record}" + (f"-{listed.gid}" if listed.restricted else "")


class Trees:
    """The trees of one cache folder. For one thread."""

    def __init__(self, layout: Layout) -> None:
        self.root = layout.root / "trees"
        self._objects = layout.objects

    def path(self, name: str) -> Path:
        """Where a tree lies."""
        return self.root / name

    def whole(self) -> dict[str, Marker]:
        """All whole trees by name; what a crash left half built or half removed is removed."""
        found: dict[str, Marker] = {}
        names = {entry.name for entry in self.root.iterdir()} if self.root.is_dir() else set()
        for name in names:
            if name.startswith((_NEW, _OLD)):
                _remove(self.root / name)
            elif not name.endswith(_MARKER):
                marker = self._marker(name)
                if marker is None:
                    self.remove(name)
                else:
                    found[name] = marker
            elif name.removesuffix(_MARKER) not in names:
                (self.root / name).unlink()
        return found

    def build(self, listed: ListedRelease, rows: Rows, most_inodes: int, stop: Stop) -> Marker:
        """Make the whole tree of a release; nothing is left of one that fails. Raises as :func:`links.build`."""
        name = tree_name(listed)
        self.root.mkdir(mode=0o700, exist_ok=True)
        fresh = self.root / (_NEW + name)
        _remove(fresh)
        fresh.mkdir(mode=0o700)
        try:
            folders, inodes = build(self._objects, listed, rows, fresh, most_inodes, stop)
            marker = Marker(listed.manifest_digest, len(rows), inodes, folders)
            self._write(name, marker)
            fresh.rename(self.path(name))
        except BaseException:
            self._marker_path(name).unlink(missing_ok=True)
            _remove(fresh)
            raise
        return marker

    def remove(self, name: str) -> None:
        """Remove a tree; the cache's own names of its files stay."""
        self._marker_path(name).unlink(missing_ok=True)
        old = self.root / (_OLD + name)
        _remove(old)
        if self.path(name).exists():
            self.path(name).rename(old)
            _remove(old)

    def _marker(self, name: str) -> Marker | None:
        try:
            return Marker(**json.loads(self._marker_path(name).read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            log.warning("The record of the tree %s is damaged; the tree is made anew.", name)
            return None

    def _write(self, name: str, marker: Marker) -> None:
        path = self._marker_path(name)
        fresh = self.root / f"{_NEW}{path.name}"
        with fresh.open("w", encoding="utf-8") as sink:
            json.dump(asdict(marker), sink, ensure_ascii=False)
            sink.flush()
            os.fsync(sink.fileno())
        fresh.rename(path)

    def _marker_path(self, name: str) -> Path:
        return self.root / (name + _MARKER)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
