"""The shelf that is measured: releases published through the catalog, mounts with caches of their own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from catalog.client import Client, DraftAbout, DraftFile
from catalog.manifest import DEFAULT_MTIME_NS
from catalog.names import parse_release
from tests.e2e.shelf import Shelf
from tests.support.s3_server import BUCKET, S3Server

UPLOADS = 6


def publish(shelf: Shelf, release: str, files: Mapping[str, Path]) -> dict[str, str]:
    """Publish ``files`` (path in the release → file); path → SHA-256."""
    ref = parse_release(release)
    with Client(shelf.url, shelf.tokens["curator"]) as client:
        client.create_draft(ref, DraftAbout(created="2000-01-01T00:00:00Z", licence_expression="CC0-1.0"))
        with ThreadPoolExecutor(UPLOADS) as threads:
            sent = list(threads.map(lambda source: client.upload(ref, source).sha256, files.values()))
        digests = dict(zip(files, sent, strict=True))
        client.seal(ref, [DraftFile(path, sha256, mtime_ns=DEFAULT_MTIME_NS) for path, sha256 in digests.items()])
    shelf.publish(release)
    return digests


def folder_of(point: Path, release: str) -> Path:
    """Where a mount shows a release."""
    ref = parse_release(release)
    collection = ref.collection
    return point / collection.folder / collection.namespace / collection.name / ref.version


@contextmanager
def fresh_mount(shelf: Shelf, name: str, **env: str) -> Iterator[Path]:
    """A mount with an empty cache, gone with its cache at the end."""
    point = shelf.mount(name, **env)
    try:
        yield point
    finally:
        shelf.umount(point)
        shutil.rmtree(shelf.cache(name))


def daemon_pids(shelf: Shelf, point: Path) -> list[int]:
    """Supervisor and worker."""
    now = shelf.status(point)
    return [now["supervisor_pid"], now["worker_pid"]]


def wait_sealed(cache: Path, digest: str) -> Path:
    """The sealed file of an object."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for path in cache.glob(f"objects/*/{digest}"):
            return path
        time.sleep(0.1)
    raise RuntimeError("the file was not sealed within 120 s of its first read")


def object_key(server: S3Server, digest: str) -> str:
    """The key under which the catalog keeps an object."""
    client = server.client()
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return next(item["Key"] for page in pages for item in page.get("Contents", []) if item["Key"].endswith(digest))
    finally:
        client.close()
