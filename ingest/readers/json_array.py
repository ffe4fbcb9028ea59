"""A JSON array of records, an object of records by key (CrossWOZ), or one record, read as a stream.

The bounds of the records are found by their brackets and quotes with NumPy, a block at a time, and each record is then
parsed by itself: the file is never in memory as a whole. A malformed record costs only itself; one whose brackets or
quotes do not balance does so where records stand on lines of their own (see :class:`_Elements`).
"""

from __future__ import annotations

import codecs
import re
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
_CLOSERS = {b"[": b"]", b"{": b"}"}
_RECORD_END = re.compile(rb"(?<=\})[ \t\r\n]*\Z")
_RECORD_BEGIN = re.compile(rb",[ \t\r\n]*[{\"]")
_LONGEST_PARTING = 256
_PATIENCE_BYTES = 256 << 10
"""How far an unfinished record may go on behind what looks like the beginning of the next one."""
_AGAIN_BYTES = 64 << 10


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

    ``closing``: the end of the array follows it; ``cut``: the file ended inside it; ``stray``: the file ended in
    something that is no element.
    """

    text: bytes | None
    offset: int
    length: int
    closing: bool = False
    cut: bool = False
    stray: bool = False


class _Elements:
    """Cuts blocks into the texts between the top level's borders; iterating gives a list of elements for each block.

    A bracket or a quote too many or too few in one record shifts the borders of all that follow. Where records stand on
    lines of their own, what parts two good ones (comma, newline, indent, ``{``) is remembered; found inside a text that
    is no record, it says where the next record begins, and only the bad one is lost. It is not trusted once a good
    record had it inside itself. Without it (a file on one line; a first record that is bad already) nothing tells the
    rest of a bad record from records: the rest is one reject, and the file counts as cut short.
    """

    def __init__(self, blocks: Iterable[bytes], offset: int) -> None:
        self._blocks = iter(blocks)
        self._again: list[bytes] = []  # bytes to be scanned anew, the first of them last
        self._tail = b""  # backslashes at the end of a block, whose meaning depends on the next
        self._offset = offset  # of the bytes that come next
        self._scan = _Scan()
        self._opener = b""
        self._parting: bytes | None = b""
        """Empty until two good records were seen; None once a good record had it inside itself."""
        self._held = b""  # the current element so far, in earlier blocks
        self._skipped = 0  # its bytes that were dropped, once it is over the limit
        self._lost = False  # the current element is none, and borders mean nothing

    def __iter__(self) -> Iterator[list[_Element]]:
        found: list[_Element] = []
        while True:
            block = self._again.pop() if self._again else next(self._blocks, None)
            if block is not None:
                data = self._tail + block
                cut = _safe_cut(data)
                data, self._tail = data[:cut], data[cut:]
                if self._lost:
                    self._keep(data, found, patience=0)
                else:
                    self._take(data, found)
            elif not self._finish(found):
                yield found
                return
            yield found
            found = []

    def _take(self, data: bytes, found: list[_Element]) -> None:
        """Append to ``found`` what the borders in ``data``, which continues the current element, part."""
        start, at = 0, self._offset
        for border in _borders(data, self._scan).tolist():
            mark = data[border : border + 1]
            if not self._opener:
                self._opener, start = mark, border + 1
                continue
            length = self._skipped + len(self._held) + border - start
            text = self._held + data[start:border] if length <= MAX_RECORD_BYTES else None
            if text is not None and self._parting and self._parting in text:
                if not _is_json(text, keyed=self._opener == b"{"):
                    self._offset = at + start
                    self._keep(data[start:], found, patience=0)
                    return
                self._parting = None
            closing = mark != b","
            too_early = bool(self._parting) and data.startswith(self._parting or b"", border + 1)
            if closing and (mark != _CLOSERS[self._opener] or too_early):
                self._lost, self._offset = True, at + start
                self._keep(data[start:], found, patience=0)
                return
            found.append(_Element(text, at + border - length, length, closing=closing))
            self._held, self._skipped, start = b"", 0, border + 1
            if closing:
                self._lost = True
                break
            if self._parting == b"" and text is not None:
                self._parting = _find_parting(text, data[border : border + _LONGEST_PARTING], self._opener)
        self._offset = at + start
        if self._opener:
            self._keep(data[start:], found, patience=0 if self._lost else _PATIENCE_BYTES)
        else:
            self._offset = at + len(data)

    def _keep(self, data: bytes, found: list[_Element], patience: int) -> None:
        """Add ``data`` to the current element.

        When a parting has been inside it for more than ``patience`` bytes, or it is over the limit with one, it ends
        there.
        """
        text = self._held + data
        self._offset += len(data)
        if not self._skipped and self._resume(text, found, patience if len(text) <= MAX_RECORD_BYTES else 0):
            return
        if self._skipped or len(text) > MAX_RECORD_BYTES:
            # While lost, a parting may yet lie across the border of two blocks.
            rest = len(self._parting or b"") if self._lost else 0
            if self._skipped and self._lost and self._resume(text, found, 0):
                return
            self._skipped += max(0, len(text) - rest)
            text = text[len(text) - rest :] if rest else b""
        self._held = text

    def _resume(self, text: bytes, found: list[_Element], patience: int) -> bool:
        """End the current element, ``text``, at the first parting inside it and have the rest scanned anew."""
        at = text.find(self._parting) if self._parting else -1
        if not self._parting or at < 0 or len(text) - at <= patience:
            return False
        begin, length = self._offset - len(text) - self._skipped, self._skipped + at
        found.append(_Element(None if self._skipped else text[:at], begin, length))
        start = at + len(self._parting) - 1
        self._offset += start - len(text)
        again, self._tail = text[start:] + self._tail, b""
        # In small pieces, because a bad record among them has the rest of its piece scanned once more.
        self._again += [again[low : low + _AGAIN_BYTES] for low in range(0, len(again), _AGAIN_BYTES)][::-1]
        self._scan = _Scan(depth=1)
        self._held, self._skipped, self._lost = b"", 0, False
        return True

    def _finish(self, found: list[_Element]) -> bool:
        """At the end of the file: whether something is left to be scanned anew."""
        text, self._tail = self._held + self._tail, b""
        self._offset += len(text) - len(self._held)
        if self._resume(text, found, 0):
            return True
        if not self._lost or self._skipped or text.strip(_SPACE):
            length = self._skipped + len(text)
            whole = None if self._skipped else text
            found.append(_Element(whole, self._offset - length, length, cut=not self._lost, stray=self._lost))
        return False


def _is_json(text: bytes, *, keyed: bool) -> bool:
    return _is_value(b"{" + text + b"}" if keyed else text)


def _find_parting(text: bytes, after: bytes, opener: bytes) -> bytes:
    """What parts the record ``text`` from the next, of which ``after`` is the beginning; empty unless lines do."""
    end, begin = _RECORD_END.search(text[-_LONGEST_PARTING:]), _RECORD_BEGIN.match(after)
    if end is None or begin is None or begin.group()[-1:] != (b"{" if opener == b"[" else b'"'):
        return b""
    parting = end.group() + begin.group()
    return parting if b"\n" in parting and _is_json(text, keyed=opener == b"{") else b""


def read_array(blocks: Iterable[bytes], encoding: Encoding, *, keyed: bool, mark_bytes: int) -> Iterator[Batch]:
    """The records of a JSON array, or with ``keyed`` of an object of records, numbered from 1.

    ``mark_bytes`` is the length of the file's byte-order mark. Byte positions are given for UTF-8 files only: in
    others the records are found after decoding.
    """
    number = 0
    placed = encoding is Encoding.UTF_8
    source = recode_blocks(blocks, encoding)
    for elements in _grouped(_Elements(source, mark_bytes)):
        batch = Batch(keys=[] if keyed else None)
        careful = needs_care(b",".join(element.text or b"" for element in elements))
        for element in elements:
            batch.size_bytes += element.length + 1
            blank = element.text is not None and not element.text.strip(_SPACE)
            batch.truncated = batch.truncated or element.cut or element.stray
            if blank and (element.closing or element.cut or element.stray):
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
    for elements in _Elements([text], 0):
        for element in elements:
            if element.cut or element.text is None or not element.text.strip(_SPACE):
                continue
            try:
                values.append(_parse(element, careful=True, keyed=True)[1])
            except Refused:
                values.append(None)
    return values
