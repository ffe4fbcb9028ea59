"""What a token looks like: ``osk_<catalog's key>_<secret>``.

The first part is the first 16 bytes of the SHA-256 of the catalog's public key, so that whoever holds a token knows
which catalog to believe; the second is 32 random bytes, of which the catalog keeps only the SHA-256. Both are
base64url without padding (RFC 4648, section 5), 22 and 43 characters; the alphabet holds ``_``, so the parts are
told apart by their lengths.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets

from openshelf.errors import UsageError

FINGERPRINT_BYTES = 16
SECRET_BYTES = 32
_TOKEN = re.compile(r"osk_([A-Za-z0-9_-]{22})_([A-Za-z0-9_-]{43})")


class BadToken(UsageError):
    """A text is not a token. The text itself is never repeated."""

    def __init__(self) -> None:
        super().__init__(
            "bad_token",
            "The token is not one of an Openshelf catalog",
            "Copy it whole: osk_, 22 characters, an underscore, 43 characters.",
        )


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decode(text: str) -> bytes:
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _encode(raw) != text:
        raise BadToken  # the last character has bits set that mean nothing: two texts would be one token
    return raw


def key_prefix(public_key: bytes) -> bytes:
    """The 16 bytes by which a token names the raw public key ``public_key``."""
    return hashlib.sha256(public_key).digest()[:FINGERPRINT_BYTES]


def secret_digest(secret: bytes) -> bytes:
    """What the catalog keeps of a secret (32 bytes)."""
    return hashlib.sha256(secret).digest()


def make_token(public_key: bytes) -> tuple[str, bytes]:
    """A new token for the catalog with this raw public key, and the digest to keep of its secret."""
    secret = secrets.token_bytes(SECRET_BYTES)
    return f"osk_{_encode(key_prefix(public_key))}_{_encode(secret)}", secret_digest(secret)


def parse_token(text: str) -> tuple[bytes, bytes]:
    """The 16 bytes that name the catalog's key, and the 32-byte secret; :class:`BadToken` when it is not a token."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise BadToken
    return _decode(match.group(1)), _decode(match.group(2))
