"""Our arithmetic beside python-stdnum's."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from stdnum import luhn
from stdnum.cn import ric, uscc

from compliance.detect.identifiers import (
    has_luhn_checksum,
    has_resident_checksum,
    has_uscc_checksum,
    is_birth_date,
)
from tests.compliance.planted import credit_code

digits = st.text(alphabet="0123456789", min_size=17, max_size=17)


@given(digits)
def test_resident_check_digit_is_stdnums(body: str) -> None:
    right = ric.calc_check_digit(body + "0")
    assert [last for last in "0123456789X" if has_resident_checksum(body + last)] == [right]


@given(st.text(alphabet="0123456789", min_size=13, max_size=19))
def test_luhn_is_stdnums(number: str) -> None:
    assert has_luhn_checksum(number) == luhn.is_valid(number)


@given(st.integers(0, 2**32))
def test_credit_code_check_character_is_stdnums(seed: int) -> None:
    code = credit_code(random.Random(seed))
    assert uscc.is_valid(code)
    valid = [last for last in "0123456789ABCDEFGHJKLMNPQRTUWXY" if has_uscc_checksum(code[:17] + last)]
    assert valid == [code[17]]


def test_the_letters_i_o_s_v_z_are_in_no_credit_code() -> None:
    assert not any(has_uscc_checksum("91350100M000100Y4" + letter) for letter in "IOSVZ")


def test_dates_of_birth() -> None:
    assert is_birth_date(2000, 2, 29)
    assert not is_birth_date(1900, 2, 29)
    assert not is_birth_date(1899, 12, 31)
    assert not is_birth_date(1980, 4, 31)
