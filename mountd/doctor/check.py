"""One check of the doctor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """``found`` is what there is, ``fix`` one line of what to do (empty when all is well). ``warn``: it works, but less
    well than it could; ``fail``: a mount will not work."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def judge(name: str, well: bool, found: str, fix: str, *, otherwise: Verdict = "warn") -> Check:
    """A check that is ok when ``well``, else ``otherwise`` with its ``fix``."""
    return Check(name, "ok", found) if well else Check(name, otherwise, found, fix)
