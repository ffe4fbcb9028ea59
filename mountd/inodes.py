"""Node ids that never change: which folder, release or tag has which number, and how a number is put together.

A node id has 60 bits: a *slot* (24 bits) and a place inside it (36 bits). Slots are given out once and kept in the
append-only file ``<cache>/inodes``, one name a line, on disk before the first use; so a worker that takes over after
``kill -9`` gives the same ids. Places inside a release follow from its immutable manifest alone:

    file            1 | row of the manifest (26 bits)
    folder          0 | depth (9 bits) | first row in it (26 bits)      depth 0: the release's own folder
    release.json    1 | 1 at bit 34 | 0, and release.json.sig 1

Slot 0 holds what every mount has: the root (1), the folders of the kinds and ``.openshelf``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from openshelf.errors import OpenshelfError

PLACE_BITS = 36
FILE_BIT = 1 << 35
MADE_BIT = 1 << 34
ROW_BITS = 26
MAX_ROWS = 1 << ROW_BITS
MAX_DEPTH = 1 << 9
MAX_SLOTS = 1 << 24
_PLACE = (1 << PLACE_BITS) - 1
_ROW = MAX_ROWS - 1
_HEADER = b"openshelf inodes 1\n"


def split(nodeid: int) -> tuple[int, int]:
    """Slot and place of a node id."""
    return nodeid >> PLACE_BITS, nodeid & _PLACE


def base_id(slot: int) -> int:
    """The node id of the folder, release or tag that has the slot."""
    return slot << PLACE_BITS


def file_id(slot: int, row: int) -> int:
    """The node id of a file of a release."""
    return slot << PLACE_BITS | FILE_BIT | row


def made_id(slot: int, number: int) -> int:
    """The node id of a file that the mount makes itself."""
    return slot << PLACE_BITS | FILE_BIT | MADE_BIT | number


def folder_id(slot: int, depth: int, first_row: int) -> int:
    """The node id of a folder of a release: ``depth`` names below the release, its first file in ``first_row``."""
    return slot << PLACE_BITS | depth << ROW_BITS | first_row if depth else base_id(slot)


def folder_place(place: int) -> tuple[int, int]:
    """Depth and first row of a folder's place."""
    return place >> ROW_BITS, place & _ROW


class InodeTable:
    """The persistent slots. Thread-safe."""

    def __init__(self, path: Path, descriptor: int, slots: dict[str, int]) -> None:
        self._path = path
        self._descriptor = descriptor
        self._slots = slots
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> InodeTable:
        """Open or make the table; a line that a crash cut off was never used and is removed."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        stored = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        whole = stored[: stored.rfind(b"\n") + 1]
        if len(whole) < len(stored):
            os.ftruncate(descriptor, len(whole))
        if not whole:
            os.write(descriptor, _HEADER)
            os.fsync(descriptor)
            whole = _HEADER
        if not whole.startswith(_HEADER):
            os.close(descriptor)
            raise OpenshelfError(
                "bad_inodes", f"{path} is damaged", "Unmount, remove it, and mount again: new node ids are given."
            )
        names = whole[len(_HEADER) :].decode().splitlines()
        return cls(path, descriptor, {name: slot for slot, name in enumerate(names, 1)})

    def slots(self, names: Sequence[str]) -> list[int]:
        """The slot of each name; new ones are on disk when this returns. Names hold no line breaks."""
        with self._lock:
            fresh = [name for name in dict.fromkeys(names) if name not in self._slots]
            if fresh:
                first = len(self._slots) + 1
                if first + len(fresh) > MAX_SLOTS:
                    raise OpenshelfError(
                        "inodes_full",
                        f"{self._path} has given out all {MAX_SLOTS} numbers",
                        "Unmount, remove the file, and mount again.",
                    )
                self._append("".join(f"{name}\n" for name in fresh).encode())
                self._slots.update((name, first + number) for number, name in enumerate(fresh))
            return [self._slots[name] for name in names]

    def variants(self, names: Sequence[str]) -> list[list[int]]:
        """For each name the slots of it and of all names that add words to it, oldest first."""
        found: dict[str, list[int]] = {name: [] for name in names}
        words = {name.count(" ") for name in names}
        with self._lock:
            for name, slot in self._slots.items():
                parts = name.split(" ")
                for count in words:
                    if count < len(parts) and (first := " ".join(parts[: count + 1])) in found:
                        found[first].append(slot)
        return [found[name] for name in names]

    def _append(self, lines: bytes) -> None:
        before = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, lines) != len(lines):
                raise OSError("the disk is full")
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            raise OpenshelfError(
                "inodes_unwritable",
                f"{self._path} cannot be written: {error}",
                "Free space on the cache's disk; new releases appear then.",
            ) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
