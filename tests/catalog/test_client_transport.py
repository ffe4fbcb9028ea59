"""What the client makes of answers that are late, broken, short, wrong or not a catalog's."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.client import (
    BadAnswer,
    CatalogError,
    CatalogFailure,
    CatalogFull,
    CatalogUnreachable,
    Client,
    Conflict,
    DraftFile,
    Forbidden,
    InvalidRequest,
    NotFound,
    ReadFailed,
    TooManyRequests,
    Unauthorised,
)
from catalog.client.drafts import FileChanged
from catalog.names import parse_release
from catalog.token_format import BadToken
from openshelf.console import Progress
from openshelf.errors import OpenshelfError, UsageError
from tests.support.s3_server import free_ports
from tests.support.scripted_http import Asked, Reply, ScriptedServer, ranged

DIGEST = "cd" * 32
CONTENT = hashlib.shake_128(b"content").digest(100_000)
REF = parse_release("datasets/belle/chat@1.0")
RELEASE = {"collection": "datasets/belle/chat", "version": "1.0", "state": "draft"}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda asked: ranged(CONTENT, asked)) as running:
        yield running


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[Client]:
    with Client(server.url, None, timeout_s=5) as opened:
        yield opened


def problem(status: int, **body: object) -> Reply:
    return Reply(status, {"Content-Type": "application/problem+json"}, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InvalidRequest), (401, Unauthorised), (403, Forbidden), (404, NotFound), (409, Conflict),
     (410, NotFound), (413, InvalidRequest), (422, InvalidRequest), (429, TooManyRequests), (500, CatalogFailure),
     (507, CatalogFull), (418, InvalidRequest), (599, CatalogFailure)],
)  # fmt: skip
def test_a_problem_becomes_the_error_with_the_catalogs_own_words(
    server: ScriptedServer, client: Client, status: int, kind: type[CatalogError]
) -> None:
    server.answer = lambda _: problem(status, title="t", detail="What happened", code="its_code", hint="Do this.")
    with pytest.raises(kind) as caught:
        client.release("datasets/belle/chat@1.0")
    error = caught.value
    assert (error.code, error.message, error.hint, error.status) == ("its_code", "What happened", "Do this.", status)
    assert len(server.asked) == 1


def test_a_page_that_is_no_problem_document_is_not_shown(server: ScriptedServer, client: Client) -> None:
    server.answer = lambda _: Reply(404, {"Content-Type": "text/html"}, b"<html>proxy page</html>")
    with pytest.raises(NotFound) as caught:
        client.whoami()
    assert "proxy page" not in caught.value.line()
    assert server.url in caught.value.line()


def test_control_characters_of_a_problem_are_not_shown(server: ScriptedServer, client: Client) -> None:
    server.answer = lambda _: problem(404, detail="a\x1b[31m\nb\u202e", code="x", hint=7)
    with pytest.raises(NotFound) as caught:
        client.whoami()
    assert caught.value.line().isprintable()


@pytest.mark.parametrize("status", [502, 503, 504])
def test_what_may_be_repeated_is_repeated_until_it_works(server: ScriptedServer, client: Client, status: int) -> None:
    replies = iter([Reply(status), Reply(status), Reply(200, {}, b'{"name": "lin", "role": "curator"}')])
    server.answer = lambda _: next(replies)
    assert client.whoami()["name"] == "lin"
    assert len(server.asked) == 3


def test_repeating_ends(server: ScriptedServer, client: Client) -> None:
    server.answer = lambda _: Reply(503)
    began = time.monotonic()
    with pytest.raises(CatalogFailure):
        client.whoami()
    assert len(server.asked) == 4
    assert time.monotonic() - began < 5


def test_a_step_that_may_have_been_taken_is_not_repeated(server: ScriptedServer, client: Client) -> None:
    server.answer = lambda _: Reply(503)
    with pytest.raises(CatalogFailure):
        client.publish(REF)
    server.answer = lambda _: Reply(200, {}, b'{"state"', cut_after=3)
    with pytest.raises(CatalogUnreachable):
        client.publish(REF)
    assert len(server.asked) == 2


def test_nobody_listening_is_said_with_the_address(server: ScriptedServer) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with Client(url, None) as client, pytest.raises(CatalogUnreachable) as caught:
        client.whoami()
    assert url in caught.value.line()
    assert "refused" in caught.value.line()


def test_a_catalog_that_says_nothing_is_given_up(server: ScriptedServer) -> None:
    def slow(_: Asked) -> Reply:
        time.sleep(0.5)
        return Reply(200, {}, b"{}")

    server.answer = slow
    with Client(server.url, None, timeout_s=0.1) as client, pytest.raises(CatalogUnreachable, match="timed out"):
        client.whoami()


def test_an_unknown_host_is_said_so() -> None:
    with Client("http://catalog.invalid", None) as client, pytest.raises(CatalogUnreachable):
        client.whoami()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"<html>", b"\xff"])
def test_an_answer_that_is_no_json_object_is_not_a_catalogs(
    server: ScriptedServer, client: Client, body: bytes
) -> None:
    server.answer = lambda _: Reply(200, {}, body)
    with pytest.raises(BadAnswer):
        client.whoami()


@pytest.mark.parametrize("body", [{}, {"state": "draft"}, {**RELEASE, "version": "../x"}, {**RELEASE, "files": "many"}])
def test_a_release_that_lacks_what_it_must_have_is_refused(
    server: ScriptedServer, client: Client, body: dict[str, object]
) -> None:
    server.answer = lambda _: Reply(200, {}, json.dumps(body).encode())
    with pytest.raises(OpenshelfError) as caught:
        client.release(REF)
    assert caught.value.code == "bad_answer"


def test_only_object_reads_follow_a_redirect(server: ScriptedServer, client: Client) -> None:
    server.answer = lambda _: Reply(307, {"Location": "/elsewhere"})
    with pytest.raises(BadAnswer):
        client.whoami()
    assert len(server.asked) == 1


@pytest.mark.parametrize("url", ["", "catalog", "ftp://x", "http://", "http://user:pass@host", "http://host/?a=b"])
def test_an_address_that_is_no_catalog_is_wrong_usage(url: str) -> None:
    with pytest.raises(UsageError):
        Client(url, None)


@pytest.mark.parametrize("token", ["a b", "a\nb", "令牌"])
def test_a_token_that_cannot_travel_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(BadToken) as caught:
        Client("http://host", token)
    assert token not in caught.value.line()


def test_a_read_that_breaks_off_goes_on_where_it_stopped(server: ScriptedServer, client: Client) -> None:
    def answer(asked: Asked) -> Reply:
        reply = ranged(CONTENT, asked)
        reply.cut_after = 40_000 if len(server.asked) < 3 else None
        return reply

    server.answer = answer
    assert client.read_object(DIGEST, 10, 90_000) == CONTENT[10:90_010]
    assert [asked.headers["range"] for asked in server.asked] == [
        "bytes=10-90009",
        "bytes=40010-90009",
        "bytes=80010-90009",
    ]


def test_a_read_that_always_breaks_off_fails_and_gives_no_bytes(server: ScriptedServer, client: Client) -> None:
    def answer(asked: Asked) -> Reply:
        reply = ranged(CONTENT, asked)
        reply.cut_after = 0
        return reply

    server.answer = answer
    with pytest.raises(ReadFailed, match="early"):
        client.read_object(DIGEST, 0, 1000)
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, {}, CONTENT),
        Reply(206, {}, CONTENT[100:200]),
        Reply(206, {"Content-Range": "bytes 0-99/100000"}, CONTENT[:100]),
        Reply(206, {"Content-Range": "bytes 100-150/151"}, CONTENT[100:151]),
        Reply(206, {"Content-Range": "bytes 100-199/100000", "Content-Encoding": "gzip"}, CONTENT[100:200]),
        Reply(204),
    ],
)
def test_an_answer_that_is_not_the_range_asked_for_is_an_error(
    server: ScriptedServer, client: Client, reply: Reply
) -> None:
    server.answer = lambda _: reply
    with pytest.raises(ReadFailed):
        client.read_object(DIGEST, 100, 100)


def test_a_read_into_a_buffer_fills_exactly_it(server: ScriptedServer, client: Client) -> None:
    buffer = bytearray(b"." * 300)
    assert client.read_object_into(DIGEST, 1000, memoryview(buffer)[100:200]) == 100
    assert bytes(buffer) == b"." * 100 + CONTENT[1000:1100] + b"." * 100
    assert client.read_object_into(DIGEST, 0, memoryview(b"")) == 0


def test_a_manifest_is_fetched_whole_and_verified(server: ScriptedServer, client: Client, tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        reply = ranged(CONTENT, asked)
        reply.cut_after = 30_000 if len(server.asked) < 4 else None
        return reply

    server.answer = answer
    client.download_manifest(hashlib.sha256(CONTENT).hexdigest(), tmp_path / "m.arrow")
    assert (tmp_path / "m.arrow").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["m.arrow"]


def test_a_manifest_of_other_bytes_is_refused_and_leaves_nothing(
    server: ScriptedServer, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(ReadFailed):
        client.download_manifest(DIGEST, tmp_path / "m.arrow")
    assert list(tmp_path.iterdir()) == []


class Counted(Progress):
    total = 0

    def advance(self, amount: int) -> None:
        self.total += amount

    def describe(self, text: str) -> None:
        raise AssertionError(text)


def test_an_upload_is_sent_again_from_its_beginning_when_the_catalog_is_busy(
    server: ScriptedServer, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT * 30)
    digest = hashlib.sha256(CONTENT * 30).hexdigest()
    done = Reply(200, {}, json.dumps({"sha256": digest, "size": len(CONTENT) * 30}).encode())
    replies = iter([Reply(503), done])
    server.answer = lambda _: next(replies)
    progress = Counted()
    uploaded = client.upload(REF, path, progress=progress)
    assert (uploaded.sha256, uploaded.size, progress.total) == (digest, 3_000_000, 3_000_000)
    assert [asked.body == CONTENT * 30 for asked in server.asked] == [True, True]
    assert server.asked[0].path == f"/v1/collections/datasets/belle/chat/releases/1.0/objects/{digest}"
    assert server.asked[0].headers["content-length"] == "3000000"


def test_a_file_that_grows_while_it_is_sent_is_an_error(
    server: ScriptedServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)

    class Growing(Counted):
        def advance(self, amount: int) -> None:
            with path.open("ab") as sink:
                sink.write(b"more")

    with pytest.raises(FileChanged):
        client.upload(REF, path, progress=Growing())


def test_an_upload_that_the_catalog_stored_otherwise_is_an_error(
    server: ScriptedServer, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    server.answer = lambda _: Reply(200, {}, json.dumps({"sha256": DIGEST, "size": 1}).encode())
    with pytest.raises(BadAnswer):
        client.upload(REF, path)


def test_missing_is_asked_in_portions(server: ScriptedServer, client: Client) -> None:
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(25_000)]

    def answer(asked: Asked) -> Reply:
        return Reply(200, {}, json.dumps({"missing": json.loads(asked.body)["digests"][:1]}).encode())

    server.answer = answer
    assert client.missing(REF, digests) == {digests[0], digests[10_000], digests[20_000]}
    assert client.missing(REF, []) == set()


def test_the_files_of_a_seal_travel_as_an_arrow_stream(server: ScriptedServer, client: Client) -> None:
    import pyarrow as pa

    server.answer = lambda _: Reply(200, {}, json.dumps(RELEASE).encode())
    client.seal(REF, [DraftFile("data/诗.txt", DIGEST, 5), DraftFile("run.sh", "00" * 32, -1, 0o555)])
    table = pa.ipc.open_stream(server.asked[0].body).read_all()
    assert table.to_pydict() == {
        "path": ["data/诗.txt", "run.sh"],
        "sha256": [bytes.fromhex(DIGEST), bytes(32)],
        "mode": [0o444, 0o555],
        "mtime_ns": [5, -1],
    }


def test_pages_are_followed_by_their_cursor_and_never_to_another_host(server: ScriptedServer, client: Client) -> None:
    def answer(asked: Asked) -> Reply:
        page = int(asked.path.partition("cursor=")[2] or 0)
        files = [{"path": f"{page}-{at}", "size": 1, "sha256": DIGEST} for at in range(2)]
        link = {"Link": f'<http://evil.example/steal?cursor={page + 1}>; rel="next"'} if page < 2 else {}
        return Reply(200, link, json.dumps({"files": files}).encode())

    server.answer = answer
    assert [file.path for file in client.files(REF)] == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert [file.path for file in client.files(REF, limit=3)] == ["0-0", "0-1", "1-0"]
