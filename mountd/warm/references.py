"""What an operator names to be brought: a release by version or tag, all of it or what is below one of its folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from catalog.names import KINDS, Collection, is_name, parse_collection
from openshelf.errors import UsageError


@dataclass(frozen=True, slots=True)
class Reference:
    """A release by version or tag, and a path inside it (empty: all of it)."""

    collection: Collection
    name: str
    below: str = ""

    def __str__(self) -> str:
        return f"{self.collection}@{self.name}" + (f"/{self.below}" if self.below else "")


def parse_reference(text: str, mountpoints: tuple[Path, ...] = ()) -> Reference:
    """``COLLECTION@VERSION``, ``COLLECTION@TAG``, or a path below the mount, each with or without a path inside.

    ``mountpoints`` are the names by which the mount may be called. The mount itself is not touched.
    """
    named = text.removeprefix("openshelf://")
    if text.startswith((".", "/")):
        named = _inside(os.path.abspath(text), mountpoints)  # noqa: PTH100 (resolving would ask the mount)
    folder, _, rest = named.partition("/")
    namespace, _, rest = rest.partition("/")
    collection, _, rest = rest.partition("/")
    if "@" in collection:
        collection, _, name = collection.partition("@")
    else:
        name, _, rest = rest.partition("/")
    if folder not in KINDS or not is_name(name):
        raise UsageError(
            "bad_release",
            f"{text!r} names no release",
            "Write COLLECTION@VERSION, e.g. datasets/belle/chat@1.0 or datasets/belle/chat@latest, or a path to it.",
        )
    return Reference(parse_collection(f"{folder}/{namespace}/{collection}"), name, rest.strip("/"))


def _inside(path: str, mountpoints: tuple[Path, ...]) -> str:
    for mountpoint in mountpoints:
        if path.startswith(f"{mountpoint}/"):
            return path[len(str(mountpoint)) + 1 :]
    raise UsageError(
        "not_below_mount",
        f"{path} does not lie below the mount {mountpoints[0] if mountpoints else ''}".rstrip(),
        "Name a release as datasets/belle/chat@1.0, or a path below DIR.",
    )
