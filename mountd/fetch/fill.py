"""Filling one file: which chunks are on their way, who waits for them, and what is fetched ahead.

Each missing chunk is fetched once however many readers wait for it (*single flight*), checked against the manifest, and
only then shown to anybody: from memory at once, from the partial file when it is written. When the last chunk is on the
disk the file is sealed. A chunk that the cache cannot take is handed to its readers from memory.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field

from catalog.manifest import CHUNK_BYTES
from mountd.cache.chunks import ChunkState
from mountd.cache.partial import FileSpec, PartialFile
from mountd.cache.store import Cache
from mountd.fetch.buffers import ChunkBuffers
from mountd.fetch.fetcher import Fetcher, FetchFailed
from mountd.fetch.memory import ChunkMemory
from mountd.fetch.packs import Packs, Place
from mountd.fetch.pool import Pool, Priority
from openshelf.errors import OpenshelfError

log = logging.getLogger("openshelf.mount.fetch")

RUN_CHUNKS = 4
"""Neighbouring chunks are asked for together up to 16 MiB."""
GIVE_WAY_S = 1.0
"""What nobody waits for yet is not fetched while a reader goes through the file and has it fetched in that order."""


@dataclass(slots=True)
class Flight:
    """One chunk on its way. ``demanded``: it was begun for a reader, who has the whole time it may take; ``waited``: a
    reader needs it. ``data`` is set once it is in memory, ``error`` if it never came."""

    demanded: bool = False
    done: bool = False
    waited: bool = False
    data: bytes | memoryview | None = None
    error: OpenshelfError | None = None


@dataclass(frozen=True, slots=True)
class Supply:
    """What all fills share."""

    cache: Cache
    fetcher: Fetcher
    pool: Pool
    memory: ChunkMemory = field(default_factory=ChunkMemory)
    buffers: ChunkBuffers = field(default_factory=ChunkBuffers)
    packs: Packs = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "packs", Packs(self.cache, self.fetcher, self.memory))


class Fill:
    """The filling of one file, shared by all its handles. Made and closed by :class:`mountd.fetch.fills.Fills`."""

    def __init__(self, spec: FileSpec, place: Place, supply: Supply, finished: Callable[[Fill], None]) -> None:
        self.spec = spec
        self._place = place
        self._supply = supply
        self._finished = finished
        self._changed = threading.Condition()
        self._flights: dict[int, Flight] = {}
        self._partial: PartialFile | None = None
        self._whole: int | None = None  # a descriptor of the sealed file, of one chunk, that was filled here
        self._completing = False
        self._sealing = False
        self._disk_failed = False
        self._failed: dict[int, tuple[float, str]] = {}
        self._followed_at = float("-inf")
        self.sealed = False

    # -- what readers call

    def locate(self, offset: int, length: int) -> int | None:
        """Bring a range to the partial file: its descriptor, or None when part of it is only in memory.

        OSError (EIO) when the bytes do not come within the fetcher's deadline.
        """
        inside = True
        for index in range(offset // CHUNK_BYTES, -(-(offset + length) // CHUNK_BYTES)):
            inside = self._require(index) is None and inside
        return self._descriptor() if inside else None

    def _descriptor(self) -> int | None:
        """Where chunks that are on the disk are read."""
        return self._whole if self._partial is None else self._partial.descriptor

    def at_hand(self, offset: int, length: int) -> memoryview | None:
        """The bytes of a range when they lie in one chunk that is in memory."""
        index, start = divmod(offset, CHUNK_BYTES)
        data = self._supply.memory.get((self.spec.sha256, index)) if 0 < length <= CHUNK_BYTES - start else None
        return None if data is None else self._part_of(index, data, start, start + length)

    def _part_of(self, index: int, data: bytes | memoryview, start: int, stop: int) -> memoryview:
        """Bytes ``start`` to ``stop`` of a chunk in memory, which a reader takes now."""
        stored = index not in self._flights and self._is_verified(index)
        self._supply.memory.was_read((self.spec.sha256, index), stop - start, stored=stored)
        return memoryview(data)[start:stop]

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """The bytes of a range; OSError (EIO) when they do not come within the fetcher's deadline."""
        parts: list[bytes | memoryview] = []
        end = offset + length
        while offset < end:
            index, start = divmod(offset, CHUNK_BYTES)
            stop = min(CHUNK_BYTES, start + end - offset)
            data = self._require(index)
            if data is None:
                parts.append(self._read_stored(index, start, stop))
            else:
                parts.append(self._part_of(index, data, start, stop))
            offset += stop - start
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _is_verified(self, index: int) -> bool:
        """Whether a chunk is on the disk, without opening or hashing anything."""
        partial = self._partial
        return partial is not None and not self._disk_failed and partial.chunks[index] is ChunkState.VERIFIED

    def _read_stored(self, index: int, start: int, stop: int) -> bytes | memoryview:
        """Bytes ``start`` to ``stop`` of a chunk on the disk, or from the store when the disk fails."""
        descriptor = self._descriptor()
        assert descriptor is not None
        try:
            part = os.pread(descriptor, stop - start, index * CHUNK_BYTES + start)
            if len(part) == stop - start:
                return part
            reason = OSError(errno.EIO, "a cached file is shorter than it was")
        except OSError as error:
            reason = error
        self._supply.cache.note_failure(reason, self.spec.sha256)
        self._disk_failed = True
        data = self._require(index)
        assert data is not None
        return data[start:stop]

    def follow(self, start: int, stop: int) -> None:
        """Have chunks ``start`` up to ``stop`` fetched for a reader that goes through the file."""
        self._followed_at = time.monotonic()
        self.prefetch(start, stop)

    def prefetch(self, start: int, stop: int) -> None:
        """Fetch the missing ones of chunks ``start`` up to ``stop`` soon, in runs of neighbours."""
        stop = min(stop, len(self.spec.chunks))
        while start < stop:
            claimed = self._claim(start, stop)
            if claimed is None:
                return
            first, last = claimed
            self._submit(Priority.PREFETCH, first, last)
            start = last

    def complete(self, start: int = 0) -> None:
        """Fetch all that is missing in the background, from chunk ``start`` on and then from the beginning."""
        with self._changed:
            if self._completing or self.sealed or len(self.spec.chunks) == 1:
                return
            self._completing = True
        pool = self._supply.pool
        pool.submit(Priority.BACKGROUND, lambda: self._complete_from(start), pool.start_delay_s())

    def fetch_some(self, start: int, stop: int) -> tuple[int, bool] | None:
        """In the calling thread, fetch the first run of missing chunks in [``start``, ``stop``): the chunk after it,
        and whether the cache took all of it. None when no chunk is missing that is not on its way."""
        claimed = self._claim(start, stop)
        if claimed is None:
            return None
        return claimed[1], self._unpacked() or self._fetch(*claimed, read_soon=False)

    def failure(self) -> str:
        """Why a chunk did not come of late; empty when none failed."""
        with self._changed:
            return next((reason for _, reason in self._failed.values()), "")

    def verified_bytes(self) -> int:
        """How many bytes of the file are in the cache, checked."""
        partial = self._partial
        if self.sealed:
            return self.spec.size
        return 0 if partial is None else min(partial.chunks.verified * CHUNK_BYTES, self.spec.size)

    @property
    def busy(self) -> bool:
        """Whether anything is being fetched or sealed."""
        return bool(self._flights) or self._completing or self._sealing

    def close(self) -> None:
        """Close the partial file; called when no handle and no task is left."""
        if self._partial is not None:
            self._supply.memory.forget(self.spec.sha256, self._is_verified)
            self._partial.close()
            self._partial = None
        if self._whole is not None:
            os.close(self._whole)
            self._whole = None

    # -- chunks

    def _require(self, index: int) -> bytes | memoryview | None:
        """Wait for a chunk: its bytes when it is in memory, None when it is in the partial file only.

        What was fetched ahead may fail just after a reader began to wait for it; he has it fetched once more.
        """
        until = time.monotonic() + self._supply.fetcher.deadline_s
        while True:
            kept = self._supply.memory.get((self.spec.sha256, index))
            if kept is not None:
                return kept
            with self._changed:
                if self._stored(index):
                    return None
                self._refuse_again(index)
                flight = self._flights.get(index)
                claimed = flight is None
                if flight is None:
                    flight = self._flights[index] = Flight(demanded=True)
                flight.waited = True
            if claimed and not self._unpacked():
                self._submit(Priority.DEMAND, index, index + 1)
            self._wait(index, flight, until)
            if flight.error is None:
                return flight.data
            if flight.demanded:
                raise OSError(errno.EIO, flight.error.message)

    def _wait(self, index: int, flight: Flight, until: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: flight.done, max(until - time.monotonic(), 0.0)):
                reason = f"chunk {index} did not come within {self._supply.fetcher.deadline_s:g} s"
                self._remember_failure(index, reason, refuse=True)
                self._supply.fetcher.counters.add("reads_timed_out")
                log.error("File %s: %s.", self.spec.sha256.hex(), reason)
                raise OSError(errno.EIO, reason)

    def _remember_failure(self, index: int, reason: str, *, refuse: bool) -> None:
        """Why a chunk did not come; ``refuse`` it for a while. The lock is held."""
        pause_s = self._supply.fetcher.fail_again_s if refuse else 0.0
        self._failed[index] = time.monotonic() + pause_s, reason

    def _refuse_again(self, index: int) -> None:
        """OSError (EIO) while the failure of a chunk is remembered. The lock is held."""
        failed = self._failed.get(index)
        if failed is None:
            return
        until, reason = failed
        if time.monotonic() < until:
            raise OSError(errno.EIO, reason)
        del self._failed[index]

    def _stored(self, index: int) -> bool:
        """Whether the chunk is on the disk, opening the partial file when it is not open yet."""
        if self._disk_failed:
            return False
        if len(self.spec.chunks) == 1:
            return self._whole is not None
        if self._partial is None:
            self._partial = self._supply.cache.open_partial(self.spec)
            if self._partial is None:
                return False
        if index in self._flights:
            return False
        state = self._partial.state(index)
        if state is ChunkState.VERIFIED and self._partial.chunks.complete:
            self._seal_soon()
        return state is ChunkState.VERIFIED

    def _claim(self, start: int, stop: int) -> tuple[int, int] | None:
        """Put the first run of missing chunks in [start, stop) in flight: its bounds, or None when none is missing."""
        while start < stop:
            # The lock is given back between chunks: after a crash each may have to be hashed again.
            with self._changed:
                end = start
                while end < min(stop, start + RUN_CHUNKS) and self._missing(end):
                    self._flights[end] = Flight()
                    end += 1
            if end > start:
                return start, end
            start += 1
        return None

    def _missing(self, index: int) -> bool:
        kept = index in self._flights or self._stored(index)
        return not kept and self._supply.memory.get((self.spec.sha256, index)) is None

    # -- what pool threads do

    def _submit(self, priority: Priority, start: int, stop: int) -> None:
        if not self._supply.pool.submit(priority, lambda: self._fetch(start, stop)):
            self._land(start, stop, FetchFailed("stopping", "the mount is being stopped"))

    def _fetch(self, start: int, stop: int, *, read_soon: bool = True) -> bool:
        """Fetch a claimed run of chunks; whether all of it is now in the partial file."""
        stored, index = True, start
        try:
            # Chunk by chunk: each is hashed while it is in the processor's cache, and shown at once.
            with closing(self._chunks(start, stop)) as chunks:
                for data in chunks:
                    stored = self._check_and_store(index, data, read_soon=read_soon) and stored
                    index += 1
        except OpenshelfError as error:
            self._land(index, stop, error)
            stored = False
        except BaseException:
            self._land(index, stop, FetchFailed("fetch_failed", "the fetch ended in an unforeseen way"))
            raise
        finally:
            self._finished(self)
        return stored

    def _chunks(self, start: int, stop: int) -> Generator[memoryview]:
        """The bytes of a run of chunks as they come, not checked, each in a buffer of its own."""
        begin, end = self.spec.chunk_range(start)[0], self.spec.chunk_range(stop - 1)[1]
        take = self._supply.buffers.take
        where = self._place.stored, self._place.offset + begin, end - begin
        yield from self._supply.fetcher.parts(*where, take, lambda: self._is_waited(start, stop))

    def _is_waited(self, start: int, stop: int) -> bool:
        """Whether a reader needs one of these chunks now."""
        flights = (self._flights.get(index) for index in range(start, stop))
        return any(flight is not None and flight.waited and not flight.done for flight in flights)

    def _check_and_store(self, index: int, data: memoryview, *, read_soon: bool) -> bool:
        if not self.spec.is_chunk(index, data):
            try:
                self._refetch(index, data)
            except OpenshelfError as error:
                self._land(index, index + 1, error)
                return False
        if len(self.spec.chunks) == 1:
            return self._store_whole(data)
        self._show(index, data, keep=read_soon)
        with self._changed:
            partial = None if self._disk_failed else self._partial
        stored = partial is not None and self._supply.cache.write_chunk(partial, index, data)
        if not stored and not read_soon:
            self._supply.memory.put((self.spec.sha256, index), _compact(data))
        with self._changed:
            del self._flights[index]
            if stored:
                self._supply.memory.was_read((self.spec.sha256, index), 0, stored=True)
            if stored and partial is not None and partial.chunks.complete:
                self._seal_soon()
        return stored

    def _show(self, index: int, data: memoryview, *, keep: bool) -> None:
        """Give a checked chunk to whoever waits for it, and ``keep`` it in memory. It stays in flight."""
        shown = _compact(data)
        if keep:
            self._supply.memory.put((self.spec.sha256, index), shown)
        with self._changed:
            flight = self._flights[index]
            flight.data, flight.done = shown, True
            self._failed.pop(index, None)
            self._changed.notify_all()

    def _unpacked(self) -> bool:
        """Whether the file, whose one chunk is in flight, came with its pack."""
        if self._place.pack is None or not self._supply.packs.bring(self._place, self.spec):
            return False
        kept = self._supply.memory.get((self.spec.sha256, 0))
        descriptor = None if kept is not None else self._supply.cache.open_sealed(self.spec.sha256, self.spec.size)
        if kept is None and descriptor is None:
            return False  # evicted at once
        with self._changed:
            self._whole, self.sealed = descriptor, descriptor is not None
            flight = self._flights.pop(0)
            flight.data, flight.done = kept, True
            self._changed.notify_all()
        self._finished(self)
        return True

    def _store_whole(self, data: memoryview) -> bool:
        """Seal a file of one chunk and show it; whether the cache took it."""
        descriptor = None if self._disk_failed else self._supply.cache.store_whole(self.spec, data)
        kept = None if descriptor is not None else _compact(data)
        if kept is not None:
            self._supply.memory.put((self.spec.sha256, 0), kept)
        with self._changed:
            self._whole = descriptor
            self.sealed = descriptor is not None
            flight = self._flights.pop(0)
            flight.data, flight.done = kept, True
            self._failed.pop(0, None)
            self._changed.notify_all()
        return self.sealed

    def _refetch(self, index: int, data: memoryview) -> None:
        """A chunk came with wrong bytes: ask once more, then the other sources."""
        fetcher, name = self._supply.fetcher, self.spec.sha256.hex()
        fetcher.counters.add("chunks_corrupt")
        log.warning("Chunk %d of file %s came with wrong bytes and is fetched again.", index, name)
        start, _ = self.spec.chunk_range(index)
        place = self._place
        try:
            fetcher.read(place.stored, place.offset + start, data, right=lambda: self.spec.is_chunk(index, data))
        except FetchFailed as error:
            if error.code != "wrong_bytes":
                raise
            raise FetchFailed("chunk_corrupt", f"chunk {index} of file {name} came with wrong bytes twice") from None

    def _land(self, start: int, stop: int, error: OpenshelfError) -> None:
        """End the flights of a run that failed."""
        log.error("File %s, chunks %d to %d: %s.", self.spec.sha256.hex(), start, stop - 1, error.message)
        with self._changed:
            for index in range(start, stop):
                flight = self._flights.pop(index, None)
                if flight is not None:
                    flight.error, flight.done = error, True
                    self._remember_failure(index, error.message, refuse=flight.demanded)
            self._changed.notify_all()

    def _complete_from(self, start: int) -> None:
        """One step of the background completion; the next step is queued behind whatever others wait for."""
        if not self._completing:
            return  # sealed meanwhile
        pause_s = self._followed_at + GIVE_WAY_S - time.monotonic()
        if pause_s > 0:
            if not self._supply.pool.submit(Priority.BACKGROUND, lambda: self._complete_from(start), pause_s):
                self._completed()
            return
        total = len(self.spec.chunks)
        step = self.fetch_some(start, total) or self.fetch_some(0, total)
        again = step is not None and step[1]
        if again and step is not None:
            following = step[0] % total
            again = self._supply.pool.submit(Priority.BACKGROUND, lambda: self._complete_from(following))
        if not again:
            self._completed()

    def _completed(self) -> None:
        with self._changed:
            self._completing = False
        self._finished(self)

    # -- sealing

    def _seal_soon(self) -> None:
        """Have a complete file sealed by another thread: its fsync may take long. The lock is held."""
        if not self._sealing and not self.sealed:
            self._sealing = self._supply.pool.submit(Priority.PREFETCH, self._seal)

    def _seal(self) -> None:
        partial = self._partial
        sealed = partial is not None and self._supply.cache.seal(partial)
        with self._changed:
            self.sealed = sealed
            self._sealing = False
            self._completing = self._completing and not sealed
            self._disk_failed = self._disk_failed or not (sealed or self._supply.cache.is_partial(self.spec.sha256))
        self._finished(self)


def _compact(data: memoryview) -> bytes | memoryview:
    """A chunk as it is kept in memory: not a short one in a long buffer."""
    return data if len(data) > CHUNK_BYTES // 2 else bytes(data)
