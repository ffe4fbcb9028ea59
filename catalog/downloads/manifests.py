"""Manifests as files of the catalog's own folder, whatever store the objects are in."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from catalog.disk import writing_to
from catalog.manifest import Manifest
from catalog.runtime import Runtime


def manifest_path(runtime: Runtime, digest: bytes) -> Path:
    """Where the manifest with this digest lies."""
    return runtime.manifests / f"{digest.hex()}.arrow"


def local_manifest(runtime: Runtime, digest: bytes) -> Path:
    """The manifest's file, fetched from the store when this folder was lost.

    Its name is trusted afterwards, so its bytes are hashed on the way in; a wrong one raises
    :class:`catalog.manifest.ManifestError`.
    """
    path = manifest_path(runtime, digest)
    if not path.exists():
        temporary = runtime.incoming / secrets.token_hex(16)
        try:
            with writing_to(runtime.data), temporary.open("xb") as sink:
                for portion in runtime.store.open(digest.hex()):
                    sink.write(portion)
            keep_manifest(runtime, temporary, digest)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def keep_manifest(runtime: Runtime, built: Path, digest: bytes) -> None:
    """Move a manifest that was just written into place, durably and read-only."""
    Manifest.open(built, digest)
    descriptor = os.open(built, os.O_RDONLY)
    try:
        os.fchmod(descriptor, 0o444)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    built.rename(manifest_path(runtime, digest))
    folder = os.open(runtime.manifests, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
