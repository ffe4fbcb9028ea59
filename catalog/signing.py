"""Ed25519 signatures over canonical JSON (RFC 8785), separated by purpose.

``cryptography`` is imported where a signature is made or checked: most commands pass signed documents on at most, and
it takes longer to import than they take to run.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import rfc8785

from openshelf.errors import OpenshelfError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Purpose = Literal["feed-head", "feed-event", "feed-snapshot", "release", "ledger-checkpoint"]
"""What a signature is for: one made for one purpose never verifies for another."""


class SignatureError(OpenshelfError):
    """A signature is missing, malformed, made by another key, or does not fit the document."""

    def __init__(self, message: str) -> None:
        super().__init__(
            "bad_signature",
            message,
            "Do not use this data; check that the catalog's address and key are the right ones.",
        )


def canonical_json(value: object) -> bytes:
    """``value`` as canonical JSON (RFC 8785)."""
    return rfc8785.dumps(value)  # type: ignore[arg-type]


def fingerprint(public_key: bytes) -> str:
    """SHA-256 of a raw 32-byte public key, in hexadecimal."""
    return hashlib.sha256(public_key).hexdigest()


def _message(purpose: Purpose, document: Mapping[str, Any]) -> bytes:
    return b"openshelf/v1/" + purpose.encode() + b"\n" + canonical_json(dict(document))


@dataclass(frozen=True, slots=True)
class Signed:
    """A document with its detached signature, as it travels: ``{"document", "signature", "key"}``."""

    document: dict[str, Any]
    signature: str
    key: str

    def to_json(self) -> dict[str, Any]:
        """The envelope as a JSON object."""
        return {"document": self.document, "signature": self.signature, "key": self.key}

    def files(self) -> tuple[bytes, bytes]:
        """The two files in which it lies on a disk: the canonical document, and its detached signature."""
        return canonical_json(self.document), canonical_json({"signature": self.signature, "key": self.key}) + b"\n"

    @classmethod
    def from_json(cls, value: object) -> Signed:
        """Read an envelope; :class:`SignatureError` when it is not one."""
        if (
            isinstance(value, dict)
            and isinstance(value.get("document"), dict)
            and isinstance(value.get("signature"), str)
            and isinstance(value.get("key"), str)
        ):
            return cls(value["document"], value["signature"], value["key"])
        raise SignatureError("The catalog's answer is not a signed document")


class SigningKey:
    """The catalog's private key."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_bytes = private.public_key().public_bytes_raw()
        self.fingerprint = fingerprint(self.public_bytes)

    @classmethod
    def load_or_create(cls, path: Path) -> SigningKey:
        """The key stored at ``path`` (PEM, mode 0600), made at the first start."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if path.exists():
            loaded = serialization.load_pem_private_key(path.read_bytes(), password=None)
            if not isinstance(loaded, Ed25519PrivateKey):
                raise OpenshelfError("bad_key", f"{path} does not hold an Ed25519 key", "Restore it from a backup.")
            return cls(loaded)
        private = Ed25519PrivateKey.generate()
        pem = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as sink:
            sink.write(pem)
            sink.flush()
            os.fsync(sink.fileno())
        temporary.rename(path)
        return cls(private)

    def sign(self, purpose: Purpose, document: Mapping[str, Any]) -> Signed:
        """``document`` with a signature for ``purpose``."""
        signature = self._private.sign(_message(purpose, document))
        return Signed(dict(document), base64.b64encode(signature).decode(), self.fingerprint)


def verify(purpose: Purpose, signed: Signed, public_key: bytes) -> dict[str, Any]:
    """The document of ``signed`` when ``public_key`` signed it for ``purpose``, else :class:`SignatureError`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if signed.key != fingerprint(public_key):
        raise SignatureError(f"The {purpose} document is signed by another key ({signed.key[:16]}…)")
    try:
        raw = base64.b64decode(signed.signature, validate=True)
        Ed25519PublicKey.from_public_bytes(public_key).verify(raw, _message(purpose, signed.document))
    except (binascii.Error, InvalidSignature, ValueError) as error:
        raise SignatureError(f"The signature of the {purpose} document is wrong") from error
    return signed.document
