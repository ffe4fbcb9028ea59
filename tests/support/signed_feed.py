"""A catalog's feed held in memory and signed with a real key, so that tests can tamper with it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from catalog.client.errors import CatalogUnreachable, NotFound
from catalog.names import ReleaseRef
from catalog.signing import Signed, SigningKey
from tests.support.releases import MadeRelease

AT = "2026-01-01T00:00:00Z"


class SignedFeed:
    """What :class:`mountd.follow.FeedSource` asks for. ``alter`` changes each document on its way to the node."""

    object_hosts: frozenset[str] = frozenset()

    def __init__(self, key: SigningKey, *, epoch: int = 1) -> None:
        self.key = key
        self.epoch = epoch
        self.events: list[Signed] = []
        self.expires = "2999-01-01T00:00:00Z"
        self.reachable = True
        self.alter: Callable[[Signed], Signed] = lambda signed: signed
        self.snapshots = 0
        self.restricted: set[str] = set()
        self._releases: dict[tuple[str, str], MadeRelease] = {}
        self._tags: dict[tuple[str, str], str] = {}
        self._changed = threading.Condition()

    # What happens at the catalog

    def publish(self, made: MadeRelease) -> None:
        collection, version = str(made.ref.collection), made.ref.version
        self._releases[collection, version] = made
        self._event(
            "published",
            collection=collection,
            version=version,
            manifest_digest=made.digest,
            access=self._access(collection),
        )

    def restrict(self, collection: str, *, restricted: bool = True) -> None:
        (self.restricted.add if restricted else self.restricted.discard)(collection)
        self._event("access", collection=collection, access=self._access(collection))

    def _access(self, collection: str) -> str:
        return "restricted" if collection in self.restricted else "public"

    def withdraw(self, made: MadeRelease) -> None:
        collection, version = str(made.ref.collection), made.ref.version
        del self._releases[collection, version]
        self._tags = {key: value for key, value in self._tags.items() if (key[0], value) != (collection, version)}
        self._event("withdrawn", collection=collection, version=version, reason_code="privacy")

    def tag(self, made: MadeRelease, tag: str) -> None:
        collection, version = str(made.ref.collection), made.ref.version
        self._tags[collection, tag] = version
        self._event("tagged", collection=collection, tag=tag, version=version)

    def untag(self, collection: str, tag: str) -> None:
        del self._tags[collection, tag]
        self._event("untagged", collection=collection, tag=tag)

    def hide(self) -> None:
        self._event("hidden")

    def forget_silently(self, made: MadeRelease, *, event: str) -> None:
        """The release may no longer be read by this node; the feed says only ``event``."""
        del self._releases[str(made.ref.collection), made.ref.version]
        self._event(event, collection=str(made.ref.collection))

    def _event(self, kind: str, **fields: Any) -> None:
        with self._changed:
            document = {"collection": None, "version": None, "tag": None, "manifest_digest": None, "reason_code": None}
            document |= {"epoch": self.epoch, "serial": len(self.events) + 1, "type": kind, "at": AT, **fields}
            self.events.append(self.key.sign("feed-event", document))
            self._changed.notify_all()

    # What a client would answer

    def _sent(self, signed: Signed) -> Signed:
        if not self.reachable:
            raise CatalogUnreachable("http://catalog.example", "connection refused")
        return self.alter(signed)

    def public_key(self) -> bytes:
        self._sent(Signed({}, "", ""))
        return self.key.public_bytes

    def is_loopback(self) -> bool:
        return True

    def feed_head(self) -> Signed:
        head = {"epoch": self.epoch, "serial": len(self.events), "issued": AT, "expires": self.expires}
        return self._sent(self.key.sign("feed-head", {**head, "object_hosts": []}))

    def feed_events(self, after: int, wait_s: float = 0, limit: int = 1000) -> list[Signed]:
        with self._changed:
            self._changed.wait_for(lambda: len(self.events) > after, wait_s)
            return [self._sent(event) for event in self.events[after : after + limit]]

    def feed_snapshot(self) -> Signed:
        self.snapshots += 1
        releases = [
            {
                "collection": collection,
                "version": version,
                "manifest_digest": made.digest,
                "files": len(made.entries),
                "size_bytes": made.size_bytes,
                "access": self._access(collection),
            }
            for (collection, version), made in self._releases.items()
        ]
        tags = [{"collection": c, "tag": tag, "version": version} for (c, tag), version in self._tags.items()]
        body = {"epoch": self.epoch, "serial": len(self.events), "issued": AT, "releases": releases, "tags": tags}
        return self._sent(self.key.sign("feed-snapshot", body))

    def release_record(self, ref: ReleaseRef) -> Signed:
        made = self._releases.get((str(ref.collection), ref.version))
        if made is None:
            raise NotFound("not_found", f"There is no release {ref}")
        record = {
            "collection": str(ref.collection),
            "version": ref.version,
            "created": AT,
            "manifest_digest": made.digest,
            "licence": {"expression": "CC-BY-4.0", "use": "any", "attribution": True, "share_alike": False},
            "recipe_digest": None,
            "policy_digest": None,
            "residency": [],
            "totals": {"files": len(made.entries), "size_bytes": made.size_bytes, "rows": 0},
        }
        return self._sent(self.key.sign("release", record))

    def download_manifest(self, digest: str, destination: Path) -> None:
        self._sent(Signed({}, "", ""))
        for made in self._releases.values():
            if made.digest == digest:
                shutil.copyfile(made.manifest, destination)
                return
        raise NotFound("not_found", f"There is no manifest {digest}")
