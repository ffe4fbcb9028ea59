"""Bytes of a file in blocks, decompressed on the way, with an honest answer to "was that the end?"."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import zstandard

from openshelf.units import MIB

Compression = Literal["none", "gzip", "zstd"]
BLOCK_BYTES = 4 * MIB
_GZIP = 31  # zlib's window bits for a gzip header
_ZSTD_INPUT_BYTES = 8192
"""Small, because a frame may expand each 4 bytes to 128 KiB and the decompressor returns all of it at once."""
_ZSTD_WINDOW_BYTES = 1 << 31
"""``zstd --long=31``, which public corpora use."""

SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}


class ByteBlocks:
    """Iterates over the decompressed bytes of ``path`` between ``start`` and ``stop`` (bytes of a plain file).

    After the last block, :attr:`truncated` is True when a compressed stream broke off or is damaged; all bytes
    before the break have been given.
    """

    def __init__(self, path: Path, compression: Compression = "none", start: int = 0, stop: int | None = None) -> None:
        self._path = path
        self._compression = compression
        self._start = start
        self._stop = stop
        self.truncated = False

    def __iter__(self) -> Iterator[bytes]:
        with self._path.open("rb") as stream:
            if self._compression == "gzip":
                yield from self._gzip(stream)
            elif self._compression == "zstd":
                yield from self._zstd(stream)
            else:
                yield from self._plain(stream)

    def _plain(self, stream: BinaryIO) -> Iterator[bytes]:
        stream.seek(self._start)
        left = None if self._stop is None else self._stop - self._start
        while left is None or left > 0:
            block = stream.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left))
            if not block:
                return
            if left is not None:
                left -= len(block)
            yield block

    def _gzip(self, stream: BinaryIO) -> Iterator[bytes]:
        """Members one after another; zero bytes after the last are padding, as gzip itself treats them."""
        member = zlib.decompressobj(_GZIP)
        started = False
        pending = b""
        while data := (pending or stream.read(BLOCK_BYTES)):
            try:
                block = member.decompress(data, BLOCK_BYTES)
            except zlib.error:
                self.truncated = True
                return
            started = True
            if block:
                yield block
            pending = member.unconsumed_tail
            if member.eof:
                pending = self._skip_padding(stream, member.unused_data)
                member = zlib.decompressobj(_GZIP)
                started = False
        while started and (block := member.decompress(b"", BLOCK_BYTES)):
            yield block
        self.truncated = self.truncated or (started and not member.eof)

    @staticmethod
    def _skip_padding(stream: BinaryIO, rest: bytes) -> bytes:
        rest = rest.lstrip(b"\0")
        while not rest:
            data = stream.read(BLOCK_BYTES)
            if not data:
                return b""
            rest = data.lstrip(b"\0")
        return rest

    def _zstd(self, stream: BinaryIO) -> Iterator[bytes]:
        context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        frame = context.decompressobj()
        started = False
        gathered: list[bytes] = []
        size = 0
        while data := stream.read(_ZSTD_INPUT_BYTES):
            while data:
                try:
                    block = frame.decompress(data)
                except zstandard.ZstdError:
                    self.truncated = True
                    yield b"".join(gathered)
                    return
                started = True
                data = frame.unused_data if frame.eof else b""
                if frame.eof:
                    frame = context.decompressobj()
                    started = False
                gathered.append(block)
                size += len(block)
            if size >= BLOCK_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
        if size:
            yield b"".join(gathered)
        self.truncated = started


def read_head(path: Path, compression: Compression, size_bytes: int) -> tuple[bytes, bool]:
    """The first ``size_bytes`` of the decompressed file (or fewer), and whether that is all of it."""
    head: list[bytes] = []
    size = 0
    for block in ByteBlocks(path, compression):
        head.append(block)
        size += len(block)
        if size > size_bytes:
            return b"".join(head)[:size_bytes], False
    return b"".join(head), True
