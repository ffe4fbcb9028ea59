"""The connection to one catalog: one pool of connections, the token, bounded retries, errors from answers."""

from __future__ import annotations

import ipaddress
import json
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError

from catalog.client.errors import BadAnswer, CatalogError, CatalogUnreachable, from_answer
from catalog.token_format import BadToken
from openshelf import __version__
from openshelf.errors import UsageError

ATTEMPTS = 4
"""How often a request that may be repeated is tried in all."""
FIRST_PAUSE_S = 0.2
"""Longest pause before the second attempt; it doubles with each one, and the real pause is random below it."""
CONNECT_TIMEOUT_S = 10.0
CONNECTIONS = 32
RETRIED_STATUSES = frozenset({502, 503, 504})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_SMALL_BYTES = 64 * 1024

Body = bytes | Iterable[bytes] | None


def pause(attempt: int) -> None:
    """Wait before the attempt after number ``attempt`` (from 0): full jitter, so that a thousand nodes spread out."""
    time.sleep(random.uniform(0, FIRST_PAUSE_S * 2**attempt))  # noqa: S311 (spreading load is no secret)


def reason_of(error: BaseException) -> str:
    """Why a connection failed, without addresses or paths (urllib3's own texts may hold both)."""
    for cause in (error.__cause__, error.__context__, error):
        if isinstance(cause, socket.gaierror):
            return "the name is unknown"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, TimeoutError | urllib3.exceptions.TimeoutError):
            return "timed out"
        if isinstance(cause, urllib3.exceptions.SSLError):
            return "the TLS certificate or handshake is not acceptable"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    return "the connection broke"


def addresses_of(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Every address of ``host``; IPv4 addresses written as IPv6 are given as IPv4. Raises ``socket.gaierror``."""
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    for *_, address in socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM):
        parsed = ipaddress.ip_address(str(address[0]).partition("%")[0])
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        found.append(mapped or parsed)
    return found


def read_small(answer: urllib3.BaseHTTPResponse) -> bytes:
    """The first 64 KiB of a body that does not matter much; the connection is kept when that was all of it."""
    body = answer.read(MAX_SMALL_BYTES)
    if answer.read(1):
        answer.close()
    answer.release_conn()
    return body


class Session:
    """Requests to the catalog at ``url`` as the holder of ``token``. Safe to use from several threads at once.

    Redirects are never followed here, proxies of the environment are not used.
    """

    def __init__(self, url: str, token: str | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise UsageError(
                "bad_catalog_address",
                "The catalog's address is not one of a web server",
                "Write it like http://catalog.example:8420 or https://catalog.example.",
            )
        if token is not None and (not token.isascii() or not token.isprintable() or " " in token):
            raise BadToken
        self.url = url.rstrip("/")
        self.host = parts.hostname
        self.timeout_s = timeout_s
        self._headers = {"User-Agent": f"openshelf/{__version__}", "Accept-Encoding": "identity"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._pool = urllib3.PoolManager(num_pools=2, maxsize=CONNECTIONS, block=False, retries=False)

    def close(self) -> None:
        """Close every idle connection."""
        self._pool.clear()

    def is_loopback(self) -> bool:
        """Whether the catalog's host is this machine, by every address that its name has."""
        try:
            return all(address.is_loopback for address in addresses_of(self.host))
        except OSError:
            return False

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body = None,
        timeout_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """One attempt at ``path`` (from the root, with its query), the body of the answer not yet read.

        Raises urllib3's ``HTTPError``. The caller reads or closes the answer.
        """
        read_s = self.timeout_s if timeout_s is None else timeout_s
        return self._pool.request(
            method,
            self.url + path,
            headers={**self._headers, **(headers or {})},
            body=body,
            timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, read_s), read=read_s),
            redirect=False,
            preload_content=False,
            decode_content=False,
        )

    def open(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        make_body: Callable[[], Body] | None = None,
        repeatable: bool = True,
        timeout_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """An answer with a status below 400, its body not yet read; errors raised as this package's.

        ``make_body`` is called for each attempt. A request that is not ``repeatable`` is sent again only when the
        connection was not even made.
        """
        attempt = 0
        while True:
            last = attempt == ATTEMPTS - 1
            try:
                answer = self.send(
                    method, path, headers=headers, body=make_body() if make_body else None, timeout_s=timeout_s
                )
                if answer.status < 400:
                    return answer
                failure = self.failure(answer)
                if last or not repeatable or answer.status not in RETRIED_STATUSES:
                    raise failure
            except HTTPError as error:
                if last or not (repeatable or isinstance(error, NewConnectionError)):
                    raise CatalogUnreachable(self.url, reason_of(error)) from error
            pause(attempt)
            attempt += 1

    def failure(self, answer: urllib3.BaseHTTPResponse) -> CatalogError:
        """The error that an answer of 400 or above means; its body is read and the connection given back."""
        body = read_small(answer)
        return from_answer(self.url, answer.status, answer.headers.get("Content-Type", ""), body)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | float] | None = None,
        json_body: object = None,
        headers: Mapping[str, str] | None = None,
        make_body: Callable[[], Body] | None = None,
        repeatable: bool | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Ask and read the whole answer. ``repeatable`` defaults to true for every method but POST."""
        sent = dict(headers or {})
        if json_body is not None:
            encoded = json.dumps(json_body, ensure_ascii=False).encode()
            sent["Content-Type"] = "application/json"

            def make_body() -> Body:
                return encoded

        answer = self.open(
            method,
            f"{path}?{urlencode(query)}" if query else path,
            headers=sent,
            make_body=make_body,
            repeatable=method != "POST" if repeatable is None else repeatable,
            timeout_s=timeout_s,
        )
        try:
            body = answer.read()
        except HTTPError as error:
            answer.close()
            raise CatalogUnreachable(self.url, reason_of(error)) from error
        answer.release_conn()
        if answer.status in REDIRECTS:
            raise BadAnswer(self.url, f"it redirects {path}")
        return Answer(self.url, answer.headers, body)


class Answer:
    """A whole answer: its headers and its body."""

    def __init__(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        self._url = url
        self.headers = headers
        self.body = body

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; :class:`BadAnswer` when it is not one."""
        try:
            value = json.loads(self.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise BadAnswer(self._url, "no JSON object")
        return value

    def items(self, name: str) -> list[dict[str, Any]]:
        """The list of objects under ``name`` in the JSON body; :class:`BadAnswer` when there is none."""
        value = self.json().get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise BadAnswer(self._url, f"no list {name!r}")
        return value
