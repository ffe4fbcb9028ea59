"""The access list: which files a job opened, in order, as JSON lines that people keep in git.

The first line is ``{"openshelf_access_list": 1, "releases": ["datasets/belle/chat@1.0", …]}``. Every further line is a
file: ``{"in": 0, "path": "data/train.parquet"}`` with the place of its release in the first line, in the order of first
opens. ``"chunks": [[0, 3], [17, 18]]`` says that only these 4 MiB chunks of it were read (from, up to); without it the
whole file is meant. Nothing else is in it: no node, no user, no time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from catalog.names import InvalidPath, ReleaseRef, check_path, parse_release
from openshelf.errors import UsageError

VERSION = 1
_KEY = "openshelf_access_list"

Ranges = tuple[tuple[int, int], ...]
"""Chunks from, up to, in order."""


@dataclass(frozen=True, slots=True)
class Access:
    """A file of a release; ``chunks`` None: all of it."""

    release: ReleaseRef
    path: str
    chunks: Ranges | None = None


def to_lines(accesses: Sequence[Access]) -> Iterator[str]:
    """The document, line by line, each without its end."""
    releases = list(dict.fromkeys(access.release for access in accesses))
    places = {release: place for place, release in enumerate(releases)}
    yield json.dumps({_KEY: VERSION, "releases": [str(release) for release in releases]})
    for access in accesses:
        line: dict[str, object] = {"in": places[access.release], "path": access.path}
        if access.chunks is not None:
            line["chunks"] = access.chunks
        yield json.dumps(line, ensure_ascii=False)


def from_lines(lines: Iterable[str | bytes]) -> Iterator[Access]:
    """The files of a document. UsageError names the line that is wrong."""
    releases: list[ReleaseRef] | None = None
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            if releases is None:
                if line[_KEY] != VERSION:
                    raise UsageError(
                        "access_list_version",
                        f"The access list has version {line[_KEY]!r}; this openshelf reads version {VERSION}",
                        "Record it again.",
                    )
                releases = [parse_release(name) for name in line["releases"]]
                continue
            check_path(line["path"])
            place = line["in"]
            if not 0 <= place < len(releases):
                raise IndexError(place)
            yield Access(releases[place], line["path"], _ranges(line.get("chunks")))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, InvalidPath) as error:
            raise UsageError(
                "bad_access_list",
                f"Line {number} of the access list cannot be understood",
                "It must be as `openshelf warm DIR --record FILE` writes it.",
            ) from error
    if releases is None:
        raise UsageError("bad_access_list", "The access list is empty", "Record one: openshelf warm DIR --record FILE")


def _ranges(given: object) -> Ranges | None:
    if given is None:
        return None
    if not isinstance(given, list):
        raise TypeError(given)
    ranges = tuple((int(start), int(stop)) for start, stop in given)
    if any(start < 0 or stop <= start for start, stop in ranges):
        raise ValueError(given)
    return ranges
