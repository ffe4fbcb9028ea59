"""The command line: ``openshelf``.

``--help`` is printed from the packages' command tables alone, with no import of Typer, Rich or pyarrow (Typer takes
longer to import than the whole answer should). A command's own module is imported when that command is called.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from openshelf import __version__
from openshelf.commands import Command
from openshelf.errors import OpenshelfError

if TYPE_CHECKING:
    import typer

_COMPLETION_FLAGS = ("--install-completion", "--show-completion")
_OWN_PACKAGES = frozenset({"openshelf", "compliance", "catalog", "ingest", "mountd"})


def load_commands() -> list[Command]:
    """Every command of the installed packages, from the entry-point group ``openshelf.commands``."""
    found: list[Command] = []
    for point in sorted(entry_points(group="openshelf.commands"), key=lambda point: point.name):
        found.extend(point.load())
    return found


def help_text(commands: Sequence[Command]) -> str:
    """The text of ``openshelf --help``."""
    width = max(len(command.name) for command in commands)
    lines = [
        "Usage: openshelf COMMAND [ARGS]…",
        "",
        "Openshelf 开架: dataset hosting for a GPU cloud. Corpora in, reviewed and signed releases out,",
        "read at the speed of the node's own disk under /public.",
    ]
    for group in ("Ingest", "Review", "Catalog", "Mount", "Operate"):
        members = [command for command in commands if command.group == group]
        if members:
            lines += ["", f"{group}:"] + [f"  {command.name:<{width}}  {command.summary}" for command in members]
    lines += [
        "",
        "Examples:",
        "  openshelf serve --data /srv/openshelf",
        "  openshelf ingest chat.jsonl --to datasets/belle/chat --version 1.0 --licence Apache-2.0",
        "  openshelf submit datasets/belle/chat@1.0",
        "  openshelf mount /public --cache /nvme/openshelf --cache-size 500G",
        "",
        "Each command has its own --help. Settings: OPENSHELF_CATALOG, OPENSHELF_TOKEN, OPENSHELF_DATA,",
        "or openshelf.toml. Completion: openshelf --install-completion. Exit codes: 0 done, 1 failed, 2 usage.",
    ]
    return "\n".join(lines)


def _resolve(target: str) -> object:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def build_app(commands: Sequence[Command]) -> typer.Typer:
    """A Typer application holding ``commands``, whose modules are imported now."""
    import typer

    app = typer.Typer(name="openshelf", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.callback()
    def root() -> None:
        """Openshelf 开架: dataset hosting for a GPU cloud."""

    for command in commands:
        target = _resolve(command.target)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=command.name, help=command.summary)
        elif callable(target):
            app.command(command.name, short_help=command.summary)(target)
    return app


def _report(error: OpenshelfError, as_json: bool) -> int:
    if as_json:
        body = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
        print(json.dumps(body, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"openshelf: {error.line()}", file=sys.stderr)
    return error.exit_code


def _nearest(name: str, commands: Sequence[Command]) -> str:
    import difflib

    close = difflib.get_close_matches(name, [command.name for command in commands], n=1)
    return f"Did you mean `openshelf {close[0]}`?" if close else "See `openshelf --help`."


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    commands = load_commands()
    if "_OPENSHELF_COMPLETE" in os.environ or (arguments and arguments[0].split("=")[0] in _COMPLETION_FLAGS):
        build_app(commands)(list(arguments), prog_name="openshelf")
        return 0
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(help_text(commands))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"openshelf {__version__}")
        return 0
    chosen = [command for command in commands if command.name == arguments[0]]
    as_json = "--json" in arguments
    if not chosen:
        hint = _nearest(arguments[0], commands)
        return _report(_UnknownCommand("unknown_command", f"There is no command {arguments[0]!r}", hint), as_json)
    try:
        build_app(chosen)(list(arguments), prog_name="openshelf", standalone_mode=True)
    except SystemExit as stop:
        code = stop.code
        return code if isinstance(code, int) else 0 if code is None else 1
    except OpenshelfError as error:
        return _report(error, as_json)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in _OWN_PACKAGES:
            raise
        return _report(
            OpenshelfError(
                "missing_extra",
                f"`openshelf {arguments[0]}` needs the Python package {missing!r}, which is not installed",
                "Install it with: pip install 'openshelf[all]'.",
            ),
            as_json,
        )
    except KeyboardInterrupt:
        print("openshelf: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    return 0


class _UnknownCommand(OpenshelfError):
    exit_code = 2


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
