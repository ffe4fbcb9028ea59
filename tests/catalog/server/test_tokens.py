"""Tokens: who may make them, what is kept of them, when they end."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import stat
from datetime import UTC, datetime, timedelta

import pytest

from catalog.token_format import make_token
from tests.support.catalog_api import Api, People
from tests.support.catalog_server import RunningCatalog


def test_the_first_start_writes_a_token_that_only_its_owner_can_read(people: People, catalog: RunningCatalog) -> None:
    path = catalog.data / "admin.token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert re.fullmatch(r"osk_[A-Za-z0-9_-]{22}_[A-Za-z0-9_-]{43}", path.read_text())
    assert people.administrator.ok("GET", "/v1/whoami")["role"] == "administrator"
    assert stat.S_IMODE((catalog.data / "catalog.key").stat().st_mode) == 0o600


def test_only_administrators_make_list_and_revoke_tokens(people: People) -> None:
    for api in (people.alice, people.bob, people.reader, people.node):
        api.refused("POST", "/v1/tokens", 403, "forbidden", {"name": "x", "role": "administrator"})
        api.refused("GET", "/v1/tokens", 403, "forbidden")
        api.refused("DELETE", "/v1/tokens/1", 403, "forbidden")
    people.nobody.refused("POST", "/v1/tokens", 401, "no_token", {"name": "x", "role": "administrator"})


def test_a_secret_is_nowhere_in_the_data_folder(people: People, catalog: RunningCatalog) -> None:
    made = people.administrator.ok("POST", "/v1/tokens", {"name": "keeper", "role": "reader"})
    with Api(catalog.url, made["token"]) as api:
        api.ok("GET", "/v1/whoami")
    secret = made["token"].rsplit("_", 1)[-1].encode()[-20:]
    searched = 0
    for path in catalog.data.rglob("*"):
        if path.is_file() and path.name != "admin.token":
            assert secret not in path.read_bytes(), path
            searched += 1
    assert searched >= 3
    assert b"keeper" in b"".join(path.read_bytes() for path in catalog.data.glob("catalog.db*"))
    assert made["token"] not in people.administrator.get("/v1/tokens").data.decode()


def test_a_revoked_token_is_useless_at_once(people: People, catalog: RunningCatalog) -> None:
    made = people.administrator.ok("POST", "/v1/tokens", {"name": "leaver", "role": "curator"})
    with Api(catalog.url, made["token"]) as api:
        assert api.ok("GET", "/v1/whoami")["name"] == "leaver"
        assert people.administrator.request("DELETE", f"/v1/tokens/{made['id']}").status == 204
        assert people.administrator.request("DELETE", f"/v1/tokens/{made['id']}").status == 204
        api.refused("GET", "/v1/whoami", 401, "revoked_token")
    listed = {item["id"]: item for item in people.administrator.ok("GET", "/v1/tokens")["tokens"]}
    assert listed[made["id"]]["revoked"] is not None
    assert listed[made["id"]]["last_used"] is not None
    people.administrator.refused("DELETE", "/v1/tokens/999999", 404, "no_token_of_id")


def test_an_expired_token_is_useless(people: People, catalog: RunningCatalog) -> None:
    expires = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    made = people.administrator.ok("POST", "/v1/tokens", {"name": "guest", "role": "reader", "expires": expires})
    with Api(catalog.url, made["token"]) as api:
        api.ok("GET", "/v1/whoami")
        with contextlib.closing(sqlite3.connect(catalog.data / "catalog.db", timeout=30)) as database, database:
            database.execute("UPDATE tokens SET expires_at = '2026-01-01T00:00:00Z' WHERE id = ?", (made["id"],))
        api.refused("GET", "/v1/whoami", 401, "expired_token")


@pytest.mark.parametrize("expires", ["2001-01-01T00:00:00Z", "tomorrow", "2999-01-01T00:00:00", ""])
def test_an_expiry_is_a_later_moment(people: People, expires: str) -> None:
    people.administrator.refused(
        "POST", "/v1/tokens", 422, "bad_expiry", {"name": "x", "role": "reader", "expires": expires}
    )


@pytest.mark.parametrize("name", ["", " x", "a\nb", "x" * 65, "\x00"])
def test_a_principal_has_a_printable_name(people: People, name: str) -> None:
    people.administrator.refused("POST", "/v1/tokens", 422, "invalid_request", {"name": name, "role": "reader"})


def test_tokens_that_are_wrong_say_in_what_way(people: People, catalog: RunningCatalog) -> None:
    foreign, _ = make_token(b"k" * 32)
    valid = catalog.token("prober", "reader")
    altered = valid[:-2] + ("A" if valid[-2] != "A" else "B") + valid[-1]
    for token, code in (("nonsense", "bad_token"), (foreign, "foreign_token"), (altered, "unknown_token")):
        with Api(catalog.url, token) as api:
            answer = api.get("/v1/whoami")
            assert (answer.status, answer.json()["code"]) == (401, code)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert token not in answer.data.decode()


def test_names_that_differ_only_in_case_or_width_are_one_principal(people: People) -> None:
    first = people.administrator.ok("POST", "/v1/tokens", {"name": "Dana", "role": "curator"})
    second = people.administrator.ok("POST", "/v1/tokens", {"name": "ｄａｎａ", "role": "auditor"})
    assert first["name"] == second["name"] == "Dana"
