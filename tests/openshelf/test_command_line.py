from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

OPENSHELF = str(Path(sys.executable).with_name("openshelf"))
DESIGNED = {
    "serve", "token", "ingest", "scan", "submit", "approve", "reject", "publish", "withdraw", "tag", "show", "search",
    "pull", "mount", "umount", "status", "verify",
}  # fmt: skip


def call(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [OPENSHELF, *arguments], capture_output=True, text=True, check=False, env=os.environ | (env or {})
    )


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", OPENSHELF, "--help"], capture_output=True, text=True, check=True
    )
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert listed >= DESIGNED
    imported = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert not imported & {"typer", "click", "rich", "pyarrow", "fastapi", "sqlalchemy", "boto3", "numpy", "urllib3"}


def test_every_command_has_help_with_an_example() -> None:
    for command in sorted(DESIGNED):
        done = call(command, "--help")
        assert done.returncode == 0, done.stderr
        assert f"openshelf {command}" in done.stdout, f"{command} --help shows no example"
        assert command == "token" or "--json" in done.stdout or command == "serve", f"{command} has no --json"


def test_no_command_prints_the_help_and_is_wrong_usage() -> None:
    done = call()
    assert done.returncode == 2
    assert done.stdout.startswith("Usage: openshelf")


def test_an_unknown_command_is_one_line_with_the_nearest_name() -> None:
    done = call("ingset")
    assert done.returncode == 2
    assert done.stderr == "openshelf: There is no command 'ingset'. Did you mean `openshelf ingest`?\n"


def test_errors_are_json_when_json_is_asked_for() -> None:
    done = call("show", "nonsense", "--json", env={"OPENSHELF_TOKEN": "x"})
    assert done.returncode == 2
    assert json.loads(done.stderr)["error"]["code"] == "bad_release"


def test_version() -> None:
    from openshelf import __version__

    assert call("--version").stdout == f"openshelf {__version__}\n"


def test_completion_is_offered_for_the_commands() -> None:
    done = call(env={"_OPENSHELF_COMPLETE": "complete_bash", "COMP_WORDS": "openshelf pub", "COMP_CWORD": "1"})
    assert "publish" in done.stdout


def test_a_command_whose_extra_is_not_installed_says_which_package_is_missing(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError(\"No module named 'uvicorn'\", name='uvicorn')")
    done = call("serve", "--data", str(tmp_path / "data"), env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr == (
        "openshelf: `openshelf serve` needs the Python package 'uvicorn', which is not installed."
        " Install it with: pip install 'openshelf[all]'.\n"
    )
