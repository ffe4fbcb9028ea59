"""A stand-in for the catalog: a signed feed of releases made here, whose objects are in the S3 server.

Publishing 100,000 files or 10,000,000 names through the real catalog takes longer than all that is to be measured on
the node, and the node asks the catalog for little: the feed, a manifest, where an object is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from catalog.manifest import DEFAULT_MTIME_NS, FileEntry, digest_file, plan_packs, write_manifest
from catalog.names import ReleaseRef, parse_release
from catalog.signing import Signed, SigningKey
from catalog.token_format import make_token
from tests.e2e.shelf import Shelf
from tests.support.s3_server import BUCKET, S3Server
from tests.support.signed_feed import SignedFeed

PREFIX = "packs"


@dataclass(frozen=True)
class BigRelease:
    """What the feed needs to know of a release; ``entries`` only has a length."""

    ref: ReleaseRef
    manifest: Path
    digest: str
    entries: Sequence[int]
    size_bytes: int


def packed(release: str, files: dict[str, Path], folder: Path, server: S3Server) -> BigRelease:
    """A release of small files as the catalog packs them; the packs go to the S3 server."""
    paths = sorted(files, key=str.encode)
    digests = [digest_file(files[path]) for path in paths]
    client = server.client()
    places: list[tuple[bytes, int]] = [(b"", 0)] * len(paths)
    for members in plan_packs([(digest.sha256, digest.size) for digest in digests]):
        pack = b"".join(files[paths[index]].read_bytes() for index in members)
        stored, offset = hashlib.sha256(pack).digest(), 0
        for index in members:
            places[index] = stored, offset
            offset += digests[index].size
        client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{stored.hex()}", Body=pack)
    client.close()
    entries = [
        FileEntry(path, digest.size, 0o444, DEFAULT_MTIME_NS, digest.sha256, *place, digest.chunks)
        for path, digest, place in zip(paths, digests, places, strict=True)
    ]
    manifest = folder / "packed.arrow"
    digest = write_manifest(entries, manifest).hex()
    return BigRelease(parse_release(release), manifest, digest, range(len(paths)), sum(each.size for each in entries))


class StandinShelf(Shelf):
    """A :class:`Shelf` whose catalog is the stand-in: it can be mounted, and nothing else."""

    def __init__(self, home: Path, url: str, token: str) -> None:
        super().__init__(home)
        self.url = url
        self.tokens["node"] = token


@contextmanager
def standin_shelf(home: Path, releases: Sequence[BigRelease], server: S3Server | None = None) -> Iterator[StandinShelf]:
    """A node's view of a catalog that has published ``releases``."""
    home.mkdir(parents=True, exist_ok=True)
    key = SigningKey.load_or_create(home / "key")
    feed = _Feed(key)
    if server is not None:
        feed.object_hosts = frozenset({server.endpoint.removeprefix("http://")})
    for release in releases:
        feed.publish(release)  # type: ignore[arg-type]
    manifests = {release.digest: release.manifest for release in releases}
    web = _Web(("127.0.0.1", 0), _handler(feed, manifests, server))
    thread = threading.Thread(target=web.serve_forever, daemon=True)
    thread.start()
    token, _ = make_token(key.public_bytes)
    shelf = StandinShelf(home, f"http://127.0.0.1:{web.server_port}", token)
    try:
        yield shelf
    finally:
        shelf.close()
        web.shutdown()
        web.server_close()


class _Web(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A node that was unmounted while it waited for events has hung up."""


class _Feed(SignedFeed):
    """The same with a head that names the store."""

    def feed_head(self) -> Signed:
        head = dict(super().feed_head().document)
        return self.key.sign("feed-head", head | {"object_hosts": sorted(self.object_hosts)})


def _handler(feed: SignedFeed, manifests: dict[str, Path], server: S3Server | None) -> type[BaseHTTPRequestHandler]:
    client = None if server is None else server.client()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
            if path == "/v1/key":
                self._json({"key": base64.b64encode(feed.key.public_bytes).decode(), "algorithm": "ed25519"})
            elif path == "/v1/feed/head":
                self._json(feed.feed_head().to_json())
            elif path == "/v1/feed/snapshot":
                self._json(feed.feed_snapshot().to_json())
            elif path == "/v1/feed":
                events = feed.feed_events(int(query["after"][0]), float(query["wait"][0]))
                self._json({"events": [event.to_json() for event in events]})
            elif path.startswith("/v1/manifests/"):
                self._file(manifests[path.rsplit("/", 1)[1]])
            elif path.startswith("/v1/objects/") and client is not None:
                params = {"Bucket": BUCKET, "Key": f"{PREFIX}/{path.rsplit('/', 1)[1]}"}
                address = client.generate_presigned_url("get_object", params, ExpiresIn=60)
                self._answer(307, b"", Location=address)
            elif path.endswith("/release.json"):
                kind, namespace, name, _, version = path.removeprefix("/v1/collections/").split("/")[:5]
                self._json(feed.release_record(parse_release(f"{kind}/{namespace}/{name}@{version}")).to_json())
            else:
                self._answer(404, b"")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer(404, b"")

        def _json(self, value: Any) -> None:
            self._answer(200, json.dumps(value).encode())

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _file(self, path: Path) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(path.stat().st_size))
            self.end_headers()
            with path.open("rb") as source:
                while portion := source.read(1 << 20):
                    self.wfile.write(portion)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
