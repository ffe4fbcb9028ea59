"""The columns of a release's manifest that tell what it has in the cache; ten million files take about a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from catalog.manifest import SCHEMA, Manifest
from mountd.cache.guard import Digests, Keys, among, keys_of
from mountd.cache.index import Index
from mountd.cache.partial import BLOCK_BYTES

_SIZE = SCHEMA.get_field_index("size")
_SHA256 = SCHEMA.get_field_index("sha256")
_DUMPED_AT_ONCE = 50_000


def columns(manifest: Path, digest_hex: str) -> Iterator[tuple[Digests, npt.NDArray[np.uint64]]]:
    """Batch by batch, the SHA-256 of files, shape (n, 32), and their sizes in bytes. Raises ManifestError."""
    for batch in Manifest.open_verified(manifest, bytes.fromhex(digest_hex)).batches():
        digests = np.frombuffer(batch.column(_SHA256).buffers()[1], np.uint8)[: batch.num_rows * 32]
        yield digests.reshape(-1, 32), batch.column(_SIZE).to_numpy()


def sealed_keys(index: Index) -> Keys:
    """The keys of all sealed objects, sorted; read through a connection of its own, so that nobody waits."""
    parts = []
    with closing(index.reading()) as db:
        found = db.execute("SELECT substr(sha256, 1, 8) FROM objects WHERE sealed ORDER BY sha256")
        while page := found.fetchmany(_DUMPED_AT_ONCE):
            parts.append(np.frombuffer(b"".join([key for (key,) in page]), ">u8").astype(np.uint64))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Share:
    """How much of a release is in the cache, file by file as the release lists them."""

    files: int
    size_bytes: int
    cached_files: int
    cached_bytes: int


def share(manifest: Path, digest_hex: str, sealed: Keys) -> Share:
    """How much of a release is complete in the cache; empty files always are."""
    files = size = cached_files = cached = 0
    for digests, sizes in columns(manifest, digest_hex):
        here = among(keys_of(digests), sealed) | (sizes == 0)
        files, size = files + len(sizes), size + int(sizes.sum())
        cached_files, cached = cached_files + int(here.sum()), cached + int(sizes[here].sum())
    return Share(files, size, cached_files, cached)


def keys_and_blocks(manifest: Path, digest_hex: str) -> tuple[Keys, npt.NDArray[np.uint64]]:
    """The keys of a release's files and what each takes on disk, in bytes; not sorted, with repetitions."""
    keys, blocks = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for digests, sizes in columns(manifest, digest_hex):
        keys.append(keys_of(digests))
        blocks.append((sizes + np.uint64(BLOCK_BYTES - 1)) // np.uint64(BLOCK_BYTES) * np.uint64(BLOCK_BYTES))
    return np.concatenate(keys), np.concatenate(blocks)
