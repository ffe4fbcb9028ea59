"""How a package names its commands without importing them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal["Ingest", "Review", "Catalog", "Mount", "Operate"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command of ``openshelf``: shown in ``--help`` from here, imported only when it is called.

    ``target`` is ``module:attribute``; the attribute is a function with Typer parameters or a ``typer.Typer``
    (for a command with sub-commands).
    """

    name: str
    summary: str
    target: str
    group: Group
