"""How a mount behaves beyond where it is and what it caches: flags, then ``OPENSHELF_*``, then ``[mount]`` of
``openshelf.toml``, then these defaults.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from openshelf.errors import UsageError
from openshelf.units import GIB, MIB, parse_size

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "fill": ("eager", "lazy"),
    "ledger": ("best-effort", "required"),
    "withdraw": ("drain", "revoke"),
    "materialise": ("yes", "no"),
}
_SIZES = frozenset({"free_bytes", "memory_bytes"})


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one mount; plain values, so that they travel to the daemon as JSON."""

    more_caches: tuple[str, ...] = ()
    """Further folders, on other disks, for the cache's objects."""
    cache_files: int = 0
    """Most files in the cache; 0: as many as leave a tenth of the disk's inodes free."""
    free_bytes: int = 2 * GIB
    """What is always left free on a cache's disk, capped at a tenth of the disk."""
    fill: Literal["eager", "lazy"] = "eager"
    """Whether reading any part of a file fetches the rest in the background."""
    materialise: Literal["yes", "no"] = "yes"
    """Whether complete releases become trees of hard links that the node's own file system serves."""
    ledger: Literal["best-effort", "required"] = "best-effort"
    """``required`` switches off what an open could get past the access ledger by (materialised releases)."""
    withdraw: Literal["drain", "revoke"] = "drain"
    """What happens to open files of a withdrawn release: they go on, or they end."""
    proxies: str = ""
    """Site caches before the catalog: ``http://a:3128|http://b:3128;DIRECT``."""
    bandwidth: str = ""
    """Most bytes a second from the network, by time of day if wanted: ``08:00-20:00=200M,1G``. Empty: no limit."""
    memory_bytes: int = 1024 * MIB
    """Memory limit of the worker."""
    groups: str = ""
    """File that maps restricted collections to group ids."""
    node: str = ""
    """The node's name in usage and confirmations; empty: the host's name."""
    metrics: str = ""
    """``HOST:PORT`` where Prometheus text is served; empty: nowhere."""

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Options:
        """The options from what :func:`dataclasses.asdict` made of them, in this or another version (an upgrade in
        place): what is unknown here is left out, what is new has its default."""
        known = {field.name for field in dataclasses.fields(cls)}
        found = {name: value for name, value in given.items() if name in known}
        return cls(**{**found, "more_caches": tuple(given.get("more_caches", ()))})


def load(flags: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Options:
    """Options from ``flags`` (None: not given), the environment, the settings file and the defaults, in that order."""
    env = os.environ if environ is None else environ
    stored = _stored(Path(env.get("OPENSHELF_CONFIG", "openshelf.toml")))
    chosen: dict[str, Any] = {}
    for field in dataclasses.fields(Options):
        name = field.name
        for value in (flags.get(name), env.get(f"OPENSHELF_{name.upper()}"), stored.get(name)):
            if value not in (None, "", ()):
                chosen[name] = _parsed(name, field.default, value)
                break
    return Options(**chosen)


def _stored(path: Path) -> Mapping[str, object]:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("mount", {}) if path.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError("bad_config", f"{path} is not valid TOML: {error}", "Correct the file.") from error
    known = {field.name for field in dataclasses.fields(Options)}
    unknown = sorted(set(table) - known) if isinstance(table, dict) else ["mount"]
    if unknown:
        raise UsageError(
            "bad_config", f"{path} has an unknown setting mount.{unknown[0]}", f"Known are {', '.join(sorted(known))}."
        )
    return dict(table)


def _parsed(name: str, default: object, value: object) -> object:
    """A value of the field's type; UsageError names the setting."""
    if name == "more_caches":
        names = value.split(os.pathsep) if isinstance(value, str) else value
        if isinstance(names, list | tuple) and all(isinstance(each, str) and each for each in names):
            return tuple(names)
        raise _bad(name, value, "paths")
    if name in _SIZES:
        return value if isinstance(value, int) else parse_size(str(value))
    if name in _CHOICES:
        text = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        if text not in _CHOICES[name]:
            raise _bad(name, value, " or ".join(_CHOICES[name]))
        return text
    if isinstance(default, int):
        try:
            number = int(str(value))
        except ValueError:
            number = -1
        if number < 0:
            raise _bad(name, value, "a whole number, 0 or more")
        return number
    return str(value)


def _bad(name: str, value: object, wanted: str) -> UsageError:
    return UsageError("bad_option", f"The mount option {name} is {value!r}", f"It must be {wanted}.")
