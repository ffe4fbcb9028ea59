"""Plain text and Markdown: one document a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingest.decode import Encoding, recode_blocks
from ingest.readers.batch import MAX_RECORD_BYTES, Batch
from ingest.rejects import Reason, Reject

_ISO_2022 = b"\x1b$"


def read_text(blocks: Iterable[bytes], encoding: Encoding) -> Iterator[Batch]:
    """The file as one record ``{"text": …}`` at line 1; a file of white space only is not a record."""
    held: list[bytes] = []
    size = 0
    for block in recode_blocks(blocks, encoding):
        size += len(block)
        if size <= MAX_RECORD_BYTES:
            held.append(block)
    batch = Batch(size_bytes=size)
    data = b"".join(held)
    if size > MAX_RECORD_BYTES:
        batch.rejects.append(Reject(1, 0, size, Reason.TOO_LONG))
    elif data.strip():
        reason, text = _decode(data)
        if reason is None:
            batch.records.append({"text": text})
            batch.lines.append(1)
        else:
            batch.rejects.append(Reject(1, 0, size, reason))
    yield batch


def _decode(data: bytes) -> tuple[Reason | None, str]:
    if b"\0" in data:
        return Reason.NUL, ""
    if _ISO_2022 in data:
        return Reason.UNDECODABLE, ""
    try:
        return None, data.decode("utf-8")
    except UnicodeDecodeError:
        return Reason.UNDECODABLE, ""
