"""A JSON array of records, an object of records by key (CrossWOZ), or one record, read as a stream.

The bounds of the records are found by their brackets and quotes with NumPy, a block at a time, and each record is then
parsed by itself: the file is never in memory as a whole, and a malformed record costs only itself.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ingest.decode import Encoding, recode_blocks
from ingest.readers.batch import BATCH_BYTES, MAX_RECORD_BYTES, Batch
from ingest.readers.json_values import Refused, is_cut_short, needs_care, parse, parse_carefully
from ingest.rejects import Reason, Reject

Layout = Literal["array", "keyed", "single"]
_SPACE = b" \t\r\n"
_STEP = np.zeros(256, dtype=np.int8)
_STEP[[0x7B, 0x5B]] = 1
_STEP[[0x7D, 0x5D]] = -1
_MARKS = _STEP != 0
_MARKS[0x2C] = True  # comma


@dataclass(slots=True)
class _Scan:
    """Where the scan stands between two blocks."""

    inside_string: bool = False
    depth: int = 0


def _borders(data: bytes, scan: _Scan) -> npt.NDArray[np.int64]:
    """Positions in ``data`` of the top level's brackets and commas; ``scan`` is moved past ``data``."""
    # Escapes are blanked pairwise from the left, so that every quote that is left opens or closes a string.
    shadow = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    array = np.frombuffer(shadow, dtype=np.uint8)
    quotes = np.flatnonzero(array == 0x22)
    marks = np.flatnonzero(_MARKS[array])
    outside = (np.searchsorted(quotes, marks) + scan.inside_string) % 2 == 0
    marks = marks[outside]
    steps = _STEP[array[marks]].astype(np.int64)
    depths = np.cumsum(steps) + scan.depth
    top = ((steps == 0) & (depths == 1)) | ((steps > 0) & (depths == 1)) | ((steps < 0) & (depths <= 0))
    if len(depths):
        scan.depth = int(depths[-1])
    scan.inside_string = (len(quotes) + scan.inside_string) % 2 == 1
    borders: npt.NDArray[np.int64] = marks[top]
    return borders


def _safe_cut(data: bytes) -> int:
    """The length of ``data`` without a trailing run of backslashes, whose meaning depends on what follows."""
    return len(data.rstrip(b"\\"))


@dataclass(slots=True)
class _Element:
    """One element's bytes, None when it is over the limit.

    ``closing``: the end of the array follows it; ``cut``: the file ended inside it; ``stray``: it stands behind the
    array.
    """

    text: bytes | None
    offset: int
    length: int
    closing: bool = False
    cut: bool = False
    stray: bool = False


def _elements(blocks: Iterable[bytes], offset: int) -> Iterator[list[_Element]]:
    """The texts between the top level's borders, a list per block; what follows the last border comes last."""
    scan = _Scan()
    held = b""  # the current element so far, in earlier blocks
    skipped = 0  # its bytes that were dropped, once it is over the limit
    tail = b""
    opened = closed = False
    for block in blocks:
        data = tail + block
        cut = _safe_cut(data)
        data, tail = data[:cut], data[cut:]
        found: list[_Element] = []
        start = 0
        for border in _borders(data, scan).tolist():
            if closed:
                break
            if opened:
                length = skipped + len(held) + border - start
                text = held + data[start:border] if length <= MAX_RECORD_BYTES else None
                found.append(_Element(text, offset + border - length, length, closing=data[border] in b"]}"))
            opened = True
            closed = data[border] in b"]}"
            held, skipped, start = b"", 0, border + 1
        rest = data[start:]
        if closed and rest.strip(_SPACE):
            found.append(_Element(rest, offset + start, len(rest), stray=True))
            yield found
            return
        if opened and not closed:
            if skipped or len(held) + len(rest) > MAX_RECORD_BYTES:
                held, skipped = b"", skipped + len(held) + len(rest)
            else:
                held += rest
        offset += len(data)
        yield found
    if not closed:
        length = skipped + len(held) + len(tail)
        yield [_Element(held + tail if not skipped else None, offset + len(tail) - length, length, cut=True)]


def read_array(blocks: Iterable[bytes], encoding: Encoding, *, keyed: bool, mark_bytes: int) -> Iterator[Batch]:
    """The records of a JSON array, or with ``keyed`` of an object of records, numbered from 1.

    ``mark_bytes`` is the length of the file's byte-order mark. Byte positions are given for UTF-8 files only: in
    others the records are found after decoding.
    """
    number = 0
    placed = encoding is Encoding.UTF_8
    source = recode_blocks(blocks, encoding)
    for elements in _grouped(_elements(source, mark_bytes)):
        batch = Batch(keys=[] if keyed else None)
        careful = needs_care(b",".join(element.text or b"" for element in elements))
        for element in elements:
            batch.size_bytes += element.length + 1
            blank = element.text is not None and not element.text.strip(_SPACE)
            batch.truncated = batch.truncated or element.cut
            if blank and (element.closing or element.cut):
                continue
            number += 1
            try:
                key, value = _parse(element, careful=careful, keyed=keyed)
            except Refused as refused:
                offset, length = (element.offset, element.length) if placed else (None, None)
                batch.rejects.append(Reject(number, offset, length, refused.reason))
                continue
            batch.records.append(value)
            batch.lines.append(number)
            if batch.keys is not None:
                batch.keys.append(key)
        yield batch


def _grouped(source: Iterable[list[_Element]]) -> Iterator[list[_Element]]:
    """Lists of elements of about 8 MiB together."""
    group: list[_Element] = []
    size = 0
    for elements in source:
        for element in elements:
            group.append(element)
            size += element.length
            if size >= BATCH_BYTES:
                yield group
                group, size = [], 0
    if group:
        yield group


def _parse(element: _Element, *, careful: bool, keyed: bool) -> tuple[str | None, Any]:
    if element.text is None:
        raise Refused(Reason.TOO_LONG)
    if element.cut or element.stray:
        raise Refused(Reason.TRUNCATED if element.cut else Reason.MALFORMED_JSON)
    read = parse_carefully if careful else parse
    if not keyed:
        return None, read(element.text)
    entry = read(b"{" + element.text + b"}")
    if len(entry) != 1:
        raise Refused(Reason.MALFORMED_JSON)
    key, value = next(iter(entry.items()))
    return key, value


def read_single(blocks: Iterable[bytes], encoding: Encoding) -> Iterator[Batch]:
    """A file that is one JSON value, as record 1."""
    held: list[bytes] = []
    size = 0
    for block in recode_blocks(blocks, encoding):
        size += len(block)
        if size <= MAX_RECORD_BYTES:
            held.append(block)
    batch = Batch(size_bytes=size)
    text = b"".join(held)
    if size > MAX_RECORD_BYTES:
        batch.rejects.append(Reject(1, 0, size, Reason.TOO_LONG))
    elif text.strip(_SPACE):
        try:
            batch.records.append(parse_carefully(text))
            batch.lines.append(1)
        except Refused as refused:
            batch.truncated = refused.reason is Reason.MALFORMED_JSON and is_cut_short(text)
            batch.rejects.append(Reject(1, 0, size, Reason.TRUNCATED if batch.truncated else refused.reason))
    yield batch


def sniff_layout(head: bytes, *, complete: bool) -> Layout | Literal["lines"]:
    """How a ``.json`` file is laid out, from its first bytes in UTF-8 (``complete``: that is all of it).

    An array begins with ``[``. Of objects: several lines that each are a JSON value are JSONL under another name
    (BELLE publishes so); an object whose values are all objects holds records by key; any other is one record.
    """
    text = head.removeprefix(codecs.BOM_UTF8).lstrip(_SPACE)
    if text[:1] == b"[":
        return "lines" if _is_value(text.split(b"\n", 1)[0]) and _more(text) else "array"
    first, newline, rest = text.partition(b"\n")
    whole = bool(newline) or complete
    if whole and rest.strip(_SPACE) and _is_value(first):
        return "lines"
    if text[:1] != b"{":
        return "lines"
    values = _first_values(text)
    if values and all(isinstance(value, dict) for value in values):
        return "keyed"
    return "lines" if whole and not rest.strip(_SPACE) else "single"


def _more(text: bytes) -> bool:
    return bool(text.partition(b"\n")[2].strip(_SPACE))


def _is_value(text: bytes) -> bool:
    try:
        parse_carefully(text)
    except Refused:
        return False
    return True


def _first_values(text: bytes) -> list[Any]:
    """The values of the first entries of the object that ``text`` begins with; a non-dict stands for a bad one."""
    values: list[Any] = []
    for elements in _elements([text], 0):
        for element in elements:
            if element.cut or element.text is None or not element.text.strip(_SPACE):
                continue
            try:
                values.append(_parse(element, careful=True, keyed=True)[1])
            except Refused:
                values.append(None)
    return values
