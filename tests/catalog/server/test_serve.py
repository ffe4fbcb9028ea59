"""`openshelf serve`: starting, refusing to start, stopping."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from openshelf.__main__ import run
from tests.support.catalog_api import Api, await_waiters
from tests.support.catalog_server import catalog_process, running_catalog


@dataclass(frozen=True)
class Ended:
    """What a command that ended at once left: its exit code and its lines on stderr."""

    code: int
    lines: list[str]


Serve = Callable[..., Ended]


@pytest.fixture
def serve(capsys: pytest.CaptureFixture[str]) -> Serve:
    """`openshelf serve` with arguments that it must refuse."""

    def call(*arguments: str) -> Ended:
        code = run(["serve", *arguments])
        return Ended(code, capsys.readouterr().err.splitlines())

    return call


def test_a_port_in_use_is_one_clear_line_and_makes_nothing(tmp_path: Path, serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve("--data", str(tmp_path / "data"), "--port", str(port))
    assert done.code == 1
    assert done.lines == [
        f"openshelf: Port {port} of 127.0.0.1 is in use. Stop what listens there, or choose another with --port."
    ]
    assert not (tmp_path / "data").exists()


def test_a_second_catalog_on_the_same_folder_is_refused(tmp_path: Path, serve: Serve) -> None:
    with running_catalog(tmp_path / "data") as catalog, Api(catalog.url, catalog.admin_token) as api:
        done = serve("--data", str(tmp_path / "data"), "--port", "0")
        assert (done.code, len(done.lines)) == (1, 1)
        assert "Another catalog is serving" in done.lines[0]
        assert api.get("/readyz").status == 200


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--host", "203.0.113.7"], 1),
        (["--host", "no such host"], 2),
        (["--objects", "ftp://bucket"], 2),
    ],
)
def test_what_cannot_work_is_one_clear_line(tmp_path: Path, serve: Serve, arguments: list[str], code: int) -> None:
    done = serve("--data", str(tmp_path / "data"), "--port", "0", *arguments)
    assert (done.code, len(done.lines)) == (code, 1), done.lines


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "file").write_text("")
    done = serve("--data", str(tmp_path / "file" / "data"), "--port", "0")
    assert (done.code, len(done.lines)) == (1, 1), done.lines
    assert "cannot be used" in done.lines[0]


@pytest.mark.parametrize("name", ["catalog.db", "catalog.key"])
def test_a_damaged_database_or_key_is_one_clear_line_and_stays_as_it_is(
    tmp_path: Path, serve: Serve, name: str
) -> None:
    (tmp_path / "data").mkdir()
    damaged = tmp_path / "data" / name
    damaged.write_bytes(b"this is neither a database nor a key" * 100)
    done = serve("--data", str(tmp_path / "data"), "--port", "0")
    assert (done.code, len(done.lines)) == (1, 1), done.lines
    assert str(damaged) in done.lines[0]
    assert damaged.read_bytes() == b"this is neither a database nor a key" * 100


def test_the_start_says_where_it_answers_and_a_stop_ends_those_who_wait(tmp_path: Path) -> None:
    with (
        catalog_process(tmp_path / "data", log=tmp_path / "log") as catalog,
        Api(catalog.url, catalog.admin_token) as api,
    ):
        api.ok("GET", "/v1/search?q=geheim")
        answers: list[tuple[int, object]] = []

        def wait() -> None:
            answer = api.get("/v1/feed?wait=30")
            answers.append((answer.status, answer.json()))

        thread = threading.Thread(target=wait)
        thread.start()
        await_waiters(api, 1)
        began = time.monotonic()
        assert catalog.terminate() == 0
        assert time.monotonic() - began < 15
        thread.join()
        assert answers == [(200, {"events": []})]
    log = (tmp_path / "log").read_text()
    assert f"{tmp_path / 'data' / 'admin.token'}" in log
    assert catalog.url in log
    assert catalog.admin_token not in log
    assert "geheim" not in log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["event"] == "request"]
    assert requests and all(re.fullmatch(r"[0-9a-f]{32}", line["request_id"]) for line in requests)


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    assert "openshelf serve --data /srv/openshelf" in capsys.readouterr().out
