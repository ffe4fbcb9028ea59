"""Tokens name the catalog that made them, and nothing else is taken for one."""

from __future__ import annotations

import base64
import hashlib

import pytest

from catalog.token_format import BadToken, key_prefix, make_token, parse_token, secret_digest


def test_a_token_has_the_documented_parts() -> None:
    key = bytes(range(32))
    token, digest = make_token(key)
    prefix, secret = token[4:26], token[27:]
    assert (token[:4], token[26], len(token)) == ("osk_", "_", 70)
    assert base64.urlsafe_b64decode(prefix + "==") == hashlib.sha256(key).digest()[:16]
    assert hashlib.sha256(base64.urlsafe_b64decode(secret + "=")).digest() == digest


def test_what_was_made_is_parsed_whatever_characters_it_holds() -> None:
    for number in range(300):
        key = bytes([number % 256]) * 32
        token, digest = make_token(key)
        prefix, secret = parse_token(token)
        assert prefix == key_prefix(key)
        assert secret_digest(secret) == digest


def test_no_two_tokens_are_the_same() -> None:
    assert len({make_token(bytes(32))[0] for _ in range(100)}) == 100


def test_a_text_that_would_decode_to_the_same_secret_is_no_second_token() -> None:
    token = "osk_" + "A" * 22 + "_" + "A" * 43
    parse_token(token)
    for other in (token[:-1] + "B", token[:25] + "B" + token[26:]):
        with pytest.raises(BadToken):
            parse_token(other)


BODY = "A" * 22 + "_" + "A" * 43


@pytest.mark.parametrize(
    "text", ["", "osk_", "osk__", "hf_abc", f"OSK_{BODY}", f"osk_{BODY}\n", f"osk_{'Ａ' * 22}_{'A' * 43}"]
)
def test_other_texts_are_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(BadToken) as caught:
        parse_token(text)
    if text:
        assert text not in caught.value.line().replace("osk_,", "")
