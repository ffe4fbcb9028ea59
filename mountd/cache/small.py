"""Many small files at once, as a pack brings them: entered together, written one by one, settled together.

The rows of a whole run are written in one transaction before the first byte; each file is then written straight under
its sealed name, with the mode that says that it may not be on the disk yet. While a file is :attr:`arriving` nobody is
shown it; one that a crash has cut short has the wrong size or is hashed before it is served, as any unsettled one.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mountd.cache.index import Index
from mountd.cache.layout import Layout
from mountd.cache.partial import disk_bytes
from mountd.cache.room import Room
from mountd.cache.scribe import Order, write_new
from mountd.cache.settlings import Settlings
from mountd.rows import PackedFile


@dataclass(frozen=True, slots=True)
class Entered:
    """A run of files that the cache has room and rows for: their digests, and the token of this entering.

    ``refused``: there was no room, or the disk is in trouble."""

    digests: frozenset[bytes]
    token: object
    refused: bool = False


class SmallFiles:
    """The way of small files into one cache. Thread-safe; each run belongs to one thread."""

    def __init__(self, layout: Layout, index: Index, room: Room, settling: Settlings) -> None:
        self.arriving: set[bytes] = set()
        """Files that have a row, and perhaps a name, but not all their bytes yet."""
        self._layout = layout
        self._index = index
        self._room = room
        self._trouble = room.trouble
        self._settling = settling

    def missing(self, files: Sequence[PackedFile]) -> Sequence[PackedFile]:
        """Those of ``files`` of which nothing is in the cache."""
        try:
            known = self._index.known_among([each.sha256 for each in files])
        except sqlite3.Error as error:
            self._trouble.note(error)
            return files
        return [each for each in files if each.sha256 not in known]

    def enter(self, files: Sequence[tuple[bytes, int]]) -> Entered:
        """Make room and rows for those of ``files`` (SHA-256, size in bytes) that are not in the cache: none of them
        when they do not fit or the disk is in trouble. What was entered is to be given to :meth:`finish`."""
        token = object()
        if not self._trouble.writable():
            return Entered(frozenset(), token, refused=True)
        room, sizes = self._room, dict(files)
        try:
            with room.lock:
                for sha256 in self._index.known_among(list(sizes)):
                    del sizes[sha256]
                home, run = room.disks.home, list(sizes.items())
                rows = [(sha256, disk_bytes(size), home(sha256).number) for sha256, size in run]
                if not rows:
                    return Entered(frozenset(), token)
                if not room.reserve_run(run):
                    return Entered(frozenset(), token, refused=True)
                try:
                    self._index.enter(rows)
                except sqlite3.Error:
                    room.give_back_run(run)
                    raise
                room.unsettled.update(dict.fromkeys(sizes, token))
                self.arriving.update(sizes)
        except sqlite3.Error as error:
            self._trouble.note(error)
            return Entered(frozenset(), token, refused=True)
        return Entered(frozenset(sizes), token)

    def order(self, entered: Entered, each: PackedFile, start: int) -> Order | None:
        """What a scribe is told to write an entered file, whose bytes lie from ``start`` on in its memory; None when
        it was withdrawn or evicted meanwhile."""
        if self._room.unsettled.get(each.sha256) is not entered.token:
            return None
        return self._layout.object_name(each.sha256), start, each.size, each.mtime_ns, each.blake3

    def show(self, sha256: bytes) -> None:
        """An entered file has been written: readers may have it."""
        self.arriving.discard(sha256)

    def give_up(self, sha256: bytes, code: int) -> None:
        """An entered file could not be written, for the reason of the errno ``code``."""
        self._room.discard(sha256)
        self._trouble.note(OSError(code, os.strerror(code)))

    def write(self, entered: Entered, sha256: bytes, data: memoryview, mtime_ns: int) -> bool:
        """Write the checked bytes of one entered file, and show it; False when the disk refuses, or the file was
        withdrawn or evicted meanwhile."""
        path = self._layout.object_name(sha256)
        try:
            # What lies there is of a scribe that was lost, or was left by a crash that took the index's last rows.
            with self._room.lock:
                if self._room.unsettled.get(sha256) is not entered.token:
                    return False
                Path(path).unlink(missing_ok=True)
            write_new(path, data, mtime_ns)
        except OSError as error:
            self.give_up(sha256, error.errno or errno.EIO)
            return False
        self.show(sha256)
        return True

    def finish(self, entered: Entered, written: Iterable[bytes]) -> None:
        """Note the ``written`` ones as sealed and have them settled; what else was entered is given up."""
        room, sealed = self._room, set(written)
        self.arriving -= entered.digests
        try:
            with room.lock:
                for sha256 in entered.digests:
                    if room.unsettled.get(sha256) is entered.token:
                        if sha256 not in sealed:
                            room.discard(sha256)
                    elif sha256 in sealed:
                        sealed.discard(sha256)
                        if self._index.get(sha256) is None:  # withdrawn while it was being written
                            self._layout.object_path(sha256).unlink(missing_ok=True)
                self._index.seal(sealed)
                self._settling.add_all(sealed, entered.token)
        except (OSError, sqlite3.Error) as error:
            self._trouble.note(error)
