"""Why we believe that a licence applies: what was seen, where, by whom, when."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from openshelf.errors import OpenshelfError

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SCHEME = re.compile(r"https?://[^\s/]+(?:/\S*)?")


class EvidenceError(OpenshelfError):
    """A piece of licence evidence is malformed or shows nothing."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__("bad_evidence", message, hint)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One piece of evidence: at least a URL or the SHA-256 of a file that was read.

    ``file`` is a path inside the corpus, ``recognised`` the SPDX identifier that the file's text was recognised as,
    ``reviewer`` a principal's name, ``reviewed`` an ISO date, ``files`` the glob of data files it covers.
    """

    url: str = ""
    file: str = ""
    sha256: str = ""
    recognised: str = ""
    reviewer: str = ""
    reviewed: str = ""
    note: str = ""
    files: str = "**"

    def __post_init__(self) -> None:
        if not self.url and not self.sha256:
            raise EvidenceError(
                "Licence evidence names neither a URL nor a file's digest", "Give url or file with sha256."
            )
        if self.url and not _SCHEME.fullmatch(self.url):
            raise EvidenceError(f"{self.url!r} is not an http(s) URL", "Give the page on which the licence was read.")
        if self.sha256 and not _DIGEST.fullmatch(self.sha256):
            raise EvidenceError(
                "The evidence's sha256 is not 64 lower-case hexadecimal digits", "Use sha256sum's output."
            )
        if self.reviewed:
            try:
                date.fromisoformat(self.reviewed)
            except ValueError as error:
                raise EvidenceError(f"{self.reviewed!r} is not an ISO date", "Write it like 2026-11-30.") from error

    @classmethod
    def from_document(cls, document: object) -> Evidence:
        """Read a mapping of this class's fields; :class:`EvidenceError` for anything else."""
        known = cls.__dataclass_fields__
        if not isinstance(document, dict) or not all(
            key in known and isinstance(value, str) for key, value in document.items()
        ):
            raise EvidenceError("Licence evidence is a mapping of texts", f"Known keys: {', '.join(known)}.")
        return cls(**document)

    def to_document(self) -> dict[str, Any]:
        """The fields that say something."""
        return {key: value for key, value in asdict(self).items() if value}
