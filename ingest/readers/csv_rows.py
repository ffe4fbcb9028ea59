"""CSV and TSV: records by their header, quoted as RFC 4180 says."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from ingest.decode import Encoding, recode_blocks
from ingest.readers.batch import BATCH_BYTES, MAX_RECORD_BYTES, Batch, distinct_names
from ingest.readers.lines import split_lines
from ingest.rejects import Reason, Reject

_ESCAPED = "surrogateescape"


class _Source:
    """Hands lines to the csv module and knows how many, and how many bytes, it has taken."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.line = 0
        self.position = 0
        self.too_long: tuple[int, int, int] | None = None
        self._blocks = blocks

    def __iter__(self) -> Iterator[str]:
        first = True
        for lines in split_lines(self._blocks):
            last = len(lines.texts) - 1
            for index, text in enumerate(lines.texts):
                end = "" if index == last and not lines.ended else "\n"
                self.line = lines.first_line + index
                self.position += len(text) + len(end)
                # The surrogates mark bytes that are not UTF-8; the record that holds them is rejected.
                decoded = text.decode("utf-8", _ESCAPED)
                yield (decoded.removeprefix("\ufeff") if first else decoded) + end
                first = False
            if lines.too_long is not None:
                self.too_long = lines.too_long
                self.line, self.position = lines.too_long[0], sum(lines.too_long[1:]) + 1


def _line_feeds(blocks: Iterable[bytes]) -> Iterator[bytes]:
    r"""``blocks`` with ``\r`` turned into ``\n`` when the first block has no other line end: old Macs wrote so."""
    old = None
    for block in blocks:
        if old is None and block:
            old = b"\r" in block and b"\n" not in block
        yield block.replace(b"\r", b"\n") if old else block


def guess_delimiter(head: bytes, suffix: str) -> str:
    """The delimiter of a file that begins with ``head`` (UTF-8): a tab for ``.tsv``, else what the header shows."""
    if suffix == ".tsv":
        return "\t"
    header = head.replace(b"\r", b"\n").split(b"\n", 1)[0]
    if b"," in header:
        return ","
    return ";" if b";" in header else "\t" if b"\t" in header else ","


def read_csv(blocks: Iterable[bytes], encoding: Encoding, delimiter: str) -> Iterator[Batch]:
    """The records of a CSV file as dictionaries of strings; ``line`` is the one where the record begins.

    The first record is the header. Blank lines are skipped. An open quote at the end of the file is a truncated file.
    """
    csv.field_size_limit(MAX_RECORD_BYTES)
    placed = encoding is Encoding.UTF_8
    source = _Source(_line_feeds(recode_blocks(blocks, encoding)))
    reader = csv.reader(iter(source), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    batch = Batch()
    begun = 0
    while True:
        line, offset = source.line + 1, source.position
        reason: Reason | None = None
        row: list[str] = []
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error:
            reason = Reason.MALFORMED_CSV
        if source.too_long is not None:
            place, source.too_long = source.too_long, None
            batch.rejects.append(Reject(place[0], place[1], place[2], Reason.TOO_LONG))
            if reason is None and row:
                line = source.line
        if reason is None and not row:
            continue
        if reason is None and names is None:
            names = distinct_names(row)
            continue
        reason = reason or _fault(row, names or [])
        if reason is None and names is not None:
            batch.records.append(dict(zip(names, row, strict=True)))
            batch.lines.append(line)
        elif reason is not None:
            length = source.position - offset
            batch.rejects.append(Reject(line, offset if placed else None, length if placed else None, reason))
        if source.position - begun >= BATCH_BYTES:
            batch.size_bytes, begun = source.position - begun, source.position
            yield batch
            batch = Batch()
    batch.size_bytes = source.position - begun
    yield _mark_open_quote(batch, source)


def _mark_open_quote(batch: Batch, source: _Source) -> Batch:
    """A malformed record that reaches the end of the file is one that was cut."""
    if batch.rejects and batch.rejects[-1].reason is Reason.MALFORMED_CSV:
        last = batch.rejects[-1]
        if last.offset is not None and last.length is not None and last.offset + last.length == source.position:
            batch.rejects[-1] = Reject(last.line, last.offset, last.length, Reason.TRUNCATED)
            batch.truncated = True
    return batch


def _fault(row: list[str], names: list[str]) -> Reason | None:
    if len(row) != len(names):
        return Reason.WRONG_COLUMNS
    for value in row:
        if "\0" in value:
            return Reason.NUL
        if not value.isascii() and not _is_text(value):
            return Reason.UNDECODABLE
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
