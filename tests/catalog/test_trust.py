"""A node believes the catalog's key only when something vouches for it, and never an older feed than it has seen."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from catalog.signing import SignatureError, Signed, SigningKey
from catalog.token_format import make_token
from catalog.trust import BadFeed, FeedHole, OlderFeed, Trust, UntrustedKey
from openshelf.errors import OpenshelfError

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Catalog:
    """A catalog as a node meets it: a key, and where it is."""

    def __init__(self, folder: Path, loopback: bool = False, name: str = "key") -> None:
        self.key = SigningKey.load_or_create(folder / f"{name}.pem")
        self.loopback = loopback

    def public_key(self) -> bytes:
        return self.key.public_bytes

    def is_loopback(self) -> bool:
        return self.loopback

    def head(self, serial: int, epoch: int = 1, expires: datetime = NOW + timedelta(hours=1)) -> Signed:
        return self.odd_head({"serial": serial, "epoch": epoch, "expires": expires.isoformat()})

    def odd_head(self, change: dict[str, Any]) -> Signed:
        document = {
            "epoch": 1,
            "serial": 6,
            "issued": "2026-03-01T12:00:00Z",
            "expires": "2026-03-01T13:00:00Z",
            "object_hosts": ["store.example:9000"],
        }
        return self.key.sign("feed-head", document | change)

    def event(self, serial: int, epoch: int = 1, kind: str = "published", **more: Any) -> Signed:
        return self.key.sign("feed-event", {"epoch": epoch, "serial": serial, "type": kind, "at": "…"} | more)

    def snapshot(self, serial: int, epoch: int = 1) -> Signed:
        return self.key.sign("feed-snapshot", {"epoch": epoch, "serial": serial, "releases": [], "tags": []})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path)


@pytest.fixture
def trust(tmp_path: Path, catalog: Catalog) -> Trust:
    """A node that has accepted the snapshot of serial 5."""
    trust = Trust(tmp_path / "trust.json")
    trust.bootstrap(catalog, catalog_key=catalog.key.fingerprint)
    trust.accept_head(catalog.head(5))
    trust.accept_snapshot(catalog.snapshot(5))
    return trust


def test_a_token_vouches_for_the_key_of_the_catalog_that_made_it(tmp_path: Path, catalog: Catalog) -> None:
    token, _ = make_token(catalog.key.public_bytes)
    trust = Trust(tmp_path / "trust.json")
    assert trust.public_key is None
    trust.bootstrap(catalog, token=token)
    assert trust.public_key == catalog.key.public_bytes


def test_a_token_of_another_catalog_does_not_vouch_even_on_loopback(tmp_path: Path, catalog: Catalog) -> None:
    token, _ = make_token(Catalog(tmp_path, name="other").key.public_bytes)
    trust = Trust(tmp_path / "trust.json")
    catalog.loopback = True
    with pytest.raises(UntrustedKey):
        trust.bootstrap(catalog, token=token)
    assert trust.public_key is None
    assert not (tmp_path / "trust.json").exists()


def test_the_fingerprint_given_decides(tmp_path: Path, catalog: Catalog) -> None:
    expected = hashlib.sha256(catalog.key.public_bytes).hexdigest()
    Trust(tmp_path / "a.json").bootstrap(catalog, catalog_key=expected.upper())
    with pytest.raises(UntrustedKey):
        Trust(tmp_path / "b.json").bootstrap(catalog, catalog_key="0" * 64)


def test_first_use_is_trusted_on_loopback_only(tmp_path: Path, catalog: Catalog) -> None:
    with pytest.raises(UntrustedKey):
        Trust(tmp_path / "a.json").bootstrap(catalog)
    catalog.loopback = True
    trust = Trust(tmp_path / "a.json")
    trust.bootstrap(catalog)
    assert trust.public_key == catalog.key.public_bytes


def test_a_known_key_is_not_replaced_by_what_the_address_shows_later(tmp_path: Path, trust: Trust) -> None:
    impostor = Catalog(tmp_path, loopback=True, name="impostor")
    before = trust.public_key
    trust.bootstrap(impostor)
    assert trust.public_key == before
    with pytest.raises(SignatureError):
        trust.accept_head(impostor.head(9))
    with pytest.raises(UntrustedKey):
        trust.bootstrap(impostor, catalog_key=impostor.key.fingerprint)


def test_everything_is_refused_before_a_key_is_known(tmp_path: Path, catalog: Catalog) -> None:
    trust = Trust(tmp_path / "trust.json")
    for accept, signed in (
        (trust.accept_head, catalog.head(1)),
        (trust.accept_event, catalog.event(1)),
        (trust.accept_snapshot, catalog.snapshot(1)),
    ):
        with pytest.raises(UntrustedKey):
            accept(signed)


def tampered(signed: Signed, **change: Any) -> Signed:
    return Signed({**signed.document, **change}, signed.signature, signed.key)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda signed: tampered(signed, serial=7),
        lambda signed: tampered(signed, type="hidden"),
        lambda signed: tampered(signed, collection="datasets/evil/one"),
        lambda signed: Signed(signed.document, "", signed.key),
        lambda signed: Signed(signed.document, "!!", signed.key),
        lambda signed: Signed(signed.document, base64.b64encode(bytes(64)).decode(), signed.key),
        lambda signed: Signed(signed.document, signed.signature, "0" * 64),
    ],
)
def test_a_tampered_event_is_refused_and_the_position_stays(
    trust: Trust, catalog: Catalog, spoil: Callable[[Signed], Signed]
) -> None:
    with pytest.raises(SignatureError):
        trust.accept_event(spoil(catalog.event(6)))
    assert trust.serial == 5
    assert trust.accept_event(catalog.event(6))["serial"] == 6


def test_a_signature_made_for_another_purpose_does_not_count(trust: Trust, catalog: Catalog) -> None:
    event = catalog.event(6)
    as_event = catalog.key.sign("release", event.document)
    with pytest.raises(SignatureError):
        trust.accept_event(as_event)


def test_a_document_signed_by_another_key_is_refused(tmp_path: Path, trust: Trust) -> None:
    other = Catalog(tmp_path, name="other")
    for accept, signed in (
        (trust.accept_head, other.head(6)),
        (trust.accept_event, other.event(6)),
        (trust.accept_snapshot, other.snapshot(6)),
    ):
        with pytest.raises(SignatureError):
            accept(signed)


def test_events_are_accepted_one_after_the_other_hidden_ones_too(trust: Trust, catalog: Catalog) -> None:
    kinds = ["published", "hidden", "tagged", "untagged", "access", "hidden", "withdrawn"]
    events = [catalog.event(6 + index, kind=kind) for index, kind in enumerate(kinds)]
    assert [event["type"] for event in trust.accept_events(events)] == kinds
    assert trust.serial == 12


def test_a_hole_is_refused_and_nothing_of_its_batch_counts(trust: Trust, catalog: Catalog) -> None:
    with pytest.raises(FeedHole, match="serial 8 where 1, 7"):
        trust.accept_events([catalog.event(6), catalog.event(8)])
    assert trust.serial == 5


@pytest.mark.parametrize(("epoch", "serial"), [(1, 5), (1, 4), (0, 6), (0, 999)])
def test_an_older_event_is_refused(trust: Trust, catalog: Catalog, epoch: int, serial: int) -> None:
    with pytest.raises(OlderFeed):
        trust.accept_event(catalog.event(serial, epoch=epoch))


def test_an_event_of_a_newer_epoch_does_not_follow(trust: Trust, catalog: Catalog) -> None:
    with pytest.raises(FeedHole):
        trust.accept_event(catalog.event(6, epoch=2))


@pytest.mark.parametrize(("epoch", "serial"), [(1, 4), (0, 100)])
def test_an_older_head_or_snapshot_is_refused(trust: Trust, catalog: Catalog, epoch: int, serial: int) -> None:
    with pytest.raises(OlderFeed):
        trust.accept_head(catalog.head(serial, epoch=epoch))
    with pytest.raises(OlderFeed):
        trust.accept_snapshot(catalog.snapshot(serial, epoch=epoch))
    assert (trust.epoch, trust.serial) == (1, 5)


def test_a_head_older_than_the_newest_head_is_refused_though_newer_than_the_position(
    trust: Trust, catalog: Catalog
) -> None:
    trust.accept_head(catalog.head(9))
    with pytest.raises(OlderFeed):
        trust.accept_head(catalog.head(8))
    assert trust.head == (1, 9)


def test_a_restored_catalog_raises_its_epoch_and_nodes_take_its_snapshot(trust: Trust, catalog: Catalog) -> None:
    assert not trust.needs_snapshot
    trust.accept_head(catalog.head(2, epoch=2))
    assert trust.needs_snapshot
    with pytest.raises(OlderFeed):
        trust.accept_snapshot(catalog.snapshot(50, epoch=1))
    trust.accept_snapshot(catalog.snapshot(2, epoch=2))
    assert (trust.epoch, trust.serial, trust.needs_snapshot) == (2, 2, False)
    trust.accept_event(catalog.event(3, epoch=2))


def test_an_expired_head_is_accepted_and_makes_the_node_stale(trust: Trust, catalog: Catalog, tmp_path: Path) -> None:
    assert not trust.is_stale(NOW)
    assert trust.is_stale(NOW + timedelta(hours=2))
    trust.accept_head(catalog.head(6, expires=NOW - timedelta(seconds=1)))
    assert trust.is_stale(NOW)
    assert Trust(tmp_path / "new.json").is_stale(NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"serial": "6"},
        {"serial": True},
        {"serial": -1},
        {"epoch": None},
        {"expires": "soon"},
        {"expires": "2026-03-01T00:00:00"},
        {"object_hosts": "store.example:9000"},
        {"object_hosts": [1]},
    ],
)
def test_a_malformed_head_is_refused_though_signed(trust: Trust, catalog: Catalog, change: dict[str, Any]) -> None:
    with pytest.raises(BadFeed):
        trust.accept_head(catalog.odd_head(change))


def test_an_event_of_an_unknown_type_is_refused(trust: Trust, catalog: Catalog) -> None:
    with pytest.raises(BadFeed):
        trust.accept_event(catalog.event(6, kind="erased"))


def test_a_key_event_signed_by_the_old_key_hands_over_to_the_new_one(
    trust: Trust, catalog: Catalog, tmp_path: Path
) -> None:
    successor = Catalog(tmp_path, name="successor")
    new_key = base64.b64encode(successor.key.public_bytes).decode()
    with pytest.raises(SignatureError):
        trust.accept_event(successor.event(6, kind="key", public_key=new_key))
    trust.accept_events([catalog.event(6, kind="key", public_key=new_key), successor.event(7)])
    assert trust.public_key == successor.key.public_bytes
    with pytest.raises(SignatureError):
        trust.accept_event(catalog.event(8))
    trust.accept_head(successor.head(7))
    assert Trust(tmp_path / "trust.json").public_key == successor.key.public_bytes


@pytest.mark.parametrize("public_key", [None, "", "short", base64.b64encode(bytes(31)).decode()])
def test_a_key_event_without_a_key_is_refused(trust: Trust, catalog: Catalog, public_key: str | None) -> None:
    with pytest.raises(SignatureError):
        trust.accept_event(catalog.event(6, kind="key", public_key=public_key))


def test_what_was_seen_survives_a_restart(trust: Trust, catalog: Catalog, tmp_path: Path) -> None:
    trust.accept_head(catalog.head(9))
    trust.accept_event(catalog.event(6))
    again = Trust(tmp_path / "trust.json")
    assert (again.epoch, again.serial, again.head, again.public_key) == (1, 6, (1, 9), catalog.key.public_bytes)
    assert again.object_hosts == {"store.example:9000"}
    with pytest.raises(OlderFeed):
        again.accept_head(catalog.head(8))
    assert stat.S_IMODE((tmp_path / "trust.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"version": 2}', '{"version": 1, "serial": "5"}', '{"version": 1, "public_key": "xx"}',
     '{"version": 1, "more": 1}', '{"version": 1, "expires": "soon"}'],
)  # fmt: skip
def test_a_damaged_trust_file_is_an_error_and_not_a_new_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trust.json"
    path.write_text(content)
    with pytest.raises(OpenshelfError) as caught:
        Trust(path)
    assert caught.value.code == "bad_trust"
    assert path.read_text() == content


def test_the_file_is_json_that_an_operator_can_read(trust: Trust, tmp_path: Path) -> None:
    stored = json.loads((tmp_path / "trust.json").read_text())
    assert (stored["version"], stored["epoch"], stored["serial"]) == (1, 1, 5)
