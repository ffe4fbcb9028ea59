"""What an object store is, what can go wrong with it, and which one an address means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from catalog.manifest import ContentDigest, ContentHasher
from catalog.names import is_digest
from openshelf.errors import OpenshelfError, UsageError

_S3_ADDRESS = re.compile(r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9])((?:/[A-Za-z0-9._-]+)*/?)")


class DigestMismatch(OpenshelfError):
    """The bytes received are not those that the sender named."""

    def __init__(self, expected: str, received: str) -> None:
        super().__init__(
            "digest_mismatch",
            f"The body has SHA-256 {received}, not {expected}",
            "The file changed while it was sent, or was damaged on the way: send it again.",
        )


class ShortBody(OpenshelfError):
    """The body has fewer or more bytes than were announced."""

    def __init__(self, announced: int, received: int) -> None:
        super().__init__(
            "short_body",
            f"The body ended after {received} bytes; {announced} were announced"
            if received < announced
            else f"The body goes on past the {announced} bytes that were announced",
            "Send the object again.",
        )


class StoreFull(OpenshelfError):
    """The store has no room left."""

    def __init__(self, where: str) -> None:
        super().__init__(
            "store_full", f"The object store {where} is full", "Free space or enlarge it; nothing was stored."
        )


class StoreUnavailable(OpenshelfError):
    """The store does not answer, or refuses what a store must do."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            "store_unavailable",
            f"The object store {where} cannot be used: {reason}",
            "Try again; if it stays so, the operator must look at the store.",
        )


class ObjectMissing(OpenshelfError):
    """The store has no object of this name."""

    def __init__(self, sha256: str) -> None:
        super().__init__(
            "object_missing",
            f"The object store has no object {sha256}",
            "It was removed outside the catalog: restore it from a backup.",
        )


class ObjectDamaged(OpenshelfError):
    """The store has other bytes under an object's name."""

    def __init__(self, sha256: str) -> None:
        super().__init__(
            "object_damaged",
            f"The object store holds other bytes as object {sha256}",
            "It was damaged outside the catalog: restore it from a backup, or send it again.",
        )


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as the store took it: SHA-256 in hexadecimal, size in bytes, BLAKE3 (32 bytes) per 4 MiB chunk."""

    sha256: str
    size: int
    chunks: tuple[bytes, ...]

    @classmethod
    def of(cls, content: ContentDigest) -> StoredObject:
        """The object that has this content."""
        return cls(content.sha256.hex(), content.size, content.chunks)


class ObjectStore(Protocol):
    """Content-addressed storage. Safe to use from several threads at once; ``sha256`` is always hexadecimal."""

    def put(self, stream_chunks: Iterable[bytes], size_bytes: int | None, expected_sha256: str | None) -> StoredObject:
        """Store the bytes of ``stream_chunks``, hashing every one; what failed is never visible and leaves nothing.

        ``size_bytes`` and ``expected_sha256``, where given, must agree with what arrives: :class:`ShortBody`,
        :class:`DigestMismatch`. :class:`StoreFull` and :class:`StoreUnavailable` say that the store could not take it.
        Whatever the iterable itself raises passes through.
        """

    def open(self, sha256: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """The bytes ``start`` to ``start + length`` (to the end when None), in portions.

        Nothing is opened before the first portion is asked for; only then can :class:`ObjectMissing` or
        :class:`StoreUnavailable` be raised. An object that ends early raises :class:`StoreUnavailable`.
        """

    def size(self, sha256: str) -> int | None:
        """Size in bytes, or None when there is no such object."""

    def presign(self, sha256: str, ttl_s: int = 60) -> str | None:
        """An address from which anybody may read the object for ``ttl_s`` seconds; None when the store has none."""

    def delete(self, sha256: str) -> None:
        """Remove the object; nothing happens when there is none."""

    def hosts(self) -> list[str]:
        """``host:port`` of every place that :meth:`presign` may name."""

    def check(self) -> None:
        """:class:`StoreUnavailable` unless the store answers now. Cheap: nothing is written."""

    def close(self) -> None:
        """Give up connections."""


class BodyCheck:
    """Counts and hashes a body while a store takes it, and says at the end whether it is the one announced."""

    def __init__(self, size_bytes: int | None, expected_sha256: str | None) -> None:
        if expected_sha256 is not None and not is_digest(expected_sha256):
            raise OpenshelfError(
                "bad_digest", "The object's name is not a SHA-256", "Write it in 64 lower-case hexadecimal digits."
            )
        self._announced = size_bytes
        self._expected = expected_sha256
        self._hasher = ContentHasher()
        self._received = 0

    def pass_through(self, stream_chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The portions of the body, each counted and hashed; :class:`ShortBody` as soon as there are too many bytes."""
        for portion in stream_chunks:
            self._received += len(portion)
            if self._announced is not None and self._received > self._announced:
                raise ShortBody(self._announced, self._received)
            self._hasher.update(portion)
            yield portion

    def finish(self) -> StoredObject:
        """What arrived; :class:`ShortBody` or :class:`DigestMismatch` when it is not what was announced."""
        if self._announced is not None and self._received != self._announced:
            raise ShortBody(self._announced, self._received)
        stored = StoredObject.of(self._hasher.finish())
        if self._expected is not None and stored.sha256 != self._expected:
            raise DigestMismatch(self._expected, stored.sha256)
        return stored


def open_store(url: str | None, data_dir: Path) -> ObjectStore:
    """The store at ``s3://BUCKET/PREFIX``, or the folder ``data_dir/objects`` when ``url`` is None.

    It is tried at once: a missing bucket, wrong keys or a folder that cannot be written raise an
    :class:`OpenshelfError` here and not at the first upload.
    """
    if url is None:
        from catalog.objects.local import LocalStore

        return LocalStore(data_dir / "objects")
    match = _S3_ADDRESS.fullmatch(url)
    if match is None:
        raise UsageError("bad_store", f"{url!r} is not an object store", "Write s3://BUCKET or s3://BUCKET/PREFIX.")
    from catalog.objects.s3 import S3Store

    return S3Store(match.group(1), match.group(2).strip("/"), spool=data_dir / "spool")
