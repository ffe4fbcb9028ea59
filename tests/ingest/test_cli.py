from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from openshelf.__main__ import run
from tests.ingest.conftest import write_jsonl
from tests.support.catalog_server import RunningCatalog

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(
    catalog: RunningCatalog,
    curator: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    """Run ``openshelf ingest`` in this process with a curator's environment."""
    monkeypatch.setenv("OPENSHELF_CATALOG", catalog.url)
    monkeypatch.setenv("OPENSHELF_TOKEN", curator)
    monkeypatch.setenv("OPENSHELF_DATA", str(tmp_path / "client"))
    monkeypatch.chdir(tmp_path)

    def go(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["ingest", *arguments])
        out, err = capsys.readouterr()
        lines = [line for line in out.splitlines() if "request_id=" not in line]
        return code, "\n".join(lines), err

    return go


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_jsonl(
        tmp_path / "deep" / "x.jsonl", [{"text": "电话13912345678"}, {"text": "二"}, {"text": "二"}, {"no": 1}]
    )


def test_the_outcome_is_one_json_document(cli: Cli, source: Path) -> None:
    code, out, _ = cli(str(source), "--to", "datasets/cli/one", "--version", "1.0", "--licence", "mit", "--json")
    answer = json.loads(out)
    assert code == 0
    assert {
        key: answer[key] for key in ("release", "status", "state", "rows_in", "rows_out", "rejected", "duplicates")
    } == {
        "release": "datasets/cli/one@1.0",
        "status": "complete",
        "state": "sealed",
        "rows_in": 4,
        "rows_out": 2,
        "rejected": 1,
        "duplicates": 1,
    }
    assert answer["findings"] == {"mobile": 1}
    assert {"run", "files", "bytes", "seconds", "manifest_digest"} <= answer.keys()


def test_people_are_told_the_accounts_and_the_next_step(cli: Cli, source: Path) -> None:
    code, out, _ = cli(str(source), "--to", "datasets/cli/two", "--version", "1.0")
    assert code == 0
    assert "4 in = 2 out + 1 rejected + 1 duplicates" in out
    assert "openshelf submit datasets/cli/two@1.0" in out


def test_a_cut_source_exits_1_and_says_that_nothing_was_sealed(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text":"一"}\n{"text":"二', "utf-8")
    code, out, err = cli(str(path), "--to", "datasets/cli/cut", "--version", "1.0", "--json")
    assert code == 1
    assert json.loads(out)["status"] == "incomplete"
    assert "nothing was sealed" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere", "--to", "datasets/a/b", "--version", "1"], 2, "no file or folder nowhere"),
        (["--to", "datasets/a/b", "--version", "1"], 2, "No source is given"),
        (["{source}", "--to", "datasets/a", "--version", "1"], 2, "is not a collection"),
        (["{source}", "--to", "models/a/b", "--version", "1"], 2, "is not a dataset"),
        (["{source}", "--to", "datasets/a/../b", "--version", "1"], 2, "is not a collection"),
        (["{source}", "--to", "datasets/a/b", "--version", "a/b"], 2, "is not a version"),
        (["{source}", "--to", "datasets/a/b"], 2, "--version"),
        (["{source}", "--to", "datasets/a/b", "--version", "1", "--licence", "Apache-2"], 2, "Apache-2.0"),
        (["{source}", "--to", "datasets/a/b", "--version", "1", "--recipe", "none.yaml"], 2, "cannot be read"),
        (["{odd}", "--to", "datasets/a/b", "--version", "1"], 2, "no suffix that ingest reads"),
        (["{damaged}", "--to", "datasets/a/b", "--version", "1"], 1, "not a readable Parquet file"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(
    cli: Cli, source: Path, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    (tmp_path / "x.docx").write_bytes(b"x")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 but not really")
    names = {"source": source, "odd": tmp_path / "x.docx", "damaged": tmp_path / "x.parquet"}
    got, out, err = cli(*(argument.format(**names) for argument in arguments))
    assert (got, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_no_token_a_wrong_token_and_no_catalog_are_told_apart(
    cli: Cli, source: Path, monkeypatch: pytest.MonkeyPatch, curator: str
) -> None:
    arguments = (str(source), "--to", "datasets/cli/none", "--version", "1.0", "--json")
    wrong = curator[:-4] + ("AAAA" if curator[-4:] != "AAAA" else "BBBB")
    monkeypatch.setenv("OPENSHELF_TOKEN", wrong)
    _, _, err = cli(*arguments)
    assert wrong not in err
    code_wrong = json.loads(err)["error"]["code"]
    monkeypatch.delenv("OPENSHELF_TOKEN")
    _, _, err = cli(*arguments)
    assert json.loads(err)["error"]["code"] == "no_token"
    assert code_wrong != "no_token"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OPENSHELF_TOKEN", curator)
        monkeypatch.setenv("OPENSHELF_CATALOG", f"http://127.0.0.1:{unused.getsockname()[1]}")
        code, _, err = cli(*arguments)
    assert code == 1
    assert json.loads(err)["error"]["code"] == "catalog_unreachable"


def test_an_unreadable_file_is_named(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.symlink_to("/proc/self/mem")
    code, _, err = cli(str(path), "--to", "datasets/cli/unreadable", "--version", "1")
    assert code == 1
    assert "cannot be read" in err
    assert os.fspath(path) in err


def test_sources_and_policy_come_from_the_recipe_beside_it(cli: Cli, source: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "deep" / "recipe.yaml"
    recipe.write_text(
        "sources: x.jsonl\npolicy: mine.yaml\nlicence: CC-BY-4.0\ndate: 2024-05-06\ntitle: 配方\n", "utf-8"
    )
    (tmp_path / "deep" / "mine.yaml").write_text("name: mine\nentities: {mobile: mask}\n", "utf-8")
    code, out, err = cli("--recipe", str(recipe), "--to", "datasets/cli/recipe", "--version", "1", "--json")
    assert code == 0, err
    folder = Path(json.loads(out)["run_folder"])
    assert b"139****5678" not in (folder / "release" / "README.md").read_bytes()
    assert "策略“mine”" in (folder / "release" / "README.md").read_text("utf-8")
    assert str(tmp_path) not in (folder / "release" / "README.md").read_text("utf-8")
