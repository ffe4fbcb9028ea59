"""Which group of the node may enter a restricted collection: the mapping file.

One collection a line, then the group by name or number; ``#`` begins a comment:

    datasets/belle/private   nlp-team
    datasets/hospital/*      5012

A line for a collection counts before the one for its namespace. A restricted collection that no line names is root's.
"""

from __future__ import annotations

import grp
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from catalog.names import KINDS, Collection, is_name
from openshelf.errors import UsageError

_MOST_BYTES = 1 << 20
_NO_GROUP = 0xFFFFFFFF
"""``(gid_t) -1``: no group has it."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Group ids by collection (``kind/namespace/name``) or namespace (``kind/namespace/*``)."""

    ids: Mapping[str, int] = field(default_factory=dict)

    def gid(self, collection: Collection) -> int:
        """The group that may enter the collection; 0: only root."""
        whole = f"{collection.folder}/{collection.namespace}/*"
        return self.ids.get(str(collection), self.ids.get(whole, 0))


def read_groups(path: str) -> Groups:
    """The groups in the mapping file at ``path`` (empty: none). UsageError names file, line and what is wrong."""
    if not path:
        return Groups()
    try:
        with Path(path).open("rb") as source:
            stored = source.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from error
    if len(stored) > _MOST_BYTES:
        raise _bad(path, "is larger than 1 MiB")
    ids: dict[str, int] = {}
    for number, line in enumerate(stored.decode("utf-8", "replace").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        at = f"line {number}"
        if len(words) != 2:
            raise _bad(path, f"{at} is not a collection and a group")
        name, group = words
        if not _is_place(name):
            raise _bad(path, f"{at}: {name!r} is neither a collection nor a namespace with /* behind it")
        if name in ids:
            raise _bad(path, f"{at}: {name!r} stands there twice")
        ids[name] = _group_id(path, at, group)
    return Groups(ids)


def _is_place(text: str) -> bool:
    parts = text.split("/")
    return len(parts) == 3 and parts[0] in KINDS and is_name(parts[1]) and (parts[2] == "*" or is_name(parts[2]))


def _group_id(path: str, at: str, group: str) -> int:
    if group.isascii() and group.isdecimal():
        gid = int(group)
        if gid >= _NO_GROUP:
            raise _bad(path, f"{at}: {group} is no group id")
        return gid
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise _bad(path, f"{at}: this node has no group {group!r}") from None


def _bad(path: str, what: str) -> UsageError:
    return UsageError(
        "bad_groups",
        f"The mapping file {path} of groups {what}",
        "Write lines such as 'datasets/belle/private nlp-team'; docs/operators.md shows one.",
    )
