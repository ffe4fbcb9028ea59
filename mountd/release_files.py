"""A release's manifest and signed record, brought to the cache and verified before the release is shown."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from catalog.manifest import Manifest, ManifestError
from catalog.names import ReleaseRef
from catalog.signing import SignatureError, Signed, verify
from mountd.cache.layout import Layout
from mountd.releases import ListedRelease
from mountd.rows import Rows
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.follow")


class ReleaseSource(Protocol):
    """What is needed of a client to bring a release here."""

    def download_manifest(self, digest: str, destination: Path) -> None:
        """Fetch the manifest with this SHA-256 (hexadecimal) to ``destination``, verified."""

    def release_record(self, ref: ReleaseRef) -> Signed:
        """The signed ``release.json``, not yet verified."""


@dataclass(frozen=True, slots=True)
class ReleaseFiles:
    """Manifests and records in the cache; ``public_key`` gives the catalog's key as it is trusted now."""

    layout: Layout
    source: ReleaseSource
    public_key: Callable[[], bytes | None]

    def present(self, ref: ReleaseRef, digest: str) -> ListedRelease | None:
        """The release when both files are here (they were verified when they came), else None."""
        path = self._record_path(ref)
        try:
            stored = json.loads(path.read_bytes())
            signed = Signed.from_json(stored)
        except FileNotFoundError:
            return None
        except (ValueError, SignatureError):
            log.warning("The stored record of %s is damaged and is fetched again.", ref)
            return None
        manifest = self.layout.manifest_path(digest)
        if signed.document.get("manifest_digest") != digest or not manifest.exists():
            return None
        return _listed(ref, digest, signed, manifest)

    def bring(self, ref: ReleaseRef, digest: str) -> ListedRelease:
        """The release, after fetching and verifying what is not here yet. OpenshelfError when it cannot be shown."""
        found = self.present(ref, digest)
        if found is not None:
            return found
        manifest = self.layout.manifest_path(digest)
        if not manifest.exists():
            from mountd.manifest_check import check_manifest  # 40 ms that a mount without anything new need not spend

            # Another release may have the same manifest and be brought at the same time.
            fresh = manifest.with_name(f"{digest}.{hashlib.sha256(str(ref).encode()).hexdigest()[:16]}.new")
            self.source.download_manifest(digest, fresh)
            try:
                check_manifest(Manifest.open_verified(fresh, bytes.fromhex(digest)), str(ref))
                fresh.rename(manifest)
            finally:
                fresh.unlink(missing_ok=True)
        signed = self.source.release_record(ref)
        self._check_record(ref, digest, signed)
        listed = _listed(ref, digest, signed, manifest)
        self._store(self._record_path(ref), signed)
        return listed

    def drop(self, ref: ReleaseRef) -> None:
        """Remove a release's record."""
        self._record_path(ref).unlink(missing_ok=True)

    def _check_record(self, ref: ReleaseRef, digest: str, signed: Signed) -> None:
        key = self.public_key()
        if key is None:
            raise SignatureError(f"No key is trusted yet to check the record of {ref}")
        document = verify("release", signed, key)
        named = (document.get("collection"), document.get("version"), document.get("manifest_digest"))
        if named != (str(ref.collection), ref.version, digest):
            raise SignatureError(f"The signed record of {ref} is that of another release or manifest")

    def _record_path(self, ref: ReleaseRef) -> Path:
        collection = ref.collection
        folder = self.layout.records / collection.folder / collection.namespace / collection.name
        return folder / f"{ref.version}.json"

    def _store(self, path: Path, signed: Signed) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as sink:
            sink.write(json.dumps(signed.to_json(), ensure_ascii=False).encode())
            sink.flush()
            os.fsync(sink.fileno())
        fresh.rename(path)


def _listed(ref: ReleaseRef, digest: str, signed: Signed, manifest: Path) -> ListedRelease:
    document = signed.document
    record, signature = signed.files()
    totals: Any = document.get("totals")
    licence: Any = document.get("licence")
    try:
        created = datetime.fromisoformat(document["created"])
        files, size_bytes = int(totals["files"]), int(totals["size_bytes"])
        expression = None if licence is None else licence.get("expression")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OpenshelfError(
            "bad_record",
            f"The signed record of {ref} lacks its date, totals or licence",
            "Run the same version of openshelf on node and catalog.",
        ) from error
    return ListedRelease(
        ref,
        digest,
        files,
        size_bytes,
        int(created.timestamp()) * 10**9,
        None if expression is None else str(expression),
        record,
        signature,
        lambda: _open_rows(manifest, digest),
    )


def _open_rows(path: Path, digest: str) -> Rows:
    try:
        return Rows(Manifest.open_verified(path, bytes.fromhex(digest)))
    except ManifestError as error:
        log.error("%s", error.line())
        raise OSError(errno.EIO, error.message) from error
