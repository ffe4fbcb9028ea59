"""The accounts of a run: rows in = rows out + rejected + duplicates, for every file, every split and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ingest.parts import Part
from ingest.plan import Plan
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


def by_file(plan: Plan, parts: Sequence[Part], duplicates: Sequence[int]) -> list[Account]:
    """One account a file, in plan order. ``parts`` and ``duplicates`` go with the plan's splits."""
    accounts: list[Account] = []
    for number, file in enumerate(plan.files):
        own = [index for index, split in enumerate(plan.splits) if split.file == number]
        rejected: Counter[str] = Counter()
        for index in own:
            rejected.update(parts[index].rejected)
        repeated = sum(duplicates[index] for index in own)
        made = sum(parts[index].rows for index in own)
        read = sum(parts[index].rows_in for index in own)
        accounts.append(Account(file.label, read, made - repeated, dict(sorted(rejected.items())), repeated))
        accounts[-1].check()
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
