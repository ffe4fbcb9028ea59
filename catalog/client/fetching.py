"""Fetching the contents of a release: a plan of ranges, each verified chunk by chunk against the manifest.

Chunks that lie side by side in one object (of one large file, or of the many small files of a pack) travel in one
request of up to 16 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from blake3 import blake3

from catalog.client.client import Client
from catalog.client.errors import ReadFailed
from catalog.manifest import CHUNK_BYTES, FileEntry, ManifestError
from openshelf.errors import OpenshelfError
from openshelf.units import MIB

SPAN_BYTES = 16 * MIB
FETCHES = 2
"""How often a span is fetched when its bytes are wrong."""


class CorruptContents(OpenshelfError):
    """What the catalog delivers is not what the signed manifest promises."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            "corrupt_contents",
            f"The bytes of {path!a} are not those of the signed manifest: {what}",
            "The object is damaged in the store or on the way: tell the operator. What is verified is kept.",
        )


class FileUnreadable(OpenshelfError):
    """A file of the release could not be read from the catalog."""

    def __init__(self, path: str, error: OpenshelfError) -> None:
        super().__init__("file_unreadable", f"{path!a}: {error.message}", error.hint)


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk of one file: ``row`` in the manifest, its number, where it is in the object, length in bytes."""

    row: int
    entry: FileEntry
    chunk: int
    start: int
    length: int

    @property
    def file_offset(self) -> int:
        """Where the chunk begins in its file."""
        return self.chunk * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Span:
    """Pieces that one range of one object holds, in the order of their places."""

    pieces: tuple[Piece, ...]

    @property
    def start(self) -> int:
        """Where the range begins in the object."""
        return self.pieces[0].start

    @property
    def length(self) -> int:
        """The length of the range in bytes."""
        return self.pieces[-1].start + self.pieces[-1].length - self.start


def pieces_of(row: int, entry: FileEntry) -> list[Piece]:
    """The chunks of a file; :class:`~catalog.manifest.ManifestError` when their number does not fit its size."""
    count = -(-entry.size // CHUNK_BYTES)
    if len(entry.chunks) != count:
        raise ManifestError(
            "manifest_format", f"The manifest has {len(entry.chunks)} chunks for {entry.path!a}, not {count}", ""
        )
    return [
        Piece(
            row,
            entry,
            chunk,
            entry.offset + chunk * CHUNK_BYTES,
            min(CHUNK_BYTES, entry.size - chunk * CHUNK_BYTES),
        )
        for chunk in range(count)
    ]


def plan_spans(pieces: Iterable[Piece]) -> Iterator[Span]:
    """Join pieces that follow each other in the same object, up to 16 MiB, keeping their order."""
    gathered: list[Piece] = []
    for piece in pieces:
        if gathered:
            last = gathered[-1]
            adjacent = piece.entry.object == last.entry.object and piece.start == last.start + last.length
            if not adjacent or piece.start + piece.length - gathered[0].start > SPAN_BYTES:
                yield Span(tuple(gathered))
                gathered = []
        gathered.append(piece)
    if gathered:
        yield Span(tuple(gathered))


def fetch_span(client: Client, span: Span) -> list[memoryview]:
    """The verified bytes of each piece of ``span``.

    Wrong bytes are fetched once more; then :class:`CorruptContents`, which names the file. An object that cannot be
    read raises :class:`FileUnreadable`.
    """
    buffer = memoryview(bytearray(span.length))
    wrong: Piece | None = None
    for _ in range(FETCHES):
        try:
            client.read_object_into(span.pieces[0].entry.object.hex(), span.start, buffer)
        except ReadFailed as error:
            raise FileUnreadable(span.pieces[0].entry.path, error) from error
        views = [buffer[piece.start - span.start :][: piece.length] for piece in span.pieces]
        wrong = next((piece for piece, view in zip(span.pieces, views, strict=True) if not is_chunk(view, piece)), None)
        if wrong is None:
            return views
    assert wrong is not None
    raise CorruptContents(wrong.entry.path, f"chunk {wrong.chunk} was wrong {FETCHES} times")


def is_chunk(content: bytes | memoryview, piece: Piece) -> bool:
    """Whether ``content`` is what the manifest says of ``piece``."""
    return len(content) == piece.length and blake3(content).digest() == piece.entry.chunks[piece.chunk]
