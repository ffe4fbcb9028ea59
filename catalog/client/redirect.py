"""Where the one redirect of an object read may lead, and the connections made for it.

A catalog whose objects are in S3 answers a read with a presigned address. It is followed once, only to a ``host:port``
that the signed feed head lists, with no header of the catalog's request, never to a link-local address (cloud
metadata services live there) and to this machine only when the catalog is on it. The address is a key for as long as
it is valid, so that it is in no error and no log.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Collection as Container
from datetime import UTC, datetime
from urllib.parse import parse_qs, urljoin, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NewConnectionError
from urllib3.util import connection

from catalog.client.errors import RedirectRefused
from catalog.client.session import CONNECTIONS, addresses_of

_DEFAULT_PORTS = {"http": 80, "https": 443}


TARGETS_KEPT = 4096
DEFAULT_VALID_S = 50.0
"""How long an address is taken for valid that does not say it."""
MARGIN_S = 10.0
"""An address is not used in the last seconds of its time."""


class _HideQueries(logging.Filter):
    """Takes the query, which holds the signature, out of what urllib3 logs about each request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(arg.partition("?")[0] if isinstance(arg, str) else arg for arg in record.args)
        return True


_HIDE_QUERIES = _HideQueries()


class Targets:
    """Where the store has an object, by the object's path, until shortly before the address expires. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def get(self, path: str) -> str | None:
        """The address, while it is valid."""
        with self._lock:
            location, until = self._kept.get(path, (None, 0.0))
            if location is not None and self._clock() >= until:
                del self._kept[path]
                location = None
            return location

    def keep(self, path: str, location: str) -> None:
        """Remember an address that has just worked."""
        valid_s = valid_seconds(location, self._wall()) - MARGIN_S
        if valid_s > 0:
            with self._lock:
                self._kept[path] = location, self._clock() + valid_s
                self._kept.move_to_end(path)
                if len(self._kept) > TARGETS_KEPT:
                    self._kept.popitem(last=False)

    def forget(self, path: str) -> None:
        """Have the catalog asked next time."""
        with self._lock:
            self._kept.pop(path, None)


def valid_seconds(location: str, now: float) -> float:
    """How long from ``now`` (seconds of the epoch) a presigned address holds, by what it says itself (``X-Amz-Date``
    and ``X-Amz-Expires`` of AWS Signature Version 4); never more than the latter, should the clocks differ."""
    try:
        query = parse_qs(urlsplit(location).query)
        expires_s = float(query["X-Amz-Expires"][0])
        signed = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except (KeyError, ValueError):
        return DEFAULT_VALID_S + MARGIN_S
    return min(expires_s, signed.timestamp() + expires_s - now)


def permitted_target(base_url: str, location: str, object_hosts: Container[str]) -> str:
    """The absolute address that ``location`` means; :class:`RedirectRefused` unless its host is permitted."""
    try:
        target = urljoin(base_url, location)
        parts = urlsplit(target)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        raise RedirectRefused("the address is malformed") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username is not None:
        raise RedirectRefused("the address is not one of a web server")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if f"{host}:{port}".lower() not in {known.lower() for known in object_hosts}:
        raise RedirectRefused("its host is not in the signed list of object hosts")
    return target


def _check_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address, loopback_permitted: bool) -> None:
    if address.is_link_local or address.is_multicast:
        raise RedirectRefused("its host has a link-local or multicast address")
    if (address.is_loopback or address.is_unspecified) and not loopback_permitted:
        raise RedirectRefused("its host is this machine, and the catalog is elsewhere")


def store_pool(loopback_permitted: bool) -> urllib3.PoolManager:
    """A pool that connects to no link-local address, and to this machine only when that is permitted.

    The name is resolved once and that very address is connected to, so that a name cannot change its meaning between
    the check and the connection.
    """

    def connect(self: HTTPConnection) -> socket.socket:
        refused: OSError = OSError("the name has no address")
        try:
            addresses = addresses_of(self.host)
        except OSError as error:
            addresses, refused = [], error
        for address in addresses:
            _check_address(address, loopback_permitted)
        for address in addresses:
            try:
                return connection.create_connection(
                    (str(address), self.port),
                    self.timeout,
                    source_address=self.source_address,
                    socket_options=self.socket_options,
                )
            except OSError as error:
                refused = error
        raise NewConnectionError(self, "no connection to the object store") from refused

    class StoreHTTPConnection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return connect(self)

    class StoreHTTPSConnection(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return connect(self)

    class StoreHTTPPool(HTTPConnectionPool):
        ConnectionCls = StoreHTTPConnection

    class StoreHTTPSPool(HTTPSConnectionPool):
        ConnectionCls = StoreHTTPSConnection

    logging.getLogger("urllib3.connectionpool").addFilter(_HIDE_QUERIES)
    pool = urllib3.PoolManager(
        num_pools=8,
        maxsize=CONNECTIONS,
        block=False,
        retries=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "openshelf"},
    )
    pool.pool_classes_by_scheme = {"http": StoreHTTPPool, "https": StoreHTTPSPool}
    return pool
