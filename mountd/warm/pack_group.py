"""Small files of one pack on their way together: one request for all that is wanted of it, and what does not come so,
alone. Neighbours that are not wanted are left out."""

from __future__ import annotations

import os

from mountd.cache.partial import FileSpec
from mountd.fetch.fetcher import FetchFailed
from mountd.fetch.fill import Supply
from mountd.fetch.packs import Place
from mountd.interfaces import Node
from mountd.rows import PackedFile
from mountd.tree import MountTree

FAILURES = 3
"""After so many files that do not come alone either, the rest is left for the next pass."""


class PackGroup:
    """The files ``wanted`` (SHA-256) of the pack that ``node`` lies in (:class:`mountd.warm.bringing.Coming`)."""

    def __init__(self, node: Node, wanted: frozenset[bytes], tree: MountTree, supply: Supply) -> None:
        assert node.entry is not None
        self.chains = 1
        self.files = 0
        self.size_bytes = 0
        self.missed = 0
        self.reason = ""
        self.full = False
        self._stored = node.entry.object
        self._supply = supply
        self._files = [each for each in tree.pack(node.nodeid) if each.sha256 in wanted]
        self._failed: set[bytes] = set()
        self._touched = -1
        self._over = False

    def step(self, start: int) -> int | None:
        """Touch the first file that is missing: its pack brings the others. One that it did not bring is fetched."""
        missing = self._missing()
        todo = [each for each in missing if each.sha256 not in self._failed]
        if not todo or len(self._failed) >= FAILURES or self.full:
            self._over = True
        elif len(todo) == self._touched:
            self._fetch_alone(todo[0])
            self._touched = -1
        elif self._supply.packs.takes(self._stored):
            self._touched = len(todo)
            first = todo[0]
            self._supply.packs.bring(Place(self._stored, first.offset, lambda: self._files), _spec(first))
        return None

    def _missing(self) -> list[PackedFile]:
        missing = [each for each in self._files if not self._supply.cache.is_sealed(each.sha256)]
        self.files = len(self._files) - len(missing)
        self.size_bytes = sum(each.size for each in self._files) - sum(each.size for each in missing)
        self.missed = len(missing)
        return missing

    def _fetch_alone(self, each: PackedFile) -> None:
        spec, content = _spec(each), bytearray(each.size)
        try:
            self._supply.fetcher.read(self._stored, each.offset, memoryview(content))
            if not spec.is_chunk(0, content):
                raise FetchFailed("chunk_corrupt", f"File {each.sha256.hex()} came with wrong bytes")
        except FetchFailed as error:
            self._failed.add(each.sha256)
            self.reason = error.message
            return
        descriptor = self._supply.cache.store_whole(spec, content)
        if descriptor is None:
            self.reason, self.full = "the cache takes no more", True
        else:
            os.close(descriptor)

    def resume(self) -> bool:
        """When the pack has been unpacked, what did not come with it is seen to."""
        return not self._over and self._supply.packs.takes(self._stored)

    def ended(self, *, stopped: bool) -> bool:
        """Whether nothing is to be waited for."""
        return self._over or stopped

    def arrived(self) -> int:
        """Bytes that have come, as of the last step."""
        return self.size_bytes

    def close(self) -> None:
        """Nothing is held."""


def _spec(each: PackedFile) -> FileSpec:
    return FileSpec(each.sha256, each.size, each.mtime_ns, (each.blake3,))
