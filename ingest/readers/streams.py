"""Bytes of a file in blocks, decompressed on the way, with an honest answer to "was that the end?"."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, cast

import zstandard

from openshelf.errors import OpenshelfError
from openshelf.units import MIB

Compression = Literal["none", "gzip", "zstd"]
BLOCK_BYTES = 4 * MIB
_GZIP = 31  # zlib's window bits for a gzip header
_ZSTD_INPUT_BYTES = 2048
"""Small, because a frame may expand each 4 bytes to 128 KiB and the decompressor returns all of it at once."""
_ZSTD_WINDOW_BYTES = 1 << 31
"""``zstd --long=31``, which public corpora use."""

_MOST_EXPANSION = 10_000
"""Times that a stream may grow, once it is past 1 GiB. gzip cannot reach it, and no text compresses so well."""
_EXPANSION_GRACE_BYTES = 1 << 30

SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    *((bytes((low, 0x2A, 0x4D, 0x18)), "zstd") for low in range(0x50, 0x60)),  # a skippable frame comes first
    (b"\xfd7zXZ\0", "an xz file"),
    (b"BZh91AY&SY", "a bzip2 file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"PAR1", "a Parquet file"),
)
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\x1b")


class WrongContent(OpenshelfError):
    """A file is not what its name says."""

    def __init__(self, path: Path, message: str, hint: str) -> None:
        super().__init__("wrong_content", f"{path} {message}", hint)


def find_compression(path: Path, named: Compression) -> Compression:
    """How the file at ``path``, which its name calls ``named``, is really compressed: its first bytes decide.

    Downloads are often unpacked on the way and keep their ``.gz``, or the other way round; both are read as they are.
    Raises :class:`WrongContent` for archives and other formats under a name of text, and for a ``.gz`` or ``.zst`` that
    is neither compressed nor text. An empty file stays what its name says.
    """
    with path.open("rb") as stream:
        head = stream.read(512)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            if kind in SUFFIXES.values():
                return cast("Compression", kind)
            if b"\0" in head or kind == "a bzip2 file":
                raise WrongContent(path, f"is {kind}, not what its name says", "Unpack or rename it.")
    if named == "none" or not head:
        return named
    if all(byte >= 0x20 or byte in _TEXT_CONTROLS for byte in head):
        return "none"
    raise WrongContent(path, f"is not a {named} file, whatever its name says", "Fetch it again, or leave it out.")


class ByteBlocks:
    """Iterates over the decompressed bytes of ``path`` between ``start`` and ``stop`` (bytes of a plain file).

    After the last block, :attr:`truncated` is True when a compressed stream broke off or is damaged, and for a
    compressed file of no bytes at all; all bytes before the break have been given. Memory stays bounded whatever a
    stream expands to; one that expands beyond all measure raises :class:`WrongContent`.
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
        self.truncated = not self._path.stat().st_size
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
        size = taken = given = 0
        while data := stream.read(_ZSTD_INPUT_BYTES):
            taken += len(data)
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
                given += size
                if given > max(_EXPANSION_GRACE_BYTES, taken * _MOST_EXPANSION):
                    raise WrongContent(
                        self._path, f"expands more than {_MOST_EXPANSION:,}-fold", "That is no corpus: leave it out."
                    )
                yield from _in_blocks(b"".join(gathered))
                gathered, size = [], 0
        if size:
            yield from _in_blocks(b"".join(gathered))
        self.truncated = started or not taken


def _in_blocks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), BLOCK_BYTES):
        yield data[start : start + BLOCK_BYTES]


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
