"""All the shapes that one Hyperscan scan looks for.

Hyperscan's part is to name places at memory speed; whether a place holds a value is decided by the pattern's rule, in
Python, on that place only.
"""

from __future__ import annotations

from collections.abc import Sequence

from compliance.detect import contacts, identifiers, network, vehicles
from compliance.detect.rule import Pattern
from openshelf.errors import UsageError

ENTITIES = ("resident_id", "mobile", "email", "bank_card", "uscc", "ipv4", "plate")
"""What can be detected, in the order in which ties between overlapping findings are decided."""

_PATTERNS = (*identifiers.PATTERNS, *contacts.PATTERNS, *network.PATTERNS, *vehicles.PATTERNS)

_WIDE_GAP = (
    rb"(?:\xe3\x80\x80|\xc2\xa0|\xef\xbc[\x8d\x8e]|"
    rb"\xe2\x80[\x80-\x95\xaf]|\xe2\x81\x9f|\xe2\x88\x92|\xef\xb9[\x98\xa3])"
)
_WIDE_DOT = rb"(?:\xe2\x80[\xa2\xa7]|\xe2\x88\x99|\xe2\x8b\x85|\xe2\x97\x8f|\xe3\x83\xbb|\xef\xbd\xa5|\xef\xbc\x8e)"

_INVISIBLE = rb"(?:\xe2\x80[\x8b-\x8f\xaa-\xae]|\xe2\x81[\xa0-\xa4\xa6-\xa9]|\xef\xbb\xbf|\xc2\xad|\xe1\xa0\x8e)"

# Written out, because Hyperscan matches literals twice as fast as the class, whose first two bytes every ，has too.
_WIDE_DIGIT_OR_CAPITAL = b"|".join(chr(code).encode() for code in (*range(0xFF10, 0xFF1A), *range(0xFF20, 0xFF3B)))

FOLDING_GATE = (
    _WIDE_DIGIT_OR_CAPITAL,
    rb"\xef\xbd[\x81-\x9a]",
    rb"[0-9]{3}\xc3\x97",
    rb"[0-9]{2} ?" + _WIDE_GAP + rb" ?[0-9]{3}",
    rb"\xef\xbc\x8b86",
    rb"[0-9A-Za-z]\xef\xbc[\x8e\xbf][0-9A-Za-z]",
    rb"[A-Za-z]" + _WIDE_DOT + rb"[0-9A-Za-z]",
    rb"[0-9A-Za-z@.]" + _INVISIBLE,
    _INVISIBLE + rb"[0-9A-Za-z@.]",
)
"""Where one of these occurs, the document is scanned again with full-width forms folded and invisible characters
left out (see ``shadow``)."""


def patterns_of(entities: Sequence[str]) -> tuple[Pattern, ...]:
    """The patterns of the named entities; :class:`UsageError` for a name that is not one."""
    for name in entities:
        if name not in ENTITIES:
            raise UsageError("unknown_entity", f"{name!r} is not an entity", f"Known: {', '.join(ENTITIES)}.")
    return tuple(pattern for pattern in _PATTERNS if pattern.entity in entities)
