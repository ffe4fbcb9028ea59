r"""JSONL: one JSON value a line. Only ``\n`` ends a line; U+2028, U+2029, U+0085 and a lone ``\r`` do not.

Blank lines are skipped and are not rows; a missing final newline is fine; a line over 64 MiB is skipped without being
kept in memory. Of duplicate keys the last counts.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ingest.decode import Encoding, recode_blocks, recode_line
from ingest.readers.batch import BATCH_BYTES, MAX_RECORD_BYTES, Batch
from ingest.readers.json_values import Refused, is_cut_short, needs_care, parse, parse_carefully
from ingest.rejects import Reason, Reject


@dataclass(slots=True)
class Lines:
    """Some consecutive lines: ``texts[i]`` is line ``first_line + i`` without its end; ``offset`` is the first's.

    ``too_long`` is set when the lines end with one that was skipped: (line, offset, length). ``last`` marks the end
    of the source, where ``ended`` says whether the last line had its newline. ``source`` are the bytes
    that they were cut from.
    """

    texts: list[bytes]
    first_line: int
    offset: int
    size_bytes: int
    too_long: tuple[int, int, int] | None = None
    last: bool = False
    ended: bool = True
    source: bytes = b""


def split_lines(blocks: Iterable[bytes], *, first_line: int = 1, offset: int = 0) -> Iterator[Lines]:
    """Cut ``blocks`` into lines, about 8 MiB at a time; memory is bounded by the longest accepted line."""
    line = first_line
    held: list[bytes] = []
    held_size = 0
    skipping = 0
    for block in blocks:
        if skipping:
            end = block.find(b"\n")
            if end < 0:
                skipping += len(block)
                continue
            length = skipping + end
            yield Lines([], line, offset, length + 1, too_long=(line, offset, length))
            line, offset, skipping = line + 1, offset + length + 1, 0
            block = block[end + 1 :]
        end = block.rfind(b"\n")
        if end < 0 or held_size + end < BATCH_BYTES:
            held.append(block)
            held_size += len(block)
        else:
            held.append(block[: end + 1])
            found, line, offset = _cut(b"".join(held), line, offset)
            yield from found
            held = [block[end + 1 :]]
            held_size = len(held[0])
        if held_size > BATCH_BYTES + MAX_RECORD_BYTES:
            data = b"".join(held)
            cut = data.rfind(b"\n") + 1
            found, line, offset = _cut(data[:cut], line, offset)
            yield from found
            held, held_size = [data[cut:]], len(data) - cut
            if held_size > MAX_RECORD_BYTES:
                held, held_size, skipping = [], 0, held_size
    if skipping:
        yield Lines([], line, offset, skipping, too_long=(line, offset, skipping), last=True, ended=False)
        return
    found, line, offset = _cut(b"".join(held), line, offset)
    yield from found
    yield Lines([], line, offset, 0, last=True)


def _cut(data: bytes, line: int, offset: int) -> tuple[list[Lines], int, int]:
    """``data`` as lines, long ones set apart, with the next line's number and offset."""
    if not data:
        return [], line, offset
    texts = data.split(b"\n")
    ended = not texts[-1]
    if ended:
        texts.pop()
    found: list[Lines] = []
    if len(data) > MAX_RECORD_BYTES and max(map(len, texts)) > MAX_RECORD_BYTES:
        start = 0
        for index, text in enumerate(texts):
            if len(text) > MAX_RECORD_BYTES:
                size = sum(map(len, texts[start : index + 1])) + index + 1 - start
                place = (line + index, offset + size - 1 - len(text), len(text))
                found.append(Lines(texts[start:index], line + start, offset, size, too_long=place, source=data))
                start, offset = index + 1, offset + size
        texts, line = texts[start:], line + start
    size = sum(map(len, texts)) + len(texts) - (0 if ended else 1)
    if texts:
        found.append(Lines(texts, line, offset, size, ended=ended, source=data))
    return found, line + len(texts), offset + size


def read_lines(
    blocks: Iterable[bytes],
    encoding: Encoding,
    *,
    first_line: int = 1,
    offset: int = 0,
    at_end: bool = True,
) -> Iterator[Batch]:
    """The records of JSONL ``blocks``. ``at_end`` says that the blocks reach the end of the file."""
    wide = encoding in (Encoding.UTF_16_LE, Encoding.UTF_16_BE)
    source = recode_blocks(blocks, encoding) if wide else blocks
    pending: Batch | None = None
    for lines in split_lines(source, first_line=first_line, offset=offset):
        if lines.first_line == 1 and lines.texts and not wide:
            lines.texts[0] = lines.texts[0].removeprefix(codecs.BOM_UTF8)
        if pending is not None and (lines.texts or lines.too_long):
            yield pending
            pending = None
        if lines.texts or lines.too_long:
            pending = _parse(lines, encoding, wide=wide, final=at_end and not lines.ended)
    if pending is not None:
        yield pending


def _parse(lines: Lines, encoding: Encoding, *, wide: bool, final: bool) -> Batch:
    batch = Batch(size_bytes=lines.size_bytes)
    recode = encoding is Encoding.GB18030
    read = parse_carefully if needs_care(lines.source) else parse
    failed: list[tuple[int, Reason]] = []
    for index, text in enumerate(lines.texts):
        if not text or text.isspace():
            continue
        try:
            batch.records.append(read(recode_line(text, encoding) if recode else text))
        except UnicodeDecodeError:
            failed.append((index, Reason.UNDECODABLE))
        except Refused as refused:
            failed.append((index, refused.reason))
        else:
            batch.lines.append(lines.first_line + index)
    if failed and final and failed[-1][0] == len(lines.texts) - 1 and is_cut_short(lines.texts[-1]):
        failed[-1] = (failed[-1][0], Reason.TRUNCATED)
        batch.truncated = True
    batch.rejects = _place(lines, failed, wide=wide)
    if lines.too_long is not None:
        line, start, length = lines.too_long
        batch.rejects.append(Reject(line, None if wide else start, None if wide else length, Reason.TOO_LONG))
    return batch


def _place(lines: Lines, failed: list[tuple[int, Reason]], *, wide: bool) -> list[Reject]:
    """Byte positions of the failed lines. In a UTF-16 file they are not known after recoding."""
    rejects: list[Reject] = []
    position, reached = lines.offset, 0
    for index, reason in failed:
        if wide:
            rejects.append(Reject(lines.first_line + index, None, None, reason))
            continue
        position += sum(map(len, lines.texts[reached:index])) + index - reached
        reached = index
        rejects.append(Reject(lines.first_line + index, position, len(lines.texts[index]), reason))
    return rejects
