"""What a rule gets and gives: the vocabulary of the detector modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compliance.detect.context import Window

NON_DIGIT = rb"[^0-9]"
GAP = rb"(?: |-| - )?"
"""What people put between the groups of a number."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value inside a window: ``data[start:end]``, how sure (0 to 1), by which detector.

    ``proof`` orders overlapping findings: 2 a checksum or a syntax of its own, 1 a shape, 0 a shape that only a cue
    word supports.
    """

    start: int
    end: int
    score: float
    detector: str
    proof: int


Rule = Callable[[Window], Found | None]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A shape of ``entity`` for Hyperscan and the rule that judges it.

    Hyperscan knows no look-around, so a ``bordered`` expression takes one byte of border on each side
    (``[^0-9]``; a separator stands at the borders of every document). That also keeps it from reporting every end
    of a long run of digits.
    """

    entity: str
    expression: bytes
    rule: Rule
    bordered: bool = True
