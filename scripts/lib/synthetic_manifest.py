"""Releases of millions of files that nobody uploaded: a manifest written by columns in seconds, and a node's cache
that holds it as if it had followed a catalog, so that ``openshelf mount`` starts from it without one.

Names and attributes are real, bytes there are none: such a release can be listed and looked up, not read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from catalog.manifest import BATCH_ROWS, CHUNK_BYTES, DEFAULT_MTIME_NS, SCHEMA, sha256_of
from catalog.names import ReleaseRef
from catalog.signing import Signed, SigningKey, fingerprint
from catalog.trust import Trust
from mountd.cache.layout import Layout
from mountd.feed_state import FeedState
from mountd.release_files import ReleaseFiles

AT = "2026-01-01T00:00:00Z"
FAR = "2999-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class SyntheticRelease:
    """A manifest on disk: its SHA-256 (hexadecimal), how many files it lists and their bytes together."""

    manifest: Path
    digest: str
    files: int
    size_bytes: int


def make_release(folder: Path, files: int, folders: int, size_bytes: int = 10_240) -> SyntheticRelease:
    """Write ``files.arrow`` into ``folder``: ``files`` files of ``size_bytes`` each (plus their number modulo 1000),
    spread evenly over ``folders`` folders ``part-00000``, …, each file named ``000000000.jpg``, ….

    About a second for a million files. The same arguments give the same manifest.
    """
    manifest = folder / "files.arrow"
    per_folder = -(-files // folders)
    options = pa.ipc.IpcWriteOptions(compression=None)
    with manifest.open("wb") as sink, pa.ipc.new_file(sink, SCHEMA, options=options) as writer:
        for batch in _batches(files, per_folder, size_bytes):
            writer.write_batch(batch)
    total = files * size_bytes + int((np.arange(files) % 1000).sum())
    return SyntheticRelease(manifest, sha256_of(manifest).hex(), files, total)


def _batches(files: int, per_folder: int, size_bytes: int) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(1)
    for start in range(0, files, BATCH_ROWS):
        numbers = np.arange(start, min(start + BATCH_ROWS, files))
        count = len(numbers)
        folder = pc.utf8_lpad(pc.cast(pa.array(numbers // per_folder), pa.large_string()), 5, "0")
        name = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.large_string()), 9, "0")
        paths = pc.binary_join_element_wise(
            pa.scalar("part-", pa.large_string()),
            folder,
            pa.scalar("/", pa.large_string()),
            name,
            pa.scalar(".jpg", pa.large_string()),
            pa.scalar("", pa.large_string()),
        )
        sizes = (size_bytes + numbers % 1000).astype(np.uint64)
        chunks = -(-sizes.astype(np.int64) // CHUNK_BYTES)
        offsets = np.concatenate(([0], np.cumsum(chunks))).astype(np.int32)
        digests = _digests(random, count)
        columns = [
            paths,
            pa.array(sizes),
            pa.array(np.full(count, 0o444, np.uint16)),
            pa.array(np.full(count, DEFAULT_MTIME_NS, np.int64)),
            digests,
            digests,
            pa.array(np.zeros(count, np.uint64)),
            pa.ListArray.from_arrays(pa.array(offsets), _digests(random, int(offsets[-1])), type=SCHEMA.field(7).type),
        ]
        yield pa.record_batch(columns, schema=SCHEMA)


def _digests(random: np.random.Generator, count: int) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), count, [None, pa.py_buffer(random.bytes(32 * count))])


class _Source:
    """What a client would bring of the releases."""

    def __init__(self, key: SigningKey, releases: Mapping[ReleaseRef, SyntheticRelease]) -> None:
        self._key = key
        self._releases = releases

    def public_key(self) -> bytes:
        return self._key.public_bytes

    def is_loopback(self) -> bool:
        return False

    def download_manifest(self, digest: str, destination: Path) -> None:
        os.link(next(each.manifest for each in self._releases.values() if each.digest == digest), destination)

    def release_record(self, ref: ReleaseRef) -> Signed:
        made = self._releases[ref]
        record = {
            "collection": str(ref.collection),
            "version": ref.version,
            "created": AT,
            "manifest_digest": made.digest,
            "licence": {"expression": "CC0-1.0", "use": "any", "attribution": False, "share_alike": False},
            "recipe_digest": None,
            "policy_digest": None,
            "residency": [],
            "totals": {"files": made.files, "size_bytes": made.size_bytes, "rows": 0},
        }
        return self._key.sign("release", record)


def prepare_cache(cache: Path, releases: Mapping[ReleaseRef, SyntheticRelease]) -> None:
    """Make ``cache`` (on the same file system as the manifests) the cache of a node that has verified ``releases``."""
    layout = Layout.prepare(cache)
    with tempfile.TemporaryDirectory() as folder:
        key = SigningKey.load_or_create(Path(folder) / "key.pem")
    source = _Source(key, releases)
    trust = Trust(layout.trust)
    trust.bootstrap(source, catalog_key=fingerprint(key.public_bytes))
    position = {"epoch": 1, "serial": 1, "issued": AT}
    trust.accept_head(key.sign("feed-head", {**position, "expires": FAR, "object_hosts": []}))
    listed = [
        {
            "collection": str(ref.collection),
            "version": ref.version,
            "manifest_digest": made.digest,
            "files": made.files,
            "size_bytes": made.size_bytes,
            "access": "public",
        }
        for ref, made in releases.items()
    ]
    snapshot = trust.accept_snapshot(key.sign("feed-snapshot", {**position, "releases": listed, "tags": []}))
    state = FeedState.open(layout.names)
    state.replace(snapshot)
    state.close()
    files = ReleaseFiles(layout, source, lambda: trust.public_key)
    for ref, made in releases.items():
        files.bring(ref, made.digest)
