"""A release's rows straight from the mapped manifest: by number, by path, and the entries of one folder.

Paths are compared as bytes in the mapping, so that no object per file is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from catalog.manifest import BATCH_ROWS, PACK_FILE_BYTES, FileEntry, Manifest

_SHIFT = BATCH_ROWS.bit_length() - 1
_MASK = BATCH_ROWS - 1
_SLASH = 0x2F
AFTER_SLASH = b"0"
"""The byte that follows ``/``: ``folder + AFTER_SLASH`` bounds all paths that begin with ``folder + b"/"``."""
FIRST_BLOCK_ROWS = 64
LAST_BLOCK_ROWS = 16_384


class PackedFile(NamedTuple):
    """A file of one chunk in a pack: where it starts there and its size in bytes, its date, and its digests."""

    offset: int
    size: int
    mtime_ns: int
    sha256: bytes
    blake3: bytes


class _Batch:
    """The buffers of one record batch as memory views; nothing is copied."""

    __slots__ = (
        "chunk_digests",
        "chunk_offsets",
        "modes",
        "mtimes",
        "objects",
        "offsets",
        "path_bytes",
        "path_offsets",
        "sha256",
        "sizes",
    )

    def __init__(self, batch: Any) -> None:
        path, size, mode, mtime, sha256, stored, offset, chunks = (column.buffers() for column in batch.columns)
        self.path_offsets = memoryview(path[1]).cast("q")
        self.path_bytes = memoryview(path[2] or b"")
        self.sizes = memoryview(size[1]).cast("Q")
        self.modes = memoryview(mode[1]).cast("H")
        self.mtimes = memoryview(mtime[1]).cast("q")
        self.sha256 = memoryview(sha256[1])
        self.objects = memoryview(stored[1])
        self.offsets = memoryview(offset[1]).cast("Q")
        self.chunk_offsets = memoryview(chunks[1]).cast("i")
        self.chunk_digests = memoryview(chunks[3] or b"")

    def packed_in(self, stored: memoryview) -> Iterator[PackedFile]:
        """The files of one chunk, up to the size of packed ones, that lie in the object ``stored``."""
        wanted = np.frombuffer(stored, np.uint64)
        objects = np.frombuffer(self.objects, np.uint64).reshape(-1, 4)
        rows = np.flatnonzero(objects[:, 0] == wanted[0])
        rows = rows[(objects[rows] == wanted).all(axis=1)]
        for row in rows.tolist():
            size, chunk = self.sizes[row], self.chunk_offsets[row]
            if 0 < size <= PACK_FILE_BYTES and self.chunk_offsets[row + 1] == chunk + 1:
                sha256 = bytes(self.sha256[row * 32 : row * 32 + 32])
                digest = bytes(self.chunk_digests[chunk * 32 : chunk * 32 + 32])
                yield PackedFile(self.offsets[row], size, self.mtimes[row], sha256, digest)


class Rows:
    """The rows of one manifest, in path-byte order."""

    def __init__(self, manifest: Manifest) -> None:
        self._batches = [_Batch(batch) for batch in manifest.batches() if batch.num_rows]
        self._count = len(manifest)

    def __len__(self) -> int:
        return self._count

    def path(self, row: int) -> bytes:
        """The path of a row."""
        batch = self._batches[row >> _SHIFT]
        at = row & _MASK
        return bytes(batch.path_bytes[batch.path_offsets[at] : batch.path_offsets[at + 1]])

    def file(self, row: int) -> tuple[bytes, int, int, int]:
        """Path, size in bytes, mode, and modification time in nanoseconds of a row."""
        batch = self._batches[row >> _SHIFT]
        at = row & _MASK
        offsets = batch.path_offsets
        path = bytes(batch.path_bytes[offsets[at] : offsets[at + 1]])
        return path, batch.sizes[at], batch.modes[at], batch.mtimes[at]

    def entry(self, row: int) -> FileEntry:
        """A whole row."""
        batch = self._batches[row >> _SHIFT]
        at = row & _MASK
        digest = slice(at * 32, at * 32 + 32)
        chunks = range(batch.chunk_offsets[at] * 32, batch.chunk_offsets[at + 1] * 32, 32)
        return FileEntry(
            self.path(row).decode(),
            batch.sizes[at],
            batch.modes[at],
            batch.mtimes[at],
            bytes(batch.sha256[digest]),
            bytes(batch.objects[digest]),
            batch.offsets[at],
            tuple([bytes(batch.chunk_digests[start : start + 32]) for start in chunks]),
        )

    def pack(self, row: int) -> list[PackedFile]:
        """The small files that lie in the same object as ``row``, in order of their place, each content once.

        They are looked for in the batch of the row and its two neighbours.
        """
        first = row >> _SHIFT
        at = row & _MASK
        stored = self._batches[first].objects[at * 32 : at * 32 + 32]
        near = self._batches[max(first - 1, 0) : first + 2]
        found = {each.offset: each for batch in near for each in batch.packed_in(stored)}
        return [found[offset] for offset in sorted(found)]

    def lower_bound(self, path: bytes, low: int, high: int) -> int:
        """The first row in [low, high) whose path is not below ``path``, else ``high``."""
        batches = self._batches
        while low < high:
            middle = (low + high) >> 1
            batch = batches[middle >> _SHIFT]
            at = middle & _MASK
            if bytes(batch.path_bytes[batch.path_offsets[at] : batch.path_offsets[at + 1]]) < path:
                low = middle + 1
            else:
                high = middle
        return low

    def end_of_folder(self, folder: bytes, first: int, high: int) -> int:
        """The row after the last one below ``folder`` (without ``/``), whose first is ``first``: doubling steps."""
        bound = folder + AFTER_SLASH
        low, step = first + 1, 1
        while low + step < high and self.path(low + step) < bound:
            low += step
            step *= 2
        return self.lower_bound(bound, low, min(low + step, high))

    def entries(self, prefix: bytes, low: int, high: int) -> npt.NDArray[np.int64]:
        """What is in the folder with rows [low, high) and paths that begin with ``prefix``, in order of name bytes.

        One number each: the row of a file, or ``~first_row`` of a folder.
        """
        runs: list[npt.NDArray[np.int64]] = []
        folders: list[tuple[bytes, int]] = []
        skip = len(prefix)
        row, block = low, FIRST_BLOCK_ROWS
        while row < high:
            path = self.path(row)
            cut = path.find(b"/", skip)
            if cut >= 0:
                folders.append((path[skip:cut], row))
                row = self.end_of_folder(path[:cut], row, high)
                block = FIRST_BLOCK_ROWS
                continue
            files = self._leading_files(skip, row, min(block, high - row))
            runs.append(np.arange(row, row + files, dtype=np.int64))
            row += files
            block = min(block * 2, LAST_BLOCK_ROWS)
        found = np.concatenate(runs) if runs else np.empty(0, np.int64)
        return self._merge(found, sorted(folders), skip)

    def _leading_files(self, skip: int, row: int, limit: int) -> int:
        """How many rows from ``row`` on, ``limit`` at most and in one batch, have no ``/`` after ``skip`` bytes."""
        batch = self._batches[row >> _SHIFT]
        at = row & _MASK
        limit = min(limit, BATCH_ROWS - at)
        offsets = np.frombuffer(batch.path_offsets, np.int64)[at : at + limit + 1]
        text = np.frombuffer(batch.path_bytes, np.uint8)[offsets[0] : offsets[-1]]
        slashes = np.flatnonzero(text == _SLASH) + offsets[0]
        following = np.searchsorted(slashes, offsets[:-1] + skip)
        ends = np.append(slashes, offsets[-1])[following]
        deeper = np.flatnonzero(ends < offsets[1:])
        return int(deeper[0]) if len(deeper) else limit

    def _merge(
        self, files: npt.NDArray[np.int64], folders: Sequence[tuple[bytes, int]], skip: int
    ) -> npt.NDArray[np.int64]:
        """Files and folders together in order of name bytes (in path order ``a.txt`` stands before ``a/…``)."""
        if not folders:
            return files
        places = []
        for name, _ in folders:
            low, high = 0, len(files)
            while low < high:
                middle = (low + high) >> 1
                if self.path(int(files[middle]))[skip:] < name:
                    low = middle + 1
                else:
                    high = middle
            places.append(low)
        return np.insert(files, places, [~first for _, first in folders])

    def sha256_column(self) -> list[npt.NDArray[np.uint8]]:
        """The SHA-256 of every row: arrays of shape (rows of the batch, 32), mapped."""
        return [np.frombuffer(batch.sha256, np.uint8).reshape(-1, 32) for batch in self._batches]
