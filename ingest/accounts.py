"""The accounts of a run: rows in = rows out + rejected + duplicates, for every file, every split and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingest.dedup import duplicates_of
from ingest.parts import Part
from ingest.plan import Plan, Split
from openshelf.errors import OpenshelfError


class RowsLost(OpenshelfError):
    """Rows came in and are in no account."""

    def __init__(self, what: str, rows_in: int, rows_out: int, rejected: int, duplicates: int) -> None:
        super().__init__(
            "rows_lost",
            f"{what}: {rows_in} rows in, but {rows_out} out, {rejected} rejected and {duplicates} duplicates",
            "This is a fault of openshelf; nothing was sealed. Please report it.",
        )


@dataclass(frozen=True, slots=True)
class Account:
    """Rows of one file, one split, or the run."""

    name: str
    rows_in: int
    rows_out: int
    rejected: Mapping[str, int]
    duplicates: int

    @property
    def rejected_rows(self) -> int:
        """Rejected rows of all reasons."""
        return sum(self.rejected.values())

    def check(self) -> None:
        """Raise :class:`RowsLost` unless the account adds up."""
        if self.rows_in != self.rows_out + self.rejected_rows + self.duplicates:
            raise RowsLost(self.name, self.rows_in, self.rows_out, self.rejected_rows, self.duplicates)


def by_file(plan: Plan, bundles: Sequence[Sequence[Split]], parts: Sequence[Part], scratch: Path) -> list[Account]:
    """One account a file, in plan order. ``parts`` go with ``bundles``; ``scratch`` tells their duplicates."""
    rows_in, made, repeated = ([0] * len(plan.files) for _ in range(3))
    rejected: list[Counter[str]] = [Counter() for _ in plan.files]
    for number, (bundle, part) in enumerate(zip(bundles, parts, strict=True)):
        borders = np.cumsum([0, *(member.rows for member in part.members)])
        found = np.diff(np.searchsorted(duplicates_of(scratch, number), borders)).tolist()
        for split, member, duplicates in zip(bundle, part.members, found, strict=True):
            rows_in[split.file] += member.rows_in
            made[split.file] += member.rows
            repeated[split.file] += duplicates
            rejected[split.file].update(member.rejected)
    accounts = [
        Account(file.label, rows_in[at], made[at] - repeated[at], dict(sorted(rejected[at].items())), repeated[at])
        for at, file in enumerate(plan.files)
    ]
    for account in accounts:
        account.check()
    return accounts


def total(name: str, accounts: Sequence[Account], rows_out: int) -> Account:
    """The account of several together, where ``rows_out`` was counted independently, in the written shards."""
    rejected: Counter[str] = Counter()
    for account in accounts:
        rejected.update(account.rejected)
    whole = Account(
        name,
        sum(account.rows_in for account in accounts),
        rows_out,
        dict(sorted(rejected.items())),
        sum(account.duplicates for account in accounts),
    )
    whole.check()
    return whole
