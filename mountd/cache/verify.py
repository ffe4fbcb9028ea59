"""Hashing sealed files again: what the disk has damaged is found and removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from catalog.manifest import sha256_of
from mountd.cache.store import Cache


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sealed file: its name says its SHA-256, ``intact`` whether its bytes still have it."""

    sha256: bytes
    intact: bool


def verify_sealed(cache: Cache) -> Iterator[Verdict]:
    """Hash every sealed file; a damaged one is removed, so that it is fetched again at its next use."""
    for sha256 in list(cache.sealed_files()):
        path = cache.layout.object_path(sha256)
        try:
            intact = sha256_of(path) == sha256
        except FileNotFoundError:
            continue
        except OSError as error:
            cache.note_failure(error)
            intact = False
        if not intact:
            cache.discard(sha256)
        yield Verdict(sha256, intact)
