"""The manifest of a release: ``files.arrow``.

An Arrow IPC file, uncompressed, without dictionaries, in record batches of 65,536 rows sorted by the bytes of the
path, with the format's version in the schema's metadata, so that a node maps it into memory and answers from it.
``manifest_digest`` is the SHA-256 of this file.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import pyarrow as pa
from blake3 import blake3

from catalog.names import InvalidPath, check_paths
from openshelf.errors import OpenshelfError
from openshelf.units import MIB

FORMAT_VERSION = b"1"
BATCH_ROWS = 65_536
CHUNK_BYTES = 4 * MIB
PACK_FILE_BYTES = 1 * MIB
"""Files up to this size are put into packs."""
PACK_BYTES = 64 * MIB
"""A pack is closed before the file that would take it past this size."""
DEFAULT_MTIME_NS = 946_684_800 * 10**9
"""2000-01-01T00:00:00Z: the date of files whose recipe names none."""
READ_BYTES = 1 * MIB

DIGEST = pa.binary(32)
SCHEMA = pa.schema(
    [
        pa.field("path", pa.large_string(), nullable=False),
        pa.field("size", pa.uint64(), nullable=False),
        pa.field("mode", pa.uint16(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("object", DIGEST, nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("blake3", pa.list_(pa.field("item", DIGEST, nullable=False)), nullable=False),
    ],
    metadata={b"openshelf.manifest.version": FORMAT_VERSION},
)
_OPTIONS = pa.ipc.IpcWriteOptions(
    metadata_version=pa.ipc.MetadataVersion.V5, compression=None, unify_dictionaries=False
)


class ManifestError(OpenshelfError):
    """A manifest cannot be read, is not in the format, or is not the one that was promised."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a release. Digests are 32 raw bytes; ``offset`` is where it starts inside ``object``."""

    path: str
    size: int
    mode: int
    mtime_ns: int
    sha256: bytes
    object: bytes
    offset: int
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """What the bytes of one file say: size in bytes, SHA-256, and BLAKE3 of each 4 MiB chunk."""

    size: int
    sha256: bytes
    chunks: tuple[bytes, ...]


class ContentHasher:
    """Computes a :class:`ContentDigest` from bytes given in any portions."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._chunk = blake3()
        self._in_chunk = 0
        self._chunks: list[bytes] = []
        self._size = 0

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._sha256.update(data)
        view = memoryview(data)
        self._size += len(view)
        while len(view):
            part = view[: CHUNK_BYTES - self._in_chunk]
            self._chunk.update(part)
            self._in_chunk += len(part)
            view = view[len(part) :]
            if self._in_chunk == CHUNK_BYTES:
                self._close_chunk()

    def _close_chunk(self) -> None:
        self._chunks.append(self._chunk.digest())
        self._chunk = blake3()
        self._in_chunk = 0

    def finish(self) -> ContentDigest:
        """The digests of everything taken so far; call once."""
        if self._in_chunk:
            self._close_chunk()
        return ContentDigest(self._size, self._sha256.digest(), tuple(self._chunks))


def digest_stream(stream: BinaryIO) -> ContentDigest:
    """The digests of everything that ``stream`` still has."""
    hasher = ContentHasher()
    while data := stream.read(READ_BYTES):
        hasher.update(data)
    return hasher.finish()


def digest_file(path: Path) -> ContentDigest:
    """The digests of the file at ``path``."""
    with path.open("rb") as stream:
        return digest_stream(stream)


def plan_packs(files: Sequence[tuple[bytes, int]]) -> list[list[int]]:
    """Which files share a pack: lists of indexes into ``files``, pairs of (SHA-256, size) in path order.

    Only files up to 1 MiB are packed; each distinct content once (its first place); a pack is closed before the file
    that would take it past 64 MiB. Deterministic, so the same files always make the same packs.
    """
    packs: list[list[int]] = []
    filled = PACK_BYTES + 1
    placed: set[bytes] = set()
    for index, (sha256, size) in enumerate(files):
        if size > PACK_FILE_BYTES or sha256 in placed:
            continue
        placed.add(sha256)
        if filled + size > PACK_BYTES:
            packs.append([])
            filled = 0
        packs[-1].append(index)
        filled += size
    return packs


def to_batches(entries: Sequence[FileEntry]) -> Iterator[pa.RecordBatch]:
    """``entries``, already in path order, as record batches of the manifest's schema."""
    for start in range(0, max(len(entries), 1), BATCH_ROWS):
        part = entries[start : start + BATCH_ROWS]
        columns = [
            [entry.path for entry in part],
            [entry.size for entry in part],
            [entry.mode for entry in part],
            [entry.mtime_ns for entry in part],
            [entry.sha256 for entry in part],
            [entry.object for entry in part],
            [entry.offset for entry in part],
            [list(entry.chunks) for entry in part],
        ]
        arrays = [pa.array(values, type=field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        yield pa.record_batch(arrays, schema=SCHEMA)


def write_manifest(entries: Iterable[FileEntry], destination: Path) -> bytes:
    """Write ``files.arrow`` for ``entries`` (any order) to ``destination`` and return its digest (32 bytes).

    Paths are checked (:class:`catalog.names.InvalidPath`), duplicates refused. The file is fsynced.
    """
    ordered = sorted(entries, key=lambda entry: entry.path.encode("utf-8", "surrogatepass"))
    for before, after in itertools.pairwise(ordered):
        if before.path == after.path:
            raise InvalidPath(after.path, "stands twice in the release")
    check_paths(entry.path for entry in ordered)
    with destination.open("wb") as sink:
        with pa.ipc.new_file(sink, SCHEMA, options=_OPTIONS) as writer:
            for batch in to_batches(ordered):
                writer.write_batch(batch)
        sink.flush()
        os.fsync(sink.fileno())
    return sha256_of(destination)


def sha256_of(path: Path) -> bytes:
    """SHA-256 of the file at ``path`` (32 bytes)."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


class Manifest:
    """A memory-mapped ``files.arrow``: rows by number, rows by path, ranges by folder, without loading it.

    Open with :meth:`open`; rows are in path-byte order. Closing while a row's arrays are in use is safe: Arrow keeps
    the mapping alive.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], digest: bytes) -> None:
        self.digest = digest
        self._batches = batches
        self._length: int = sum(batch.num_rows for batch in batches)

    @classmethod
    def open(cls, path: Path, expected: bytes | None = None) -> Self:
        """Map the manifest at ``path``; with ``expected`` its SHA-256 is computed and compared first.

        Without ``expected`` the digest is computed from the file and only reported in :attr:`digest`.
        """
        digest = sha256_of(path)
        if expected is not None and digest != expected:
            raise ManifestError(
                "manifest_mismatch",
                f"The manifest at {path} has SHA-256 {digest.hex()}, not {expected.hex()}",
                "It was damaged or replaced: remove it, and it is fetched again.",
            )
        return cls.open_verified(path, digest)

    @classmethod
    def open_verified(cls, path: Path, digest: bytes) -> Self:
        """Map a manifest whose digest was verified before (no byte is hashed)."""
        try:
            with pa.memory_map(str(path)) as source:
                reader = pa.ipc.open_file(source)
                schema = reader.schema
                batches = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        except (pa.ArrowInvalid, OSError) as error:
            raise ManifestError(
                "manifest_unreadable", f"The manifest at {path} cannot be read: {error}", "Fetch it again."
            ) from error
        full = all(batch.num_rows == BATCH_ROWS for batch in batches[:-1])
        if not full or not schema.equals(SCHEMA, check_metadata=True):
            raise ManifestError(
                "manifest_format",
                f"The manifest at {path} is of another format",
                "Upgrade openshelf on this machine.",
            )
        return cls(batches, digest)

    def __len__(self) -> int:
        return self._length

    def _at(self, row: int) -> tuple[pa.RecordBatch, int]:
        if not 0 <= row < self._length:
            raise IndexError(row)
        batch, at = divmod(row, BATCH_ROWS)
        return self._batches[batch], at

    def path(self, row: int) -> str:
        """The path of a row."""
        batch, at = self._at(row)
        return str(batch.column(0)[at].as_py())

    def path_bytes(self, row: int) -> bytes:
        """The UTF-8 bytes of a row's path."""
        batch, at = self._at(row)
        return bytes(batch.column(0)[at].as_buffer())

    def row(self, row: int) -> FileEntry:
        """One row as a :class:`FileEntry`."""
        batch, at = self._at(row)
        path, size, mode, mtime_ns, sha256, stored, offset, chunks = (column[at].as_py() for column in batch.columns)
        return FileEntry(path, size, mode, mtime_ns, sha256, stored, offset, tuple(chunks))

    def rows(self) -> Iterator[FileEntry]:
        """Every row in path order, a batch at a time."""
        for batch in self._batches:
            columns = [column.to_pylist() for column in batch.columns]
            for path, size, mode, mtime_ns, sha256, stored, offset, chunks in zip(*columns, strict=True):
                yield FileEntry(path, size, mode, mtime_ns, sha256, stored, offset, tuple(chunks))

    def batches(self) -> Sequence[pa.RecordBatch]:
        """The mapped record batches, for column work."""
        return self._batches

    def lower_bound(self, path: bytes, start: int = 0) -> int:
        """The first row at or after ``start`` whose path bytes are not below ``path``."""
        low, high = start, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.path_bytes(middle) < path:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, path: str) -> int | None:
        """The row of the file at ``path``, or None."""
        key = path.encode("utf-8", "surrogatepass")
        row = self.lower_bound(key)
        return row if row < len(self) and self.path_bytes(row) == key else None

    def total_bytes(self) -> int:
        """The sum of all file sizes."""
        import pyarrow.compute as pc

        return sum(int(pc.sum(batch.column(1)).as_py() or 0) for batch in self._batches)
