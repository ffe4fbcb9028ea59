"""A published release whose signed record was verified before anything of it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from catalog.client.client import Client
from catalog.names import ReleaseRef, is_digest, parse_release
from catalog.signing import SignatureError, Signed, verify
from catalog.trust import BadFeed, trusted_key


@dataclass(frozen=True, slots=True)
class TrustedRelease:
    """A release and its signed record; ``manifest_digest`` is hexadecimal."""

    ref: ReleaseRef
    record: Signed
    manifest_digest: str

    @property
    def document(self) -> dict[str, Any]:
        """What the record says: the content of ``release.json``."""
        return self.record.document


def believe(client: Client, token: str | None, catalog_key: str | None = None) -> bytes:
    """The catalog's public key, vouched for (:func:`catalog.trust.trusted_key`); the client learns from the signed
    head which object hosts it may be redirected to."""
    key = trusted_key(client, token=token, catalog_key=catalog_key)
    hosts = verify("feed-head", client.feed_head(), key).get("object_hosts")
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise BadFeed("feed head")
    client.object_hosts = frozenset(hosts)
    return key


def check_record(record: Signed, key: bytes) -> TrustedRelease:
    """The release that ``record`` describes, when ``key`` signed it; else :class:`~catalog.signing.SignatureError`."""
    document = verify("release", record, key)
    ref = parse_release(f"{document.get('collection')}@{document.get('version')}")
    digest = document.get("manifest_digest")
    if not isinstance(digest, str) or not is_digest(digest):
        raise SignatureError(f"The signed record of {ref} names no manifest")
    return TrustedRelease(ref, record, digest)


def published_release(client: Client, name: str, key: bytes) -> TrustedRelease:
    """The published release ``COLLECTION@VERSION`` (or ``@TAG``), its record verified with ``key``."""
    ref = client.release(name).ref
    release = check_record(client.release_record(ref), key)
    if release.ref != ref:
        raise SignatureError(f"The catalog gave the signed record of {release.ref} for {ref}")
    return release
