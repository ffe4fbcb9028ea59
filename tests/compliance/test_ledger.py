"""The hash chain."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from compliance.ledger import GENESIS, LedgerBroken, entry_hash, verify_chain

Chain = list[tuple[dict[str, Any], bytes]]


def chain(length: int) -> Chain:
    entries: Chain = []
    previous = GENESIS
    for sequence in range(1, length + 1):
        entry = {"sequence": sequence, "event": "release.approved", "details": {"名": "值", "n": 1.5}}
        previous = entry_hash(previous, entry)
        entries.append((entry, previous))
    return entries


def test_the_hash_is_sha256_over_prefix_previous_and_canonical_json() -> None:
    entry = {"b": 1, "a": "中"}
    expected = hashlib.sha256(b"openshelf/v1/ledger-entry\n" + bytes(32) + '{"a":"中","b":1}'.encode()).digest()
    assert entry_hash(GENESIS, entry) == expected


def test_an_intact_chain_verifies_and_gives_its_head() -> None:
    entries = chain(5)
    assert verify_chain(entries) == (5, entries[-1][1])
    assert verify_chain([]) == (0, GENESIS)
    assert verify_chain(entries[3:], previous=entries[2][1], after=3) == (5, entries[-1][1])


def test_a_cut_tail_shows_in_the_head_that_comes_back() -> None:
    entries = chain(5)
    assert verify_chain(entries[:3]) == (3, entries[2][1])
    assert entries[2][1] != entries[4][1]


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_changed_entry_is_named(place: int) -> None:
    entries = chain(5)
    entries[place] = (entries[place][0] | {"event": "release.rejected"}, entries[place][1])
    with pytest.raises(LedgerBroken) as broken:
        verify_chain(entries)
    assert broken.value.sequence == place + 1


def test_a_changed_entry_with_a_new_hash_breaks_the_next() -> None:
    entries = chain(5)
    forged = entries[1][0] | {"event": "x"}
    entries[1] = (forged, entry_hash(entries[0][1], forged))
    with pytest.raises(LedgerBroken) as broken:
        verify_chain(entries)
    assert broken.value.sequence == 3


def test_missing_repeated_and_exchanged_entries_are_named() -> None:
    entries = chain(5)
    for wrong, sequence in (
        (entries[:2] + entries[3:], 3),
        (entries[:2] + entries[1:], 3),
        ([entries[1], entries[0], *entries[2:]], 1),
        (entries[1:], 1),
    ):
        with pytest.raises(LedgerBroken) as broken:
            verify_chain(wrong)
        assert broken.value.sequence == sequence


def test_a_previous_hash_of_another_length_is_a_defect() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        entry_hash(b"", {})
