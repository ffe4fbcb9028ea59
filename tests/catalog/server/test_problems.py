"""Every error is a problem document; nothing leaks; OpenAPI describes it all."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from openapi_spec_validator import validate

from catalog.objects import health
from tests.support.catalog_api import People, about_of, release_path
from tests.support.catalog_server import RunningCatalog

FIELDS = {"type", "title", "status", "detail", "code", "hint", "instance"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("GET", "/v1/collections/", None, 404),
        ("POST", "/v1/whoami", b"", 405),
        ("GET", "/v1/collections/datasets/a/b/releases/1.0", None, 404),
        ("GET", "/v1/collections/datasets/a/b", None, 404),
        ("GET", "/v1/collections/films/a/b", None, 400),
        ("GET", "/v1/collections/datasets/-a/b", None, 400),
        ("GET", "/v1/collections/datasets/a/b/releases/%2e%2e", None, 400),
        ("GET", "/v1/collections?limit=0", None, 422),
        ("GET", "/v1/collections?limit=x", None, 422),
        ("GET", "/v1/collections?cursor=%ff", None, 400),
        ("GET", "/v1/search?cursor=LTE", None, 400),
        ("POST", "/v1/tokens", b"{", 422),
        ("POST", "/v1/tokens", b'{"name": "x", "role": "king"}', 422),
        ("POST", "/v1/tokens", b'{"name": "x", "role": "reader", "more": 1}', 422),
        ("POST", "/v1/tokens", b"[" * 100_000, 400),
        ("PUT", "/v1/collections/datasets/a/b/releases/1.0", b'{"created": "yesterday"}', 422),
        ("DELETE", "/v1/tokens/x", None, 422),
    ],
)
def test_every_error_is_a_problem_with_a_request_id(
    people: People, method: str, path: str, body: bytes | None, status: int
) -> None:
    answer = people.administrator.request(method, path, body=body, headers={"Content-Type": "application/json"})
    problem = answer.json()
    assert answer.status == status, answer.data
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert set(problem) >= FIELDS
    assert problem["status"] == status
    assert problem["instance"].endswith(answer.headers["X-Request-Id"])
    assert re.fullmatch(r"[a-z0-9_]+", problem["code"])


def test_a_method_that_is_not_allowed_names_those_that_are(people: People) -> None:
    assert people.reader.request("POST", "/v1/whoami").headers["Allow"] == "GET"


def test_a_validation_error_names_the_field_and_not_the_value(people: People) -> None:
    problem = people.alice.refused(
        "PUT", release_path("datasets/a/b@1"), 422, "invalid_request", about_of(created="13800138000")
    )
    assert problem["errors"][0]["field"] == "body.created"
    assert "13800138000" not in json.dumps(problem)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_json_body_has_a_limit(people: People, chunked: bool) -> None:
    body = b'{"name": "' + b"x" * (17 << 20) + b'"}'
    sent: Any = iter([body[at : at + 65536] for at in range(0, len(body), 65536)]) if chunked else body
    answer = people.administrator.request("POST", "/v1/tokens", body=sent)
    assert (answer.status, answer.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "\u202e", "'; DROP TABLE releases; --", "\n\r\t"])
def test_odd_texts_are_kept_or_refused_but_never_break_anything(people: People, ref: str, text: str) -> None:
    answer = people.alice.request("PUT", release_path(ref), json_body=about_of(title=text))
    assert answer.status in (200, 422), answer.data
    evidence = people.alice.request("PUT", release_path(ref), json_body=about_of(licence_evidence=[{"note": text}]))
    assert evidence.status in (200, 422), evidence.data
    people.alice.draft(ref, {"a": b"x"})
    people.alice.ok("POST", release_path(ref, "submit"))
    reason = people.bob.request("POST", release_path(ref, "reject"), json_body={"reason": text})
    assert reason.status in (200, 422), reason.data
    assert people.reader.get("/v1/search?q=" + "".join(f"%{byte:02x}" for byte in b"\xff\x00'")).status in (200, 422)
    assert people.bob.ok("GET", "/v1/ledger/verification")["intact"] is True


def test_a_failure_is_answered_without_its_details_and_logged_with_the_request_id(
    people: People, catalog: RunningCatalog, ref: str, capfd: pytest.CaptureFixture[str]
) -> None:
    published = people.publish(ref, {"a": b"will be lost"})
    digest = people.reader.ok("GET", release_path(ref, "files"))["files"][0]["sha256"]
    objects = catalog.data / "objects" / "sha256"
    next(objects.rglob(digest)).unlink()
    answer = people.reader.get(f"/v1/objects/{digest}")
    assert (answer.status, answer.json()["code"]) == (500, "object_missing")
    manifest = catalog.data / "manifests" / f"{published['manifest_digest']}.arrow"
    manifest.unlink()
    assert people.reader.get(f"/v1/manifests/{published['manifest_digest']}").status == 200
    assert manifest.exists()
    capfd.readouterr()


def test_a_given_request_id_is_kept_when_it_is_plain(people: People) -> None:
    given = people.reader.get("/v1/whoami", X_Request_Id="trace-0123456789")
    assert given.headers["X-Request-Id"] == "trace-0123456789"
    odd = people.reader.get("/v1/whoami", X_Request_Id="a b;c")
    assert re.fullmatch(r"[0-9a-f]{32}", odd.headers["X-Request-Id"])


def test_health_readiness_and_metrics_need_no_token_and_name_nobody(people: People, ref: str) -> None:
    people.publish(ref, {"a": b"metrics"})
    assert people.nobody.ok("GET", "/healthz") == {"status": "ok"}
    assert people.nobody.ok("GET", "/readyz") == {"status": "ok"}
    text = people.nobody.get("/metrics").data.decode()
    assert 'route="/v1/collections/{folder}/{namespace}/{name}/releases/{version}/publish"' in text
    assert "catalog_feed_serial" in text
    for private in ("alice", ref.split("/")[1], "osk_"):
        assert private not in text


WORDS = [
    ("withdraw", {"reason_code": "Take Down"}, "The reason code must be a short code of lower-case letters,"),
    ("withdraw", {}, "The reason code is missing"),
    ("withdraw", [], "The request's body must be a JSON object"),
    ("withdraw", None, "The request's body is missing"),
    ("withdraw", {"reason_code": "x", "note": "n" * 2001}, "The note is over 2000 characters"),
    ("reject", {"reason": ""}, "The reason must not be empty"),
    ("reject", {"reason": "x", "more": 1}, "The more is not known to this catalog"),
    ("approve", {"manifest_digest": "x"}, "The manifest digest must be a SHA-256 in 64 lower-case hexadecimal digits"),
    ("missing", {"digests": ["x"]}, "Entry 1 of the digests must be a SHA-256 in 64 lower-case hexadecimal digits"),
]


@pytest.mark.parametrize(("step", "body", "detail"), WORDS)
def test_a_wrong_field_is_said_in_plain_words(people: People, ref: str, step: str, body: object, detail: str) -> None:
    problem = people.alice.refused("POST", release_path(ref, step), 422, "invalid_request", body)
    assert problem["detail"].startswith(detail)


@pytest.mark.parametrize(
    ("about", "detail"),
    [
        ({"created": "2026-13-01T00:00:00Z"}, "The date must be a time like 2026-01-31T00:00:00Z"),
        ({"title": "x" * 301}, "The title is over 300 characters"),
        ({"rows": -1}, "The rows must be at least 0"),
        ({"rows": "many"}, "The rows must be a whole number"),
        ({"title": 7}, "The title must be text"),
        ({"source_urls": ["a", "u" * 2001]}, "Entry 2 of the source urls is over 2000 characters"),
        ({"facets": {"language": ["x" * 65]}}, "Entry 1 of the facets, language is over 64 characters"),
        ({"residency": "cn"}, "The residency must be a list"),
        ({"facets": []}, "The facets must be an object"),
    ],
)
def test_what_is_wrong_with_a_draft_is_said_in_plain_words(
    people: People, ref: str, about: dict[str, object], detail: str
) -> None:
    problem = people.alice.refused("PUT", release_path(ref), 422, "invalid_request", about_of(**about))
    assert problem["detail"] == detail


def test_a_store_that_does_not_answer_is_not_ready_and_is_asked_again(
    people: People, catalog: RunningCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = catalog.data / "objects"
    away = objects.rename(catalog.data / "objects.away")
    try:
        assert people.nobody.ok("GET", "/readyz") == {"status": "ok"}, "asked a moment ago"
        monkeypatch.setattr(health, "ASKED_EVERY_S", 0.0)
        problem = people.nobody.refused("GET", "/readyz", 503, "store_unavailable")
        assert str(catalog.data) not in json.dumps(problem)
        assert people.nobody.ok("GET", "/healthz") == {"status": "ok"}
    finally:
        away.rename(objects)
    assert people.nobody.ok("GET", "/readyz") == {"status": "ok"}


@pytest.fixture(scope="module")
def openapi(people: People) -> dict[str, Any]:
    document: dict[str, Any] = people.nobody.ok("GET", "/v1/openapi.json")
    return document


def test_openapi_is_valid(openapi: dict[str, Any]) -> None:
    assert openapi["openapi"].startswith("3.1")
    validate(openapi)


OPEN_PATHS = {"/healthz", "/readyz", "/metrics", "/v1/key"}


def test_openapi_documents_every_operation_with_its_errors_and_security(openapi: dict[str, Any]) -> None:
    names: list[str] = []
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            names.append(operation["operationId"])
            assert operation["summary"] and operation["description"], (method, path)
            secured = bool(operation.get("security"))
            assert secured == (path not in OPEN_PATHS), (method, path)
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)
    assert len(names) == len(set(names)) >= 35


def test_openapi_documents_every_path_of_the_service(openapi: dict[str, Any]) -> None:
    release = "/v1/collections/{folder}/{namespace}/{name}/releases/{version}"
    steps = ("submit", "approve", "reject", "return", "publish", "withdraw", "missing", "seal")
    expected = {f"{release}/{step}" for step in steps} | {
        "/v1/tokens",
        "/v1/whoami",
        "/v1/collections",
        "/v1/search",
        release,
        f"{release}/files",
        f"{release}/release.json",
        f"{release}/report",
        f"{release}/attachments",
        f"{release}/attachments/{{attachment}}",
        f"{release}/objects/{{sha256}}",
        "/v1/objects/{sha256}",
        "/v1/manifests/{digest}",
        "/v1/feed",
        "/v1/feed/head",
        "/v1/feed/snapshot",
        "/v1/ledger",
        "/v1/key",
        "/v1/usage",
        "/v1/usage/groups",
        "/v1/nodes/confirmations",
        f"{release}/confirmations",
    }
    assert expected <= set(openapi["paths"])
