"""The catalog's HTTP interface as a test calls it: plain requests, without the client library in between."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import urllib3

from catalog.names import ReleaseRef, parse_release
from tests.support.catalog_server import RunningCatalog

MTIME_NS = 946_684_800 * 10**9
CREATED = "2026-01-31T00:00:00Z"


class Api:
    """Requests with one token; none with an empty one."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        self._pool = urllib3.PoolManager(retries=False, timeout=60, maxsize=8)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.clear()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | Iterable[bytes] | None = None,
        json_body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """One request, no redirect followed, whatever the status."""
        sent = {**self._headers, **(headers or {})}
        if json_body is not None:
            body = json.dumps(json_body).encode()
            sent["Content-Type"] = "application/json"
        return self._pool.request(method, self.url + path, body=body, headers=sent, redirect=False)

    def get(self, path: str, **headers: str) -> urllib3.BaseHTTPResponse:
        """GET, with headers whose names are written with underscores."""
        return self.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def ok(self, method: str, path: str, json_body: object = None) -> Any:
        """The JSON answer of a request that must succeed."""
        answer = self.request(method, path, json_body=json_body)
        assert answer.status in (200, 201), (answer.status, answer.data)
        return answer.json()

    def refused(self, method: str, path: str, status: int, code: str, json_body: object = None) -> Any:
        """The problem that a request must be answered with."""
        answer = self.request(method, path, json_body=json_body)
        problem = answer.json()
        assert (answer.status, problem["code"]) == (status, code), (answer.status, answer.data)
        assert answer.headers["Content-Type"] == "application/problem+json"
        return problem

    def put_object(self, ref: str, data: bytes, name: str | None = None) -> urllib3.BaseHTTPResponse:
        """Send an object under its digest, or under ``name``."""
        digest = name or hashlib.sha256(data).hexdigest()
        return self.request("PUT", f"{release_path(ref)}/objects/{digest}", body=data)

    def seal(self, ref: str, files: Mapping[str, bytes], **listing: Any) -> urllib3.BaseHTTPResponse:
        """Seal with these files (path → bytes); ``listing`` replaces columns."""
        return self.request("POST", f"{release_path(ref)}/seal", body=listing_of(files, **listing))

    def draft(self, ref: str, files: Mapping[str, bytes], **about: Any) -> Any:
        """Begin, fill and seal a draft; the sealed release."""
        self.ok("PUT", release_path(ref), about_of(**about))
        for data in files.values():
            answer = self.put_object(ref, data)
            assert answer.status == 200, answer.data
        answer = self.seal(ref, files)
        assert answer.status == 200, answer.data
        return answer.json()


def await_waiters(api: Api, count: int) -> None:
    """Return once ``count`` requests wait for the feed."""
    deadline = time.monotonic() + 60
    while f"catalog_feed_waiters {count}.0" not in api.get("/metrics").data.decode():
        assert time.monotonic() < deadline, f"there are no {count} who wait"
        time.sleep(0.02)


def release_path(ref: str | ReleaseRef, step: str = "") -> str:
    """The path of a release, and of a step below it."""
    parsed = parse_release(ref) if isinstance(ref, str) else ref
    return f"/v1/collections/{parsed.collection}/releases/{parsed.version}" + (f"/{step}" if step else "")


def about_of(**about: Any) -> dict[str, Any]:
    """What a draft says about itself."""
    return {"created": CREATED, "licence_expression": "Apache-2.0", "rows": 1, **about}


def listing_of(
    files: Mapping[str, bytes],
    *,
    paths: Sequence[str] | None = None,
    digests: Sequence[bytes] | None = None,
    modes: Sequence[int] | None = None,
) -> bytes:
    """The list of files that a seal sends, as an Arrow IPC stream."""
    names = list(paths or files)
    hashes = list(digests or [hashlib.sha256(data).digest() for data in files.values()])
    table = pa.table(
        {
            "path": pa.array(names, pa.large_string()),
            "sha256": pa.array(hashes, pa.binary(32)),
            "mode": pa.array(modes or [0o444] * len(names), pa.uint16()),
            "mtime_ns": pa.array([MTIME_NS] * len(names), pa.int64()),
        }
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


class People:
    """One caller of each kind, with tokens of their own: two curators, two auditors, reader, node, administrator."""

    def __init__(self, catalog: RunningCatalog) -> None:
        self.catalog = catalog
        self.administrator = Api(catalog.url, catalog.admin_token)
        self.alice = self.named("alice", "curator")
        self.carol = self.named("carol", "curator")
        self.bob = self.named("bob", "auditor")
        self.reader = self.named("rita", "reader")
        self.node = self.named("node-1", "node")
        self.nobody = Api(catalog.url)

    def named(self, name: str, role: str) -> Api:
        """A caller with a new token."""
        return Api(self.catalog.url, self.catalog.token(name, role))

    def close(self) -> None:
        """Close every connection."""
        for api in vars(self).values():
            if isinstance(api, Api):
                api.__exit__(None, None, None)

    def publish(self, ref: str, files: Mapping[str, bytes], **about: Any) -> Any:
        """A release of alice's that bob approved and that is published."""
        self.alice.draft(ref, files, **about)
        self.alice.ok("POST", release_path(ref, "submit"))
        self.bob.ok("POST", release_path(ref, "approve"))
        return self.alice.ok("POST", release_path(ref, "publish"))
