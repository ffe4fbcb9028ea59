"""A release's rows straight from the mapped manifest: by number, by path, and the entries of one folder.

Paths are compared as bytes in the mapping, so that no object per file is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from catalog.manifest import BATCH_ROWS, PACK_FILE_BYTES, FileEntry, Manifest

_SHIFT = BATCH_ROWS.bit_length() - 1
_MASK = BATCH_ROWS - 1
_SLASH = 0x2F
AFTER_SLASH = b"0"
"""The byte that follows ``/``: ``folder + AFTER_SLASH`` bounds all paths that begin with ``folder + b"/"``."""
MARK_ROWS = 64
"""Every so many rows a path is kept as an object, once a name is looked up in the batch: 2 bytes a row or so."""
FIRST_BLOCK_ROWS = 64
LAST_BLOCK_ROWS = 16_384
MOST_BLOCKS = 256
"""How many rows are looked at together: few where a folder follows a folder, many where files do; and how often."""


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
        "kept_marks",
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
        self.path_offsets = memoryview(path[1]).cast("q")[: batch.num_rows + 1]
        self.path_bytes = memoryview(path[2] or b"")
        self.sizes = memoryview(size[1]).cast("Q")
        self.modes = memoryview(mode[1]).cast("H")
        self.mtimes = memoryview(mtime[1]).cast("q")
        self.sha256 = memoryview(sha256[1])
        self.objects = memoryview(stored[1])
        self.offsets = memoryview(offset[1]).cast("Q")
        self.chunk_offsets = memoryview(chunks[1]).cast("i")
        self.chunk_digests = memoryview(chunks[3] or b"")
        self.kept_marks: list[bytes] | None = None

    def marks(self) -> list[bytes]:
        """The path of every ``MARK_ROWS``-th row."""
        marks = self.kept_marks
        if marks is None:
            offsets, text = self.path_offsets, self.path_bytes
            starts = range(0, len(offsets) - 1, MARK_ROWS)
            marks = self.kept_marks = [bytes(text[offsets[at] : offsets[at + 1]]) for at in starts]
        return marks

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


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries of one folder by columns, all of shape (entries,).

    Names are ``text[start : start + length]``; ``rows`` has a file's row or a folder's first, ``following`` the row at
    which the next entry begins.
    """

    text: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    is_folder: npt.NDArray[np.bool_]
    following: npt.NDArray[np.int64]


def _begins(
    text: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    is_folder: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Which rows begin an entry: all but those in the same folder as the row before."""
    begins = np.ones(len(starts), np.bool_)
    alike = np.flatnonzero(is_folder[1:] & is_folder[:-1] & (lengths[1:] == lengths[:-1])) + 1
    if len(alike):
        sizes = lengths[alike]
        first = np.cumsum(sizes) - sizes
        inside = np.arange(int(sizes.sum())) - np.repeat(first, sizes)
        same = text[np.repeat(starts[alike], sizes) + inside] == text[np.repeat(starts[alike - 1], sizes) + inside]
        begins[alike[np.logical_and.reduceat(same, first)]] = False
    return begins


class Rows:
    """The rows of one manifest, in path-byte order."""

    def __init__(self, manifest: Manifest) -> None:
        self._batches = [_Batch(batch) for batch in manifest.batches() if batch.num_rows]
        self._firsts = [
            bytes(batch.path_bytes[batch.path_offsets[0] : batch.path_offsets[1]]) for batch in self._batches
        ]
        self._count = len(manifest)

    def __len__(self) -> int:
        return self._count

    def path(self, row: int) -> bytes:
        """The path of a row."""
        batch = self._batches[row >> _SHIFT]
        at = row & _MASK
        return bytes(batch.path_bytes[batch.path_offsets[at] : batch.path_offsets[at + 1]])

    def file(self, row: int) -> tuple[int, int, int]:
        """Size in bytes, mode, and modification time in nanoseconds of a row."""
        batch = self._batches[row >> _SHIFT]
        at = row & _MASK
        return batch.sizes[at], batch.modes[at], batch.mtimes[at]

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

    def find(self, path: bytes, low: int, high: int) -> int | None:
        """The row in [low, high) with exactly this path, or None."""
        if low >= high:
            return None
        number = self._batch_of(path, low, high)
        batch, base = self._batches[number], number << _SHIFT
        at = max(bisect_right(batch.marks(), path) - 1, 0) * MARK_ROWS
        offsets = batch.path_offsets
        end = min(at + MARK_ROWS, len(offsets) - 1)
        start, found = offsets[at], -1
        window = bytes(batch.path_bytes[start : offsets[end]])
        while (found := window.find(path, found + 1)) >= 0:
            row = bisect_left(offsets, start + found, at, end)
            if offsets[row] == start + found and offsets[row + 1] == start + found + len(path):
                return base + row if low <= base + row < high else None
        return None

    def _batch_of(self, path: bytes, low: int, high: int) -> int:
        """The batch that a path is in, if it is in the rows [low, high): the last that begins at or below it."""
        first, last = low >> _SHIFT, (high - 1) >> _SHIFT
        return bisect_right(self._firsts, path, first + 1, last + 1) - 1 if first < last else first

    def lower_bound(self, path: bytes, low: int, high: int) -> int:
        """The first row in [low, high) whose path is not below ``path``, else ``high``."""
        batches = self._batches
        if high - low > MARK_ROWS:
            number = self._batch_of(path, low, high)
            start = number << _SHIFT
            low, high = max(low, start), min(high, start + BATCH_ROWS)
            at = bisect_left(batches[number].marks(), path)
            low = min(max(low, start + (at - 1) * MARK_ROWS), high)
            high = min(high, start + at * MARK_ROWS)
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
        """The row after the last below ``folder`` (without ``/``), which has the row ``first``: in doubling steps."""
        bound = folder + AFTER_SLASH
        low, step = first + 1, 1
        while low + step < high and self.path(low + step) < bound:
            low += step
            step *= 2
        return self.lower_bound(bound, low, min(low + step, high))

    def entries(self, skip: int, row: int, high: int) -> Entries:
        """The next entries of the folder whose paths' first ``skip`` bytes are its own and whose rows end before
        ``high``, from ``row`` on, where an entry begins: at least one, as many as come together cheaply."""
        number = row >> _SHIFT
        batch, base = self._batches[number], number << _SHIFT
        offsets = np.frombuffer(batch.path_offsets, np.int64)
        text = np.frombuffer(batch.path_bytes, np.uint8)
        stop, block = min(high, base + BATCH_ROWS), FIRST_BLOCK_ROWS
        parts: list[tuple[npt.NDArray[Any], ...]] = []
        for _ in range(MOST_BLOCKS):
            at, count = row - base, min(block, stop - row)
            bounds = offsets[at : at + count + 1]
            starts = bounds[:-1] + skip
            slashes = np.flatnonzero(text[bounds[0] : bounds[-1]] == _SLASH) + bounds[0]
            ends = np.append(slashes, bounds[-1])[np.searchsorted(slashes, starts)]
            is_folder = ends < bounds[1:]
            lengths = np.minimum(ends, bounds[1:]) - starts
            chosen = np.flatnonzero(_begins(text, starts, lengths, is_folder))
            row += count
            if is_folder[-1]:
                row = self.end_of_folder(bytes(text[bounds[-2] : ends[-1]]), row - 1, high)
            rows = chosen + (base + at)
            following = np.append(rows[1:], row)
            parts.append((starts[chosen], lengths[chosen], rows, is_folder[chosen], following))
            if row >= stop or count >= LAST_BLOCK_ROWS:
                break
            block = min(block * 4, LAST_BLOCK_ROWS) if len(chosen) > 1 or not is_folder[-1] else FIRST_BLOCK_ROWS
        return Entries(text, *(np.concatenate(column) for column in zip(*parts, strict=True)))

    def attributes(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Sizes, modes and modification times (ns) of rows of one batch."""
        batch, at = self._batches[int(rows[0]) >> _SHIFT], rows & _MASK
        return (
            np.frombuffer(batch.sizes, np.uint64)[at].astype(np.int64),
            np.frombuffer(batch.modes, np.uint16)[at].astype(np.uint32),
            np.frombuffer(batch.mtimes, np.int64)[at],
        )

    def sha256_column(self) -> list[npt.NDArray[np.uint8]]:
        """The SHA-256 of every row: arrays of shape (rows of the batch, 32), mapped."""
        return [np.frombuffer(batch.sha256, np.uint8).reshape(-1, 32) for batch in self._batches]
