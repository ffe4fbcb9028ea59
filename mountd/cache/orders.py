"""What the worker does for ``openshelf pin``, ``evict``, ``cache ls`` and ``cache verify``.

Each is given release names and reports objects: ``{"done": …, "total": …, "unit": …}`` on the way, the outcome last.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from catalog.names import ReleaseRef
from mountd.cache.columns import columns, keys_and_blocks, sealed_keys, share
from mountd.cache.guard import Keys, among, keys_of
from mountd.cache.store import Cache
from mountd.cache.verify import verify_sealed
from mountd.interfaces import Work
from mountd.releases import ListedRelease
from mountd.tree import MountTree
from mountd.warm.references import parse_reference
from mountd.warm.selection import resolve
from openshelf.errors import OpenshelfError, UsageError
from openshelf.units import MIB, format_size

Report = Mapping[str, Any]
_REMOVED_AT_ONCE = 256
_REPORT_BYTES = 64 * MIB


class CacheOrders:
    """The commands of one mount's cache. ``tier`` says how a release is served now, empty when that is not known."""

    def __init__(self, cache: Cache, tree: MountTree, tier: Callable[[ReleaseRef], str]) -> None:
        self._cache = cache
        self._tree = tree
        self._tier = tier

    def work(self) -> dict[str, Work]:
        """The commands by name."""
        return {
            "pin": _told(self.pin),
            "pins": _told(self.pins),
            "evict": _told(self.evict),
            "cache-ls": _told(self.show),
            "cache-verify": _told(self.verify),
        }

    # -- pins

    def pin(self, arguments: Mapping[str, Any]) -> Iterator[Report]:
        """Pin the releases, or with ``remove`` unpin them. OpenshelfError with figures when they could not fit."""
        if arguments.get("remove"):
            for text in arguments["releases"]:
                if not self._cache.pins.remove(self._pinned_name(text)):
                    raise OpenshelfError("not_pinned", f"{text} is not pinned", "See: openshelf pin DIR")
        else:
            self._add([self._release(text) for text in arguments["releases"]])
        yield from self.pins({})

    def _pinned_name(self, text: str) -> str:
        """A pinned release by its name, also when it is no longer listed."""
        return text if text in self._cache.pins.all() else str(self._release(text).ref)

    def _add(self, releases: Iterable[ListedRelease]) -> None:
        pins = self._cache.pins
        wanted = {str(each.ref): each.manifest_digest for each in releases}
        need = pins.need({**pins.all(), **wanted})
        most, files = self._cache.room.available_bytes(), self._cache.room.limits.files
        named = ", ".join(wanted)
        if need.size_bytes > most:
            before = pins.need(pins.all()).size_bytes
            raise OpenshelfError(
                "pin_too_large",
                f"{named} cannot be pinned: with what is pinned ({format_size(before)}) it takes "
                f"{format_size(need.size_bytes)} of the {format_size(most)} that the cache may hold",
                "Unpin something (openshelf pin DIR --remove REF), or mount with a larger --cache-size.",
            )
        if files and need.files > files - self._cache.room.own_files:
            raise OpenshelfError(
                "pin_too_many_files",
                f"{named} cannot be pinned: with what is pinned it has {need.files} files of the {files} that the cache"
                " may hold",
                "Unpin something, or raise cache_files.",
            )
        for release, digest in wanted.items():
            pins.add(release, digest)

    def pins(self, _: Mapping[str, Any]) -> Iterator[Report]:
        """All pins, and how much of each is here."""
        pinned, sealed = self._cache.pins.all(), sealed_keys(self._cache.index)
        rows = []
        for release, digest in pinned.items():
            path = self._cache.layout.manifest_path(digest)
            figures = asdict(share(path, digest, sealed)) if path.exists() else None
            rows.append({"release": release, "listed": figures is not None, **(figures or {})})
        need = self._cache.pins.need(pinned)
        yield {"pins": rows, "pinned_bytes": need.size_bytes, "available_bytes": self._cache.room.available_bytes()}

    # -- evict

    def evict(self, arguments: Mapping[str, Any]) -> Iterator[Report]:
        """Remove what the cache has of the releases (``all``: of all that are not pinned), but for what others that are
        pinned or protected share, and what is open."""
        pinned = self._cache.pins.all()
        if arguments.get("all"):
            releases = [each for each in self._tree.listed() if str(each.ref) not in pinned]
        else:
            releases = [self._release(text) for text in arguments["releases"]]
            for each in releases:
                if str(each.ref) in pinned:
                    raise OpenshelfError(
                        "pinned", f"{each.ref} is pinned", f"Unpin it first: openshelf pin DIR --remove {each.ref}"
                    )
        self._restore_pins()
        cached = _cached_keys(self._cache)
        outcome = {"files": 0, "bytes": 0, "open": 0, "shared": 0}
        for number, listed in enumerate(releases):
            for told in list(self._cache.before_removal):
                told(listed.ref)
            self._evict_one(listed, cached, outcome)
            yield {"done": number + 1, "total": len(releases), "unit": "releases"}
        yield {"releases": [str(each.ref) for each in releases], **outcome}

    def _evict_one(self, listed: ListedRelease, cached: Keys, outcome: dict[str, int]) -> None:
        room = self._cache.room
        for digests, _ in columns(self._cache.layout.manifest_path(listed.manifest_digest), listed.manifest_digest):
            keys = keys_of(digests)
            here = among(keys, cached)
            kept = room.guard.covers(keys)
            outcome["shared"] += int((here & kept).sum())
            going = [digest.tobytes() for digest in digests[here & ~kept]]
            outcome["open"] += sum(room.is_held(sha256) for sha256 in going)
            for start in range(0, len(going), _REMOVED_AT_ONCE):
                files, size = room.discard_rows(going[start : start + _REMOVED_AT_ONCE])
                outcome["files"] += files
                outcome["bytes"] += size

    def _restore_pins(self) -> None:
        """Before the first eviction the pinned digests have not been read yet."""
        room = self._cache.room
        with room.lock:
            if room.before_first_eviction is not None:
                room.before_first_eviction()
                room.before_first_eviction = None

    # -- ls, verify

    def show(self, arguments: Mapping[str, Any]) -> Iterator[Report]:
        """Per release: files and bytes, and of those what is complete in the cache; tier; whether it is pinned."""
        releases = self._chosen(arguments)
        sealed, pinned = sealed_keys(self._cache.index), self._cache.pins.all()
        rows = []
        for number, listed in enumerate(releases):
            digest = listed.manifest_digest
            figures = share(self._cache.layout.manifest_path(digest), digest, sealed)
            rows.append(
                {
                    "release": str(listed.ref),
                    **asdict(figures),
                    "tier": self._tier(listed.ref),
                    "pinned": str(listed.ref) in pinned,
                }
            )
            yield {"done": number + 1, "total": len(releases), "unit": "releases"}
        room = self._cache.room
        yield {
            "releases": rows,
            "used_bytes": self._cache.used_bytes,
            "limit_bytes": self._cache.limit_bytes,
            "used_files": self._cache.used_files,
            "limit_files": room.limits.files,
            "disks": [{"folder": str(disk.root), "out": disk.out} for disk in self._cache.layout.disks]
            + [{"folder": str(disk.root), "out": disk.out} for disk in self._cache.layout.disks.out()],
        }

    def verify(self, arguments: Mapping[str, Any]) -> Iterator[Report]:
        """Hash the sealed files (of the releases, else all) again; damaged ones are removed."""
        keys, total = self._keys(arguments)
        outcome: dict[str, Any] = {"files": 0, "bytes": 0, "damaged": []}
        told = 0
        for verdict in verify_sealed(self._cache, keys):
            outcome["files"] += 1
            outcome["bytes"] += verdict.disk_bytes
            if not verdict.intact:
                outcome["damaged"].append(verdict.sha256.hex())
            if outcome["bytes"] - told >= _REPORT_BYTES:
                told = outcome["bytes"]
                yield {"done": told, "total": max(total, told), "unit": "bytes"}
        yield outcome

    def _keys(self, arguments: Mapping[str, Any]) -> tuple[Keys | None, int]:
        """The keys of the releases to be verified (None: all there is), and about how many bytes that is."""
        if not arguments.get("releases"):
            return None, self._cache.total_bytes
        sealed = sealed_keys(self._cache.index)
        parts, total = [], 0
        for listed in self._chosen(arguments):
            digest = listed.manifest_digest
            keys, blocks = keys_and_blocks(self._cache.layout.manifest_path(digest), digest)
            here = among(keys, sealed)
            parts.append(keys[here])
            total += int(blocks[here].sum())
        return np.unique(np.concatenate(parts)), total

    # -- releases

    def _chosen(self, arguments: Mapping[str, Any]) -> list[ListedRelease]:
        named = arguments.get("releases")
        found = [self._release(text) for text in named] if named else self._tree.listed()
        return sorted(found, key=lambda listed: str(listed.ref))

    def _release(self, text: str) -> ListedRelease:
        reference = parse_reference(text)
        if reference.below:
            raise UsageError("bad_release", f"{text!r} names a part of a release", "Name the whole release.")
        found = self._tree.release(resolve(self._tree, reference))
        assert found is not None
        return found.listed


def _cached_keys(cache: Cache) -> Keys:
    """What is in the cache, complete or in part, sorted."""
    partial = np.frombuffer(b"".join(sha256[:8] for sha256 in list(cache.room.partial_bytes)), ">u8").astype(np.uint64)
    return np.union1d(sealed_keys(cache.index), partial)


def _told(command: Callable[[Mapping[str, Any]], Iterator[Report]]) -> Work:
    """The command, with a failing index as an error that says so."""

    def carried_out(arguments: Mapping[str, Any]) -> Iterator[Report]:
        try:
            yield from command(arguments)
        except sqlite3.Error as error:
            raise OpenshelfError(
                "cache_index", f"The cache's index cannot be read: {error}", "Check the cache's disk."
            ) from error

    return carried_out
