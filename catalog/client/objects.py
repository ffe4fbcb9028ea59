"""Reading the bytes of objects and manifests: ranges, the one permitted redirect, whole answers or an error."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import urllib3

from catalog.client.body import BROKEN, Body, discard
from catalog.client.errors import CatalogUnreachable, ReadFailed, RedirectRefused
from catalog.client.redirect import Targets, permitted_target, store_pool
from catalog.client.session import (
    ATTEMPTS,
    CONNECT_TIMEOUT_S,
    REDIRECTS,
    RETRIED_STATUSES,
    Session,
    pause,
    read_small,
    reason_of,
)
from catalog.names import is_digest
from openshelf.errors import OpenshelfError, UsageError
from openshelf.units import MIB

PORTION_BYTES = 1 * MIB
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class _TryAgain(Exception):
    """This attempt failed in a way that another may not; ``final`` is the error when there is no other."""

    def __init__(self, final: OpenshelfError) -> None:
        super().__init__()
        self.final = final


class ObjectReading:
    """The part of the client that reads bytes. ``object_hosts`` is what the verified feed head lists: ``host:port``
    of the places to which the catalog may redirect a read; empty, no redirect is followed."""

    _session: Session
    object_hosts: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._stores: urllib3.PoolManager | None = None
        self._stores_lock = threading.Lock()
        self._targets = Targets()

    def _store_pool(self) -> urllib3.PoolManager:
        with self._stores_lock:
            if self._stores is None:
                self._stores = store_pool(loopback_permitted=self._session.is_loopback())
            return self._stores

    def _close_stores(self) -> None:
        with self._stores_lock:
            if self._stores is not None:
                self._stores.clear()

    def read_object(self, sha256: str, start: int, length: int) -> bytes:
        """Exactly the ``length`` bytes of an object from byte ``start``; see :meth:`read_object_into`."""
        buffer = bytearray(length)
        self.read_object_into(sha256, start, memoryview(buffer))
        return bytes(buffer)

    def read_object_into(self, sha256: str, start: int, buffer: memoryview) -> int:
        """Fill ``buffer`` with an object's bytes from byte ``start``, and return its length.

        The bytes are not verified, and never fewer; errors as of :meth:`read_object_parts`.
        """
        return sum(len(part) for part in self.read_object_parts(sha256, start, len(buffer), buffer))

    def read_object_parts(self, sha256: str, start: int, length: int, buffer: memoryview) -> Iterator[memoryview]:
        """``length`` bytes of an object from byte ``start``, in parts of the size of ``buffer`` (the last is shorter).

        Each part lies in ``buffer`` until the next is asked for: bytes of a long answer are used while they are still
        in the processor's cache. They are not verified: compare them with the manifest. Never fewer bytes: an object
        that is shorter, and a source that fails every time, raise :class:`~catalog.client.errors.ReadFailed`;
        :class:`~catalog.client.errors.RedirectRefused` and the catalog's own errors are raised at once.
        """
        view = buffer.cast("B")
        _digest(sha256)
        stop = start + length
        body: Body | None = None
        attempt = 0
        try:
            while start < stop:
                part = view[: stop - start]
                done = 0
                while done < len(part):
                    try:
                        if body is None:
                            body = self._open(sha256, start + done, stop - start - done, self._session.timeout_s)
                        done += body.read_into(part[done:])
                        if done < len(part):
                            trouble = body.trouble
                            body.close()
                            body = None
                            raise _TryAgain(ReadFailed(sha256, trouble))
                    except _TryAgain as failure:
                        attempt += 1
                        if attempt == ATTEMPTS:
                            raise failure.final from None
                        pause(attempt - 1)
                start += len(part)
                if start == stop and body is not None:
                    body.close()
                    body = None
                yield part
        finally:
            if body is not None:
                body.close()

    def open_object(
        self, sha256: str, start: int, length: int, *, timeout_s: float | None = None, anew: bool = False
    ) -> Body:
        """One attempt at ``length`` bytes of an object from byte ``start``: its answer, the body not yet read.

        ``timeout_s`` is how long the catalog, and then the store, may say nothing, if that is less than the client's
        own limit. ``anew``: ask the catalog, even while the store's address is known. Raises as
        :meth:`read_object_parts`.
        """
        limit_s = self._session.timeout_s
        if anew:
            self._targets.forget(f"/v1/objects/{sha256}")
        try:
            return self._open(_digest(sha256), start, length, min(timeout_s or limit_s, limit_s))
        except _TryAgain as failure:
            raise failure.final from None

    def _open(self, sha256: str, start: int, length: int, timeout_s: float) -> Body:
        answer, kind = self._fetch(f"/v1/objects/{sha256}", sha256, start, length, timeout_s)
        return Body(answer, length, kind, timeout_s)

    def download_manifest(self, digest: str, destination: Path) -> None:
        """Fetch the manifest with this hexadecimal digest to ``destination``, verified, durable, all or nothing."""
        temporary = destination.with_name(f".{destination.name}.{secrets.token_hex(8)}")
        try:
            with temporary.open("x+b") as sink:
                self._download(f"/v1/manifests/{_digest(digest)}", digest, sink)
                sink.flush()
                os.fsync(sink.fileno())
                sink.seek(0)
                if hashlib.file_digest(sink, "sha256").hexdigest() != digest:
                    raise ReadFailed(digest, "the manifest's bytes are not those that its name promises")
            temporary.rename(destination)
        finally:
            temporary.unlink(missing_ok=True)

    def _download(self, path: str, sha256: str, sink: BinaryIO) -> None:
        attempt = 0
        while True:
            before = sink.tell()
            try:
                answer, _ = self._fetch(path, sha256, before, None, self._session.timeout_s)
                _copy(answer, sha256, sink)
            except _TryAgain as failure:
                attempt = 1 if sink.tell() > before else attempt + 1
                if attempt == ATTEMPTS:
                    raise failure.final from None
                pause(attempt - 1)
            else:
                return

    def _fetch(
        self, path: str, sha256: str, start: int, length: int | None, timeout_s: float
    ) -> tuple[urllib3.BaseHTTPResponse, str]:
        """A checked answer that has the bytes from ``start``, its body not yet read, and who gave it.

        While an address that the catalog gave is valid the store is asked at once; whatever it then answers but the
        bytes sends the request through the catalog again.
        """
        end = "" if length is None else str(start + length - 1)
        headers = {"Range": f"bytes={start}-{end}"} if length is not None or start else {}
        known = self._targets.get(path)
        if known is not None:
            try:
                answer = self._ask_store(known, sha256, headers, timeout_s)
                _check(answer, sha256, start, length)
                return answer, "store"
            except (_TryAgain, ReadFailed, RedirectRefused):
                self._targets.forget(path)
        for signed_address in range(2):
            answer = self._ask_catalog(path, headers, timeout_s)
            location = answer.headers.get("Location", "") if answer.status in REDIRECTS else None
            if location is not None:
                answer = self._ask_store(location, sha256, headers, timeout_s)
                if answer.status == 403 and signed_address == 0:
                    discard(answer)
                    continue
            _check(answer, sha256, start, length)
            if location is not None:
                self._targets.keep(path, location)
            return answer, "catalog" if location is None else "store"
        raise AssertionError("unreachable")

    def _ask_catalog(self, path: str, headers: dict[str, str], timeout_s: float) -> urllib3.BaseHTTPResponse:
        try:
            answer = self._session.send("GET", path, headers=headers, timeout_s=timeout_s)
            if answer.status in REDIRECTS:
                read_small(answer)
            if answer.status < 400:
                return answer
            failure = self._session.failure(answer)
        except BROKEN as error:
            raise _TryAgain(CatalogUnreachable(self._session.url, reason_of(error))) from None
        if answer.status in RETRIED_STATUSES:
            raise _TryAgain(failure)
        raise failure

    def _ask_store(
        self, location: str, sha256: str, headers: dict[str, str], timeout_s: float
    ) -> urllib3.BaseHTTPResponse:
        target = permitted_target(self._session.url, location, self.object_hosts)
        timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, timeout_s), read=timeout_s)
        pool = self._store_pool()
        try:
            answer = pool.request(
                "GET",
                target,
                headers={**pool.headers, **headers},
                timeout=timeout,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except BROKEN as error:
            # None of the cause is kept: its text may hold the signed address.
            raise _TryAgain(ReadFailed(sha256, f"the object store does not answer: {reason_of(error)}")) from None
        if answer.status in REDIRECTS:
            discard(answer)
            raise RedirectRefused("it leads to a second redirect")
        return answer


def _digest(text: str) -> str:
    if not is_digest(text):
        raise UsageError("bad_digest", f"{text[:80]!r} is not a SHA-256", "Write 64 lower-case hexadecimal digits.")
    return text


def _check(answer: urllib3.BaseHTTPResponse, sha256: str, start: int, length: int | None) -> None:
    """Let only an answer pass that holds exactly what was asked for."""
    problem = problem_of(answer, start, length)
    if problem is None:
        return
    status = answer.status
    discard(answer)
    error = ReadFailed(sha256, problem)
    raise _TryAgain(error) if status in (429, 500, *RETRIED_STATUSES) else error


def problem_of(answer: urllib3.BaseHTTPResponse, start: int, length: int | None) -> str | None:
    """Why an answer does not hold exactly the range that was asked for; None when it does."""
    if answer.status not in (200, 206):
        return f"the object store answered with HTTP status {answer.status}"
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        return "the answer is compressed, which was not asked for"
    if answer.status == 200:
        whole = answer.headers.get("Content-Length", "")
        if start or (length is not None and whole != str(length)):
            return "the answer is not the range that was asked for"
        return None
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if match is None or int(match.group(1)) != start:
        return "the answer is not the range that was asked for"
    if length is not None and int(match.group(2)) != start + length - 1:
        return f"it ends at byte {int(match.group(2)) + 1}, before the range that was asked for"
    return None


def _copy(answer: urllib3.BaseHTTPResponse, sha256: str, sink: BinaryIO) -> None:
    while True:
        try:
            portion = answer.read(PORTION_BYTES)
        except BROKEN as error:
            discard(answer)
            raise _TryAgain(ReadFailed(sha256, reason_of(error))) from None
        if not portion:
            break
        sink.write(portion)
    answer.release_conn()
