"""Small releases for tests: files in, a manifest, objects by digest, and packs as the catalog makes them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from catalog.manifest import (
    DEFAULT_MTIME_NS,
    PACK_FILE_BYTES,
    FileEntry,
    digest_stream,
    plan_packs,
    write_manifest,
)
from catalog.names import ReleaseRef


@dataclass(frozen=True, slots=True)
class MadeRelease:
    """A release's manifest file, its digest in hexadecimal, its rows, and the objects that hold its bytes."""

    ref: ReleaseRef
    manifest: Path
    digest: str
    entries: dict[str, FileEntry]
    objects: dict[str, bytes]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.entries.values())


def make_release(ref: ReleaseRef, files: Mapping[str, bytes], folder: Path) -> MadeRelease:
    """The release ``ref`` of these files (path → bytes); the manifest is written into ``folder``."""
    paths = sorted(files, key=str.encode)
    digests = {path: digest_stream(io.BytesIO(files[path])) for path in paths}
    places: dict[bytes, tuple[bytes, int]] = {}
    objects: dict[str, bytes] = {}
    for members in plan_packs([(digests[path].sha256, digests[path].size) for path in paths]):
        pack = b"".join(files[paths[index]] for index in members)
        stored = hashlib.sha256(pack).digest()
        objects[stored.hex()] = pack
        offset = 0
        for index in members:
            digest = digests[paths[index]]
            places[digest.sha256] = stored, offset
            offset += digest.size
    entries = {}
    for path in paths:
        digest = digests[path]
        if digest.size > PACK_FILE_BYTES:
            places[digest.sha256] = digest.sha256, 0
            objects[digest.sha256.hex()] = files[path]
        stored, offset = places[digest.sha256]
        entries[path] = FileEntry(
            path, digest.size, 0o444, DEFAULT_MTIME_NS, digest.sha256, stored, offset, digest.chunks
        )
    manifest = folder / f"{ref.collection.name}-{ref.version}.arrow"
    return MadeRelease(ref, manifest, write_manifest(entries.values(), manifest).hex(), entries, objects)


def pattern(size: int, seed: int = 1) -> bytes:
    """``size`` bytes that differ everywhere and by ``seed``."""
    return hashlib.shake_128(seed.to_bytes(8, "little")).digest(size)
