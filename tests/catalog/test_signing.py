from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from catalog.signing import SignatureError, Signed, SigningKey, canonical_json, fingerprint, verify
from openshelf.errors import OpenshelfError


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey.load_or_create(tmp_path / "feed.pem")


def test_canonical_json_follows_rfc_8785() -> None:
    # The example of RFC 8785, section 3.2.2.
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '\u20ac$\u000f\nA\'B"\\\\"/',
        "literals": [None, True, False],
    }
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_json(value).decode() == expected


def test_a_signature_verifies_with_a_plain_ed25519_implementation(key: SigningKey) -> None:
    signed = key.sign("feed-head", {"serial": 1})
    Ed25519PublicKey.from_public_bytes(key.public_bytes).verify(
        base64.b64decode(signed.signature), b'openshelf/v1/feed-head\n{"serial":1}'
    )
    assert verify("feed-head", signed, key.public_bytes) == {"serial": 1}


def test_a_signature_for_one_purpose_fails_for_another(key: SigningKey) -> None:
    signed = key.sign("feed-head", {"serial": 1})
    with pytest.raises(SignatureError, match="is wrong"):
        verify("feed-event", signed, key.public_bytes)


def test_a_changed_document_fails(key: SigningKey) -> None:
    signed = key.sign("feed-event", {"serial": 1})
    with pytest.raises(SignatureError, match="is wrong"):
        verify("feed-event", Signed({"serial": 2}, signed.signature, signed.key), key.public_bytes)


@pytest.mark.parametrize("signature", ["", "AAAA", "not base64!", "汉字"])
def test_a_malformed_signature_fails_as_one(key: SigningKey, signature: str) -> None:
    with pytest.raises(SignatureError, match="is wrong"):
        verify("feed-event", Signed({"serial": 2}, signature, key.fingerprint), key.public_bytes)


def test_another_key_is_named(key: SigningKey, tmp_path: Path) -> None:
    other = SigningKey.load_or_create(tmp_path / "other.pem")
    with pytest.raises(SignatureError, match=f"another key.*{other.fingerprint[:16]}"):
        verify("release", other.sign("release", {}), key.public_bytes)


@pytest.mark.parametrize("value", [None, [], {}, {"document": {}}, {"document": [], "signature": "", "key": ""}])
def test_what_is_not_an_envelope_is_refused(value: object) -> None:
    with pytest.raises(SignatureError, match="not a signed document"):
        Signed.from_json(value)


def test_the_private_key_is_kept_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "feed.pem"
    first = SigningKey.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.load_or_create(path).public_bytes == first.public_bytes
    assert first.fingerprint == fingerprint(first.public_bytes)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    pem = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "k.pem").write_bytes(pem)
    with pytest.raises(OpenshelfError, match="does not hold an Ed25519 key"):
        SigningKey.load_or_create(tmp_path / "k.pem")
