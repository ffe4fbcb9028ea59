"""Pinned releases: their objects are never evicted. Kept in the index, so that they outlive the daemon."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from catalog.manifest import ManifestError
from mountd.cache.columns import columns, keys_and_blocks
from mountd.cache.guard import Guard
from mountd.cache.index import Index
from mountd.cache.layout import Layout

log = logging.getLogger("openshelf.mount.cache")


@dataclass(frozen=True, slots=True)
class Need:
    """What a set of releases takes on disk when it is complete, each content once."""

    files: int
    size_bytes: int


def owner(release: str) -> str:
    """The name under which a pinned release's objects are protected."""
    return f"pin {release}"


class Pins:
    """The pins of one cache: release (``datasets/a/b@1``) → manifest digest (hexadecimal). Raises sqlite3.Error."""

    def __init__(self, layout: Layout, index: Index, guard: Guard) -> None:
        self._layout = layout
        self._index = index
        self._guard = guard

    def all(self) -> dict[str, str]:
        """All pins."""
        return dict(self._index.execute("SELECT release, manifest_digest FROM pins ORDER BY release"))

    def restore(self) -> None:
        """Protect the objects of all pinned releases whose manifests are here."""
        for release, digest in self.all().items():
            self._protect(release, digest)

    def need(self, pins: dict[str, str]) -> Need:
        """What these releases take when complete. Raises ManifestError."""
        found = [
            keys_and_blocks(self._layout.manifest_path(digest), digest)
            for digest in sorted(set(pins.values()))
            if self._layout.manifest_path(digest).exists()
        ]
        if not found:
            return Need(0, 0)
        keys = np.concatenate([keys for keys, _ in found])
        _, first = np.unique(keys, return_index=True)
        return Need(len(first), int(np.concatenate([blocks for _, blocks in found])[first].sum()))

    def add(self, release: str, digest: str) -> None:
        """Pin a release whose manifest is here."""
        self._index.execute("INSERT OR REPLACE INTO pins VALUES (?, ?)", (release, digest))
        self._protect(release, digest)

    def remove(self, release: str) -> bool:
        """Unpin a release; whether it was pinned."""
        was = release in self.all()
        self._index.execute("DELETE FROM pins WHERE release = ?", (release,))
        self._guard.unprotect(owner(release))
        return was

    def _protect(self, release: str, digest: str) -> None:
        path = self._layout.manifest_path(digest)
        if not path.exists():
            return
        try:
            self._guard.protect(owner(release), [digests for digests, _ in columns(path, digest)])
        except ManifestError as error:
            log.warning("The pinned release %s cannot be protected: %s", release, error.line())
