"""Settings: flags, then environment ``OPENSHELF_*``, then ``openshelf.toml``, then defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openshelf.errors import UsageError

DEFAULT_CATALOG = "http://127.0.0.1:8420"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the catalog is, who we are, and where the client keeps its runs."""

    catalog: str
    token: str | None
    data: Path

    def require_token(self) -> str:
        """The token, or an error that says how to set one."""
        if not self.token:
            raise UsageError(
                "no_token",
                "No token is set for the catalog",
                "Ask an administrator for one and set OPENSHELF_TOKEN; a catalog of your own has an administrator's in"
                " DATA/admin.token.",
            )
        return self.token


def default_data(environ: Mapping[str, str]) -> Path:
    """The run folder when nothing else is said: ``$XDG_DATA_HOME/openshelf`` or ``~/.local/share/openshelf``."""
    base = environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "openshelf"


def load(
    *,
    catalog: str | None = None,
    token: str | None = None,
    data: Path | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Settings from flags (the arguments), the environment, ``openshelf.toml`` and defaults, in that order."""
    env = os.environ if environ is None else environ
    path = file or Path(env.get("OPENSHELF_CONFIG", "openshelf.toml"))
    stored: dict[str, object] = {}
    if path.is_file():
        try:
            stored = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError("bad_config", f"{path} is not valid TOML: {error}", "Correct the file.") from error
    unknown = sorted(set(stored) - {"catalog", "token", "data", "mount"})
    if unknown:
        raise UsageError(
            "bad_config", f"{path} has an unknown setting {unknown[0]!r}", "Known are catalog, token, data, [mount]."
        )

    def pick(flag: str | None, name: str) -> str | None:
        value = flag or env.get(f"OPENSHELF_{name.upper()}") or stored.get(name)
        return None if value is None else str(value)

    folder = pick(str(data) if data else None, "data")
    return Settings(
        catalog=(pick(catalog, "catalog") or DEFAULT_CATALOG).rstrip("/"),
        token=pick(token, "token"),
        data=Path(folder).expanduser() if folder else default_data(env),
    )
