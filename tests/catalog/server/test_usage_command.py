"""``openshelf usage``, ``withdraw --wait`` and ``show`` of a withdrawn release, as people read them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable

import pytest

from openshelf.__main__ import run
from tests.support.catalog_api import People, release_path

Call = Callable[..., tuple[int, str, str]]
JOB = {"kind": "slurm", "name": "4711.0", "claimed": {"SLURM_JOB_ID": "4711"}}


@pytest.fixture
def call(people: People, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command line as the administrator: exit code, output, errors."""
    monkeypatch.setenv("OPENSHELF_CATALOG", people.catalog.url)
    monkeypatch.setenv("OPENSHELF_TOKEN", people.catalog.admin_token)

    def called(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


@pytest.fixture
def used(people: People, ref: str) -> str:
    """A published release that a job has opened on ``gpu-1``."""
    people.publish(ref, {"a": b"x"})
    record = {
        "record": secrets.token_hex(16),
        "release": ref,
        "job": JOB,
        "uid": 1000,
        "first": "2026-03-01T10:00:00Z",
        "last": "2026-03-01T11:00:00Z",
        "opens": 10,
        "files": 3,
        "bytes_declared": 3 << 30,
        "exact": False,
    }
    people.node.ok("POST", "/v1/usage", {"node": "gpu-1", "feed_serial": 0, "unrecorded": 2, "records": [record]})
    return ref


def confirm(people: People, ref: str, open_files: int) -> None:
    holder = {"pid": 42, "uid": 1000, "job": JOB, "files": 1}
    people.node.ok(
        "POST",
        "/v1/nodes/confirmations",
        {
            "node": "gpu-1",
            "release": ref,
            "policy": "drain",
            "done": "2026-03-01T12:00:00Z",
            "objects_removed": 3,
            "bytes_removed": 1024,
            "open_files": open_files,
            "holders": [holder] if open_files else [],
        },
    )


def test_records_are_a_table_in_which_claims_and_minima_are_marked(call: Call, used: str) -> None:
    code, out, _ = call("usage", used)
    head, line = out.splitlines()
    assert code == 0
    assert head.split() == ["last", "open", "node", "job", "uid", "opens", "files", "bytes", "release"]
    assert "slurm:4711.0 (claims SLURM_JOB_ID=4711)" in line
    assert line.split()[-8:] == ["1000", "10", "≥", "3", "≥", "3", "GiB", used]
    code, out, err = call("usage", used.partition("@")[0], "--by", "job")
    assert (code, out.splitlines()[1].split()[0]) == (0, "slurm:4711.0")
    assert "2 opens on all nodes are known to be missing" in err
    code, out, _ = call("usage", used, "--json")
    assert json.loads(out)["records"][0]["job"]["claimed"] == {"SLURM_JOB_ID": "4711"}


def test_the_time_may_be_a_date_or_an_age(call: Call, used: str) -> None:
    assert len(call("usage", used, "--since", "2026-03-01")[1].splitlines()) == 2
    for since in ("2099-01-01", "2026-03-01T11:00:01Z"):
        code, out, err = call("usage", used, "--since", since)
        assert (code, out, err) == (0, "", "Nothing was reported.\n")
    for since in ("9w", "0001-01-01"):
        assert call("usage", used, "--since", since)[0] == 0


@pytest.mark.parametrize(
    "wrong", [["nonsense"], ["a@b@c"], ["--since", "yesterday"], ["--withdrawal"], ["--withdrawal", "nonsense"]]
)
def test_wrong_use_is_one_line(call: Call, wrong: list[str]) -> None:
    code, out, err = call("usage", *wrong)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_withdrawal_is_followed_until_it_is_carried_out(call: Call, people: People, used: str) -> None:
    assert call("usage", "--withdrawal", used)[0] == 1
    code, out, err = call("withdraw", used, "--reason", "takedown", "--wait", "1")
    assert (code, "state     withdrawn" in out) == (1, True)
    assert "1 have not" in err
    confirm(people, used, open_files=1)
    for command in (("usage", "--withdrawal", used), ("show", used)):
        code, out, _ = call(*command)
        assert code == 0
        assert "files are still open on 1" in out
        assert "pid 42, uid 1000, slurm:4711.0: 1 files" in out
    confirm(people, used, open_files=0)
    code, out, _ = call("show", used, "--json")
    assert [each["open_files"] for each in json.loads(out)["withdrawal"]["confirmations"]] == [0]
    assert "0 have not, files are still open on 0" in call("usage", "--withdrawal", used)[1]


def test_withdrawing_with_revoke_demands_it_of_every_node(call: Call, people: People, used: str) -> None:
    people.node.ok("POST", "/v1/usage", {"node": "gpu-1", "feed_serial": 2**40, "unrecorded": 0, "records": []})
    code, out, _ = call("withdraw", used, "--reason", "takedown", "--revoke", "--wait", "5", "--json")
    assert code == 0
    assert json.loads(out)["withdrawal"]["outstanding"] == []
    serial = people.node.ok("GET", "/v1/feed/head")["document"]["serial"]
    [signed] = people.node.ok("GET", f"/v1/feed?after={serial - 1}")["events"]
    assert signed["document"]["policy"] == "revoke"
    assert people.bob.ok("GET", release_path(used, "confirmations"))["release"] == used
