"""Exact deduplication over a whole run, on disk: map → hash-partition → reduce.

The key of a row is the XXH3-128 of its normalised, de-identified text (roles and contents for dialogues); of equal rows
the first in source order stays. Keys are spread over partition files by their first bits, so that one partition is
in memory at a time, however large the corpus.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingest.parts import Part

PARTITION_ROWS = 8_000_000
"""Rows that one partition aims at: 24 bytes each, sorted in memory."""
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("place", "<u8")])
_PART_SHIFT = 32

Rows = npt.NDArray[np.uint32]


def read_index(folder: Path, key: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """A part's row keys, as an array of shape (rows, 2), and row sizes in bytes, shape (rows,)."""
    with pa.memory_map(str(folder / key / "index.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    keys = [
        np.frombuffer(chunk.buffers()[1], "<u8", 2 * len(chunk), 16 * chunk.offset) for chunk in table["key"].chunks
    ]
    sizes = table["size_bytes"].to_numpy()
    joined = np.concatenate(keys) if keys else np.empty(0, "<u8")
    return joined.reshape(-1, 2), sizes


def find_duplicates(
    parts: Sequence[Part], folder: Path, scratch: Path, partition_rows: int = PARTITION_ROWS
) -> list[int]:
    """Which rows of ``parts``, in source order, repeat an earlier one. Their numbers go to ``scratch``, one file a part
    (:func:`duplicates_of` reads them); the answer counts them by part. ``folder`` holds the parts.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    total = sum(part.rows for part in parts)
    bits = max(0, (max(total, 1) // partition_rows).bit_length())
    _spread(parts, folder, scratch, bits)
    counts = [0] * len(parts)
    for partition in sorted(scratch.glob("keys-*")):
        for number, rows in _repeated(partition):
            counts[number] += len(rows)
            with (scratch / f"part-{number}").open("ab") as sink:
                sink.write(rows.tobytes())
        partition.unlink()
    return counts


def _spread(parts: Sequence[Part], folder: Path, scratch: Path, bits: int) -> None:
    """Append every row's key and place to the file of its partition."""
    for number, part in enumerate(parts):
        if not part.rows:
            continue
        keys, _ = read_index(folder, part.key)
        entries = np.empty(len(keys), _ENTRY)
        entries["high"], entries["low"] = keys[:, 0], keys[:, 1]
        entries["place"] = np.arange(len(keys), dtype=np.uint64) | np.uint64(number << _PART_SHIFT)
        home = entries["high"] >> np.uint64(64 - bits) if bits else np.zeros(len(entries), np.uint64)
        for partition in np.unique(home):
            with (scratch / f"keys-{int(partition):05d}").open("ab") as sink:
                sink.write(entries[home == partition].tobytes())


def _repeated(partition: Path) -> list[tuple[int, Rows]]:
    """(part, rows) of a partition's entries whose key stands at an earlier place."""
    entries = np.fromfile(partition, _ENTRY)
    ordered = entries[np.lexsort((entries["place"], entries["low"], entries["high"]))]
    same = (ordered["high"][1:] == ordered["high"][:-1]) & (ordered["low"][1:] == ordered["low"][:-1])
    places = np.sort(ordered["place"][1:][same])
    owners = (places >> np.uint64(_PART_SHIFT)).astype(np.int64)
    numbers: list[Any] = np.unique(owners).tolist()
    return [(number, places[owners == number].astype(np.uint32)) for number in numbers]


def duplicates_of(scratch: Path, number: int) -> Rows:
    """The rows of part ``number`` that repeat an earlier row, ascending."""
    path = scratch / f"part-{number}"
    return np.sort(np.fromfile(path, np.uint32)) if path.exists() else np.empty(0, np.uint32)


def kept_mask(scratch: Path, number: int, rows: int) -> npt.NDArray[np.bool_]:
    """Which rows of part ``number`` stay, shape (rows,)."""
    mask = np.ones(rows, np.bool_)
    mask[duplicates_of(scratch, number)] = False
    return mask
