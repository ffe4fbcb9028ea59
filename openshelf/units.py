"""Sizes and durations as people write them."""

from __future__ import annotations

import re

from openshelf.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_FACTORS = {
    "": 1, "b": 1,
    "k": KIB, "kb": 10**3, "kib": KIB,
    "m": MIB, "mb": 10**6, "mib": MIB,
    "g": GIB, "gb": 10**9, "gib": GIB,
    "t": 1 << 40, "tb": 10**12, "tib": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes meant by ``text`` such as ``50G``, ``1.5TiB`` or ``4096`` (K, M, G, T alone are powers of 1024)."""
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise UsageError("bad_size", f"{text!r} is not a size", "Write it like 50G, 500MiB or 1TB.")
    return int(float(match.group(1)) * factor)


def format_size(size_bytes: float) -> str:
    """``size_bytes`` with a binary unit and three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size_bytes) < 1024 or unit == "TiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable")
