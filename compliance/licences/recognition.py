"""Which licence a LICENSE file holds."""

from __future__ import annotations


def recognise(text: str) -> str | None:
    """The SPDX identifier of ``text``, or None."""
    return None
