"""What a release's texts are like: rows, characters, lengths, scripts. Computed on columns, added up over shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingest.shapes import INSTRUCTION_FIELDS, Schema

SCRIPTS = ("other", "han", "latin", "kana", "hangul", "cyrillic", "digit", "space")
_RANGES = (
    (1, ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x3007, 0x3008))),
    (2, ((0x41, 0x5B), (0x61, 0x7B), (0xC0, 0x250), (0xFF21, 0xFF3B), (0xFF41, 0xFF5B))),
    (3, ((0x3041, 0x3100), (0x31F0, 0x3200), (0xFF66, 0xFFA0))),
    (4, ((0x1100, 0x1200), (0x3130, 0x3190), (0xAC00, 0xD7B0))),
    (5, ((0x400, 0x530),)),
    (6, ((0x30, 0x3A), (0xFF10, 0xFF1A))),
    (7, ((0x09, 0x0E), (0x20, 0x21), (0x3000, 0x3001))),
)
_BUCKETS = 32
_PORTION_ROWS = 4096

Statistics = dict[str, Any]


def _classes() -> npt.NDArray[np.uint8]:
    """The script of each code point below U+40000; above the basic plane only planes 2 and 3 (Han) have one."""
    table = np.zeros(0x40000, np.uint8)
    for number, ranges in _RANGES:
        for start, stop in ranges:
            table[start:stop] = number
    table[0x20000:0x40000] = 1
    return table


_CLASSES = _classes()


def text_columns(schema: Schema, table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """The text columns of ``table`` by field name; the contents of all turns for ``messages``."""
    if schema == "messages":
        turns = table["messages"].combine_chunks().flatten()
        return {"messages.content": pa.chunked_array([pc.struct_field(turns, "content")])}
    names = ("text",) if schema == "text" else INSTRUCTION_FIELDS
    return {name: table[name] for name in names}


def describe(schema: Schema, table: pa.Table) -> Statistics:
    """The statistics of ``table``. Lengths are code points; ``lengths[i]`` counts texts of 2^(i-1) to 2^i - 1."""
    fields: dict[str, Any] = {}
    scripts = np.zeros(len(SCRIPTS), np.int64)
    characters = 0
    for name, column in text_columns(schema, table).items():
        lengths = pc.utf8_length(column).to_numpy().astype(np.int64)
        # The bit length of n is the bucket of n: exact for every length that fits a double.
        buckets = np.frexp(lengths.astype(np.float64))[1]
        fields[name] = {
            "texts": len(lengths),
            "empty": int(np.count_nonzero(lengths == 0)),
            "characters": int(lengths.sum()),
            "longest": int(lengths.max(initial=0)),
            "bytes": int(pc.sum(pc.binary_length(column)).as_py() or 0),
            "lengths": np.bincount(buckets, minlength=_BUCKETS).tolist(),
        }
        characters += fields[name]["characters"]
        for chunk in column.chunks:
            for start in range(0, len(chunk), _PORTION_ROWS):
                scripts += _count_scripts(chunk.slice(start, _PORTION_ROWS))
    turns = {"turns": fields["messages.content"]["texts"]} if schema == "messages" else {}
    return {
        "rows": table.num_rows,
        "characters": characters,
        **turns,
        "fields": fields,
        "scripts": dict(zip(SCRIPTS, scripts.tolist(), strict=True)),
    }


def _count_scripts(texts: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    """Code points of each script in ``texts``, shape (len(SCRIPTS),)."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, 8 * texts.offset)
    data = texts.buffers()[2]
    if data is None or offsets[0] == offsets[-1]:
        return np.zeros(len(SCRIPTS), np.int64)
    text = memoryview(data)[int(offsets[0]) : int(offsets[-1])].tobytes().decode("utf-8")
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    return np.bincount(_CLASSES[np.minimum(points, len(_CLASSES) - 1)], minlength=len(SCRIPTS))


def add(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of several tables together."""
    if not parts:
        return {"rows": 0, "characters": 0, "fields": {}, "scripts": dict.fromkeys(SCRIPTS, 0)}
    total: Statistics = {}
    for part in parts:
        for key, value in part.items():
            total[key] = _sum(key, total[key], value) if key in total else value
    return total


def _sum(key: str, one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {name: _sum(name, one[name], other[name]) for name in one}
    if isinstance(one, list):
        return [a + b for a, b in zip(one, other, strict=True)]
    return max(one, other) if key == "longest" else one + other


def languages(statistics: Statistics) -> list[str]:
    """Language codes that the scripts suggest, by share of letters, at least one in twenty.

    A script is not a language: Latin letters are called ``en`` and Han without kana ``zh``, which a recipe overrules.
    """
    scripts = statistics["scripts"]
    letters = {name: scripts[name] for name in ("han", "latin", "kana", "hangul", "cyrillic")}
    total = sum(letters.values())
    if not total:
        return []
    japanese = letters["kana"] * 20 >= total
    codes = {"han": "ja" if japanese else "zh", "latin": "en", "kana": "ja", "hangul": "ko", "cyrillic": "ru"}
    ranked = sorted(letters, key=lambda name: -letters[name])
    return list(dict.fromkeys(codes[name] for name in ranked if letters[name] * 20 >= total))
