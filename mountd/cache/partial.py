"""A file of which only some chunks are in the cache: sparse, every chunk checked before it is written."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from catalog.manifest import CHUNK_BYTES
from mountd.cache.chunks import ChunkMap, ChunkState
from mountd.cache.layout import SEALED_MODE, UNSETTLED_MODE

BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileSpec:
    """What the manifest promises of a file: its digests are 32 raw bytes, ``chunks`` BLAKE3 of each 4 MiB chunk."""

    sha256: bytes
    size: int
    mtime_ns: int
    chunks: tuple[bytes, ...]

    def chunk_range(self, index: int) -> tuple[int, int]:
        """Start and end in the file, in bytes, of chunk ``index``."""
        return index * CHUNK_BYTES, min((index + 1) * CHUNK_BYTES, self.size)

    def is_chunk(self, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Whether ``data`` is chunk ``index``."""
        start, stop = self.chunk_range(index)
        return len(data) == stop - start and blake3(data).digest() == self.chunks[index]


def disk_bytes(size: int) -> int:
    """What a file of ``size`` bytes takes on disk: whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


class PartialFile:
    """An open partial file. Chunks may be written by several threads at once, each by one; confirming is the owner's
    to serialise.

    After :meth:`rename` the descriptor goes on reading the same bytes, now under the sealed name.
    """

    def __init__(self, spec: FileSpec, path: Path, descriptor: int, chunks: ChunkMap) -> None:
        self.spec = spec
        self.descriptor = descriptor
        self.chunks = chunks
        self._path = path
        self._direct = _open_direct(path)

    @classmethod
    def open(cls, spec: FileSpec, path: Path) -> PartialFile:
        """Open or make the partial file at ``path``; OSError when the disk refuses."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size != spec.size:
                os.ftruncate(descriptor, spec.size)
            chunks = ChunkMap.open(chunks_path(path), len(spec.chunks))
        except OSError:
            os.close(descriptor)
            raise
        return cls(spec, path, descriptor, chunks)

    def write(self, index: int, data: bytes | bytearray | memoryview) -> None:
        """Store chunk ``index``, whose bytes the caller has checked, and mark it. OSError when the disk refuses.

        Whole blocks in a page-aligned buffer go to the disk without a copy in the page cache: whoever reads a chunk
        for the first time has it from memory.
        """
        position, _ = self.spec.chunk_range(index)
        whole = len(data) // BLOCK_BYTES * BLOCK_BYTES
        view = memoryview(data)
        written = self._write_direct(view[:whole], position)
        _write_all(self.descriptor, view[written:], position + written)
        self.chunks.written(index)

    def _write_direct(self, view: memoryview, position: int) -> int:
        """Write past the page cache as much as can be; how much that was."""
        done = 0
        try:
            while self._direct is not None and done < len(view):
                done += os.pwrite(self._direct, view[done:], position + done)
                done = done // BLOCK_BYTES * BLOCK_BYTES
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        return done

    def confirm(self, index: int) -> bool:
        """Hash a PRESENT chunk again: VERIFIED when it is right, ABSENT when it is wrong or unreadable."""
        start, stop = self.spec.chunk_range(index)
        try:
            right = self.spec.is_chunk(index, os.pread(self.descriptor, stop - start, start))
        except OSError:
            right = False
        if right:
            self.chunks.confirmed(index)
        else:
            self.chunks.dropped(index)
        return right

    def state(self, index: int) -> ChunkState:
        """The state of chunk ``index``; a PRESENT one is confirmed first, so the answer is never PRESENT."""
        if self.chunks[index] is ChunkState.PRESENT:
            self.confirm(index)
        return self.chunks[index]

    def make_durable(self) -> None:
        """Give the complete file its final mode and date, and force it to the disk. OSError when that refuses."""
        if not self.chunks.complete:
            raise AssertionError(f"{self._path.name} is sealed before it is complete")
        os.fchmod(self.descriptor, SEALED_MODE)
        os.utime(self.descriptor, ns=(self.spec.mtime_ns, self.spec.mtime_ns))
        os.fsync(self.descriptor)

    def rename(self, destination: Path) -> None:
        """Give the durable file its sealed name; the descriptor goes on reading it."""
        _rename(self._path, destination)
        chunks_path(self._path).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the descriptors; the file stays."""
        self.chunks.close()
        if self._direct is not None:
            os.close(self._direct)
            self._direct = None
        os.close(self.descriptor)


def write_whole(spec: FileSpec, data: bytes | bytearray | memoryview, path: Path, destination: Path) -> int:
    """Give a file of one chunk, whose bytes the caller has checked, its sealed name by way of ``path``: a descriptor.

    It is not durable yet. OSError when the disk refuses.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, data, 0)
        os.utime(descriptor, ns=(spec.mtime_ns, spec.mtime_ns))
        os.fchmod(descriptor, UNSETTLED_MODE)
        _rename(path, destination)
    except OSError:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor


def _open_direct(path: Path) -> int | None:
    """A descriptor that writes past the page cache; None where the file system has no such thing."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None


def _write_all(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        position += written
        view = view[written:]


def _rename(path: Path, destination: Path) -> None:
    try:
        path.rename(destination)
    except FileNotFoundError:
        destination.parent.mkdir(mode=0o700, exist_ok=True)
        path.rename(destination)


def chunks_path(path: Path) -> Path:
    """The chunk map of the partial file at ``path``."""
    return path.with_name(path.name + ".chunks")


def remove_partial(path: Path) -> None:
    """Remove a partial file and its map, if they exist."""
    path.unlink(missing_ok=True)
    chunks_path(path).unlink(missing_ok=True)
