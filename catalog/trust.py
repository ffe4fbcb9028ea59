"""What a node believes: the catalog's key, and the newest feed it has seen (``trust.json``).

A node refuses a document that is unsigned, signed by another key, or older than what it has seen, so that nobody who
stands between it and the catalog can show it the past. A feed that merely *expired* is no error: the node goes on
serving what it has and shows :meth:`Trust.is_stale`.

The order of use: :meth:`Trust.bootstrap` once; then again and again :meth:`Trust.accept_head`; while
:attr:`Trust.needs_snapshot`, :meth:`Trust.accept_snapshot`; else :meth:`Trust.accept_events` until
:attr:`Trust.serial` is the head's. A head that a new key signed is refused until the event that hands over to that key
has been accepted: on :class:`~catalog.signing.SignatureError` for a head, follow the events first.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from catalog.signing import SignatureError, Signed, fingerprint, verify
from catalog.token_format import key_prefix, parse_token
from openshelf.errors import OpenshelfError

FORMAT_VERSION = 1
EVENT_TYPES = frozenset({"published", "withdrawn", "tagged", "untagged", "access", "key", "hidden"})


class OlderFeed(OpenshelfError):
    """The catalog shows an older feed than this node has seen."""

    def __init__(self, what: str, shown: tuple[int, int], seen: tuple[int, int]) -> None:
        super().__init__(
            "older_feed",
            f"The {what} is of epoch {shown[0]}, serial {shown[1]}; seen before were epoch {seen[0]}, serial {seen[1]}",
            "Something shows the past, or a backup was put back without `openshelf store restored`."
            " What is here stays.",
        )


class FeedHole(OpenshelfError):
    """An event does not follow the last one accepted."""

    def __init__(self, shown: tuple[int, int], expected: tuple[int, int]) -> None:
        super().__init__(
            "feed_hole",
            f"The feed goes on with epoch {shown[0]}, serial {shown[1]} where {expected[0]}, {expected[1]} must follow",
            "Ask for the head and the events again; if it stays so, something drops events.",
        )


class BadFeed(OpenshelfError):
    """A signed document lacks what its purpose needs."""

    def __init__(self, what: str) -> None:
        super().__init__(
            "bad_feed", f"The signed {what} is malformed", "Check that both sides run the same version of openshelf."
        )


class UntrustedKey(OpenshelfError):
    """Nothing vouches for the key that the catalog shows."""


class KeySource(Protocol):
    """What :meth:`Trust.bootstrap` needs of a client."""

    def public_key(self) -> bytes:
        """The catalog's raw public key as it says itself."""

    def is_loopback(self) -> bool:
        """Whether the catalog is on this machine."""


def trusted_key(client: KeySource, *, token: str | None = None, catalog_key: str | None = None) -> bytes:
    """The catalog's public key (32 bytes), once something vouches for it.

    ``catalog_key`` (hexadecimal SHA-256 of the key) decides when given, else the ``token``, which names the key of
    the catalog that made it, else that the catalog is on this machine; otherwise :class:`UntrustedKey`.
    """
    key = client.public_key()
    if catalog_key is not None:
        vouched = hmac.compare_digest(fingerprint(key), catalog_key.strip().lower())
        by = "the fingerprint given"
    elif token is not None:
        vouched = hmac.compare_digest(key_prefix(key), parse_token(token)[0])
        by = "the token"
    else:
        vouched = client.is_loopback()
        by = "nothing"
    if not vouched:
        raise UntrustedKey(
            "untrusted_key",
            f"The catalog shows the key {fingerprint(key)[:16]}…, for which {by} does not vouch"
            if by != "nothing"
            else "Nothing vouches for the catalog's key",
            "Use a token of this catalog, or pass its fingerprint with --catalog-key (`openshelf serve` prints it).",
        )
    return key


@dataclass(frozen=True, slots=True)
class _State:
    public_key: str | None = None
    """Base64 of the raw key."""
    epoch: int = 0
    serial: int = -1
    """The last event accepted (or contained in the snapshot accepted); -1 before the first snapshot."""
    head_epoch: int = 0
    head_serial: int = -1
    expires: str | None = None
    object_hosts: tuple[str, ...] = ()


class Trust:
    """The trust of one node, kept at ``path``. Every change is durable before it is returned."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state = self._load()

    @property
    def public_key(self) -> bytes | None:
        """The catalog's raw public key, None before :meth:`bootstrap`."""
        return base64.b64decode(self._state.public_key) if self._state.public_key else None

    @property
    def epoch(self) -> int:
        """The epoch of the feed position."""
        return self._state.epoch

    @property
    def serial(self) -> int:
        """The feed position: the last serial accepted, -1 before the first snapshot."""
        return self._state.serial

    @property
    def head(self) -> tuple[int, int]:
        """Epoch and serial of the newest head accepted."""
        return self._state.head_epoch, self._state.head_serial

    @property
    def object_hosts(self) -> frozenset[str]:
        """``host:port`` of the object stores that the newest head lists."""
        return frozenset(self._state.object_hosts)

    @property
    def needs_snapshot(self) -> bool:
        """Whether events cannot be followed from here: a new node, or a catalog restored from a backup."""
        return self._state.serial < 0 or self._state.epoch < self._state.head_epoch

    def is_stale(self, now: datetime) -> bool:
        """Whether no head was accepted yet or the newest has expired at ``now`` (with a time zone)."""
        return self._state.expires is None or now > datetime.fromisoformat(self._state.expires)

    def bootstrap(self, client: KeySource, *, token: str | None = None, catalog_key: str | None = None) -> None:
        """Learn the catalog's key when none is known yet (see :func:`trusted_key`); what is known is kept.

        A ``catalog_key`` that is not the known key's fingerprint raises :class:`UntrustedKey`.
        """
        with self._lock:
            known = self.public_key
            if known is None:
                key = trusted_key(client, token=token, catalog_key=catalog_key)
                self._save(replace(self._state, public_key=base64.b64encode(key).decode()))
            elif catalog_key is not None and fingerprint(known) != catalog_key.strip().lower():
                raise UntrustedKey(
                    "untrusted_key",
                    f"This node trusts the key {fingerprint(known)[:16]}…, not the one given",
                    f"Remove {self._path.name} from the cache only if the catalog was really replaced.",
                )

    def accept_head(self, signed: Signed) -> dict[str, Any]:
        """The head's document, when it is the catalog's and not older than what was seen."""
        with self._lock:
            document = verify("feed-head", signed, self._key())
            epoch, serial = _position(document, "feed head")
            expires, hosts = document.get("expires"), document.get("object_hosts")
            if not _is_time(expires) or not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
                raise BadFeed("feed head")
            state = self._state
            seen = max((state.head_epoch, state.head_serial), (state.epoch, state.serial))
            if (epoch, serial) < seen:
                raise OlderFeed("feed head", (epoch, serial), seen)
            self._save(
                replace(
                    state, head_epoch=epoch, head_serial=serial, expires=str(expires), object_hosts=tuple(sorted(hosts))
                )
            )
            return document

    def accept_event(self, signed: Signed) -> dict[str, Any]:
        """The event's document, when it is the one that follows."""
        return self.accept_events([signed])[0]

    def accept_events(self, events: Sequence[Signed]) -> list[dict[str, Any]]:
        """The documents of events that follow one another and the position; all are accepted or none."""
        with self._lock:
            state, documents = self._state, []
            for signed in events:
                state, document = _follow(state, signed, self._key(state))
                documents.append(document)
            if documents:
                self._save(state)
            return documents

    def accept_snapshot(self, signed: Signed) -> dict[str, Any]:
        """The snapshot's document, when it is the catalog's and not older than the position, which it then becomes."""
        with self._lock:
            document = verify("feed-snapshot", signed, self._key())
            epoch, serial = _position(document, "feed snapshot")
            if not isinstance(document.get("releases"), list) or not isinstance(document.get("tags"), list):
                raise BadFeed("feed snapshot")
            state = self._state
            if epoch < state.head_epoch or (epoch, serial) < (state.epoch, state.serial):
                raise OlderFeed("feed snapshot", (epoch, serial), (max(state.epoch, state.head_epoch), state.serial))
            self._save(replace(state, epoch=epoch, serial=serial))
            return document

    def _key(self, state: _State | None = None) -> bytes:
        stored = (state or self._state).public_key
        if stored is None:
            raise UntrustedKey("untrusted_key", "No catalog key is trusted yet", "Start the node with a token.")
        return base64.b64decode(stored)

    def _load(self) -> _State:
        try:
            stored = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return _State()
        except (OSError, ValueError) as error:
            raise self._unreadable() from error
        if not isinstance(stored, dict) or stored.pop("version", None) != FORMAT_VERSION:
            raise self._unreadable()
        try:
            state = _State(**{**stored, "object_hosts": tuple(stored.get("object_hosts", ()))})
            numbers = (state.epoch, state.serial, state.head_epoch, state.head_serial)
            if not all(isinstance(number, int) for number in numbers):
                raise self._unreadable()
            if state.public_key is not None and len(base64.b64decode(state.public_key, validate=True)) != 32:
                raise self._unreadable()
            if state.expires is not None and not _is_time(state.expires):
                raise self._unreadable()
        except (TypeError, binascii.Error) as error:
            raise self._unreadable() from error
        return state

    def _unreadable(self) -> OpenshelfError:
        return OpenshelfError(
            "bad_trust",
            f"{self._path} is damaged",
            "Restore it; or remove it, and the key is checked against the token again.",
        )

    def _save(self, state: _State) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as sink:
                json.dump({"version": FORMAT_VERSION, **asdict(state)}, sink, indent=1)
                sink.flush()
                os.fsync(sink.fileno())
            temporary.rename(self._path)
        finally:
            temporary.unlink(missing_ok=True)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._state = state


def _is_time(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _position(document: dict[str, Any], what: str) -> tuple[int, int]:
    epoch, serial = document.get("epoch"), document.get("serial")
    if type(epoch) is not int or type(serial) is not int or epoch < 0 or serial < 0:
        raise BadFeed(what)
    return epoch, serial


def _follow(state: _State, signed: Signed, key: bytes) -> tuple[_State, dict[str, Any]]:
    """The state after one event, and the event's document."""
    document = verify("feed-event", signed, key)
    epoch, serial = _position(document, "feed event")
    if document.get("type") not in EVENT_TYPES:
        raise BadFeed("feed event")
    if (epoch, serial) <= (state.epoch, state.serial):
        raise OlderFeed("feed event", (epoch, serial), (state.epoch, state.serial))
    if (epoch, serial) != (state.epoch, state.serial + 1):
        raise FeedHole((epoch, serial), (state.epoch, state.serial + 1))
    state = replace(state, serial=serial)
    if document["type"] == "key":
        state = replace(state, public_key=_new_key(document))
    return state, document


def _new_key(document: dict[str, Any]) -> str:
    text = document.get("public_key")
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except binascii.Error:
        raw = b""
    if len(raw) != 32:
        raise SignatureError("The event that hands over to a new key holds no key")
    return base64.b64encode(raw).decode()
