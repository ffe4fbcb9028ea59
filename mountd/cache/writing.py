"""How files come into the cache: partial files chunk by chunk, small ones whole, and sealing."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from mountd.cache.index import Index
from mountd.cache.layout import SEALED_MODE, Layout
from mountd.cache.partial import FileSpec, PartialFile, disk_bytes, write_whole
from mountd.cache.room import Room
from mountd.cache.settling import Settling
from mountd.cache.trouble import Trouble

MAP_BYTES = 4096
"""What a chunk map is counted as."""


class Writing:
    """Writes to one cache; every refusal of the disk is noted, and the caller serves from the store. Thread-safe."""

    def __init__(self, layout: Layout, index: Index, room: Room, trouble: Trouble) -> None:
        self._layout = layout
        self._index = index
        self._room = room
        self._trouble = trouble
        self.settling = Settling(layout.object_path, layout.root, self._settled)

    def open_partial(self, spec: FileSpec) -> PartialFile | None:
        """The partial file for ``spec``, made when it is new; None while the cache cannot take it."""
        if not self._trouble.writable():
            return None
        room, path = self._room, self._layout.partial_path(spec.sha256)
        try:
            with room.lock:
                if spec.sha256 not in room.partial_bytes:
                    if not room.reserve(MAP_BYTES):
                        return None
                    room.partial_bytes[spec.sha256] = MAP_BYTES
                    self._index.put(spec.sha256, MAP_BYTES, sealed=False)
            return PartialFile.open(spec, path)
        except (OSError, sqlite3.Error) as error:
            self._trouble.note(error)
            return None

    def write_chunk(self, partial: PartialFile, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Store a checked chunk; False when the limit or the disk does not allow it (the trouble noted says why)."""
        if not self._trouble.writable():
            return False
        room, sha256, needed = self._room, partial.spec.sha256, disk_bytes(len(data))
        with room.lock:
            if sha256 not in room.partial_bytes or not room.reserve(needed):
                return False
            room.partial_bytes[sha256] += needed
        try:
            partial.write(index, data)
        except OSError as error:
            room.give_back(sha256, needed)
            self._trouble.note(error)
            return False
        return True

    def store_whole(self, spec: FileSpec, data: bytes | bytearray | memoryview) -> int | None:
        """Seal a file of one chunk with its checked bytes: a descriptor of it, or None as with :meth:`write_chunk`.

        It becomes durable a moment later, together with others.
        """
        if not self._trouble.writable():
            return None
        room, sha256, token = self._room, spec.sha256, object()
        try:
            with room.lock:
                if not self._admit_whole(sha256, disk_bytes(spec.size), token):
                    return None
            path, destination = self._layout.partial_path(sha256), self._layout.object_path(sha256)
            descriptor = write_whole(spec, data, path, destination)
            with room.lock:
                if room.unsettled.get(sha256) is token:
                    self._index.put(sha256, disk_bytes(spec.size), sealed=True)
                    self.settling.add(sha256, token)
                else:  # withdrawn meanwhile
                    destination.unlink(missing_ok=True)
        except (OSError, sqlite3.Error) as error:
            room.discard(sha256)
            self._trouble.note(error)
            return None
        return descriptor

    def _admit_whole(self, sha256: bytes, needed: int, token: object) -> bool:
        """Make room for a file of one chunk and enter it. The lock is held."""
        self._room.discard(sha256)
        if not self._room.reserve(needed):
            return False
        try:
            self._index.put(sha256, needed, sealed=False)
        except sqlite3.Error:
            self._room.total_bytes -= needed
            raise
        self._room.unsettled[sha256] = token
        return True

    def _settled(self, batch: Mapping[bytes, object], failure: OSError | None) -> None:
        """Small files have reached the disk, or could not."""
        room = self._room
        for sha256, token in batch.items():
            with room.lock:
                if room.unsettled.get(sha256) is not token:
                    continue  # removed meanwhile, and perhaps sealed anew
                try:
                    if failure is not None:
                        raise failure
                    self._layout.object_path(sha256).chmod(SEALED_MODE)
                except OSError as error:
                    self._trouble.note(error)
                    room.discard(sha256)
                room.unsettled.pop(sha256, None)

    def seal(self, partial: PartialFile) -> bool:
        """Give a complete file its sealed name; False when the disk refuses: it stays partial, or is discarded when its
        bytes may be lost."""
        room, sha256 = self._room, partial.spec.sha256
        if sha256 not in room.partial_bytes or not self._trouble.writable():
            return False
        try:
            partial.make_durable()
        except OSError as error:
            # The kernel says once that pages were lost, and drops them: no later fsync may be believed.
            self._trouble.note(error)
            room.discard(sha256)
            return False
        try:
            with room.lock:
                if sha256 not in room.partial_bytes:
                    return False
                partial.rename(self._layout.object_path(sha256))
                final = disk_bytes(partial.spec.size)
                room.total_bytes += final - room.partial_bytes.pop(sha256)
                self._index.put(sha256, final, sealed=True)
        except (OSError, sqlite3.Error) as error:
            self._trouble.note(error)
            return False
        return True
