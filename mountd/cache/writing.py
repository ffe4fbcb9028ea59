"""How files come into the cache: partial files chunk by chunk, small ones whole, and sealing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping

from mountd.cache.disk import Disk
from mountd.cache.index import Index
from mountd.cache.layout import SEALED_MODE
from mountd.cache.partial import FileSpec, PartialFile, disk_bytes, write_whole
from mountd.cache.room import Room
from mountd.cache.settlings import Settlings

MAP_BYTES = 4096
"""What a chunk map is counted as."""


class Writing:
    """Writes to one cache; every refusal of the disk is noted, and the caller serves from the store. Thread-safe."""

    def __init__(self, index: Index, room: Room) -> None:
        self._index = index
        self._room = room
        self._trouble = room.trouble
        self.settling = Settlings(room.disks, self._settled)

    def open_partial(self, spec: FileSpec) -> PartialFile | None:
        """The partial file for ``spec``, made when it is new; None while the cache cannot take it."""
        room, sha256 = self._room, spec.sha256
        disk = room.home(sha256)
        if not self._trouble.writable(disk):
            return None
        try:
            with room.lock:
                if sha256 not in room.partial_bytes:
                    if not room.reserve(MAP_BYTES, 2, disk):
                        return None
                    room.partial_bytes[sha256] = MAP_BYTES
                    self._index.put(sha256, MAP_BYTES, sealed=False, disk=disk.number)
            return PartialFile.open(spec, disk.partial_path(sha256))
        except (OSError, sqlite3.Error) as error:
            self._trouble.note(error, disk if isinstance(error, OSError) else None)
            return None

    def write_chunk(self, partial: PartialFile, index: int, data: bytes | bytearray | memoryview) -> bool:
        """Store a checked chunk; False when the limit or the disk does not allow it (the trouble noted says why)."""
        room, sha256, needed = self._room, partial.spec.sha256, disk_bytes(len(data))
        disk = room.home(sha256)
        if not self._trouble.writable(disk):
            return False
        with room.lock:
            if sha256 not in room.partial_bytes or not room.reserve(needed, 0, disk):
                return False
            room.partial_bytes[sha256] += needed
        try:
            partial.write(index, data)
        except OSError as error:
            room.grow(sha256, -needed)
            self._trouble.note(error, disk)
            return False
        return True

    def store_whole(self, spec: FileSpec, data: bytes | bytearray | memoryview) -> int | None:
        """Seal a file of one chunk with its checked bytes: a descriptor of it, or None as with :meth:`write_chunk`.

        It becomes durable a moment later, together with others.
        """
        room, sha256, token = self._room, spec.sha256, object()
        disk = room.disks.home(sha256)
        if not self._trouble.writable(disk):
            return None
        try:
            with room.lock:
                if not self._admit_whole(sha256, disk_bytes(spec.size), token, disk):
                    return None
            destination = disk.object_path(sha256)
            descriptor = write_whole(spec, data, disk.partial_path(sha256), destination)
            with room.lock:
                if room.unsettled.get(sha256) is token:
                    self._index.put(sha256, disk_bytes(spec.size), sealed=True, disk=disk.number)
                    self.settling.add(sha256, token)
                else:  # withdrawn meanwhile
                    destination.unlink(missing_ok=True)
        except (OSError, sqlite3.Error) as error:
            room.discard(sha256)
            self._trouble.note(error, disk if isinstance(error, OSError) else None)
            return None
        return descriptor

    def _admit_whole(self, sha256: bytes, needed: int, token: object, disk: Disk) -> bool:
        """Make room for a file of one chunk and enter it. The lock is held."""
        self._room.discard(sha256)
        if not self._room.reserve(needed, 1, disk):
            return False
        try:
            self._index.put(sha256, needed, sealed=False, disk=disk.number)
        except sqlite3.Error:
            self._room.count(disk, -needed, -1)
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
                disk = room.disks.home(sha256)
                try:
                    if failure is not None:
                        raise failure
                    os.chmod(disk.object_name(sha256), SEALED_MODE)  # noqa: PTH101 - half the time of a Path
                except OSError as error:
                    self._trouble.note(error, disk)
                    room.discard(sha256)
                room.unsettled.pop(sha256, None)

    def seal(self, partial: PartialFile) -> bool:
        """Give a complete file its sealed name; False when the disk refuses: it stays partial, or is discarded when its
        bytes may be lost."""
        room, sha256 = self._room, partial.spec.sha256
        disk = room.home(sha256)
        if sha256 not in room.partial_bytes or not self._trouble.writable(disk):
            return False
        try:
            partial.make_durable()
        except OSError as error:
            # The kernel says once that pages were lost, and drops them: no later fsync may be believed.
            room.discard(sha256)
            self._trouble.note(error, disk)
            return False
        try:
            with room.lock:
                if sha256 not in room.partial_bytes:
                    return False
                partial.rename(disk.object_path(sha256))
                final = disk_bytes(partial.spec.size)
                room.count(disk, final - room.partial_bytes.pop(sha256), -1)
                room.stray_partials.pop(sha256, None)
                self._index.put(sha256, final, sealed=True, disk=disk.number)
        except (OSError, sqlite3.Error) as error:
            self._trouble.note(error, disk if isinstance(error, OSError) else None)
            return False
        return True
