"""Unpacking: at the first touch of a pack one request brings it, and every file in it becomes a cache file of its own.

The touched file comes first and its reader goes on at once; its neighbours follow as the bytes come. Each is checked
against the manifest by itself: one with wrong bytes is left out, and fetched alone by whoever reads it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from blake3 import blake3

from catalog.manifest import PACK_FILE_BYTES
from mountd.cache.partial import FileSpec
from mountd.cache.scribes import Scribes
from mountd.cache.small import Entered
from mountd.cache.store import Cache
from mountd.fetch.desk import Desk, memory_bytes
from mountd.fetch.fetcher import Fetcher, FetchFailed
from mountd.fetch.memory import ChunkMemory
from mountd.rows import PackedFile
from openshelf.units import KIB, MIB

log = logging.getLogger("openshelf.mount.fetch")

AT_ONCE = 3
"""Packs that are being unpacked; files of a further one are fetched alone meanwhile."""
WINDOW_BYTES = 4 * MIB
"""How much is fetched around a file where the whole pack is not wanted."""
PART_BYTES = 256 * KIB
GROUP_BYTES = 16 * MIB
"""Files are entered into the cache this much at a time, ahead of their bytes: many rows at once cost a third each."""
GAP_BYTES = 1 * MIB
"""Bytes that nobody needs are read over up to this length; a longer stretch ends the request."""
LARGEST_SHARE = 4
"""A pack that would take more than this part of the cache comes window by window."""
PATIENCE_S = 0.25
"""How long a reader waits for a file that its pack's stream will not reach soon, before it is fetched alone."""
NEAR_SHARE = 3
"""For one that is next, a reader waits this part of the deadline."""
MOST_WRONG = 16
"""A stream with more wrong files than this is given up."""
REMEMBERED = 65_536
_STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file's bytes are in the store: from byte ``offset`` of the object with digest ``stored``.

    ``pack``, for a file of a pack, gives the pack's files; ``whole`` says whether all of them are wanted.
    """

    stored: bytes
    offset: int
    pack: Callable[[], Sequence[PackedFile]] | None = None
    whole: bool = True


@dataclass(slots=True)
class _Stream:
    """One pack being unpacked. ``coming``: files that its requests will bring; None until that is known."""

    coming: set[bytes] | None = None
    position: int = 0
    wrong: int = 0
    thread: threading.Thread | None = None

    def brings(self, sha256: bytes) -> bool:
        return self.coming is None or sha256 in self.coming


@dataclass(slots=True)
class _Group:
    """Neighbouring files that were entered together."""

    files: Sequence[PackedFile]
    entered: Entered


class Packs:
    """The packs being unpacked into one cache. Thread-safe."""

    def __init__(self, cache: Cache, fetcher: Fetcher, memory: ChunkMemory) -> None:
        self._cache = cache
        self._fetcher = fetcher
        self._memory = memory
        self._scribes = Scribes(memory_bytes(PACK_FILE_BYTES + PART_BYTES))
        self._changed = threading.Condition()
        self._streams: dict[bytes, _Stream] = {}
        self._waited: Counter[bytes] = Counter()
        self._taken: OrderedDict[bytes, None] = OrderedDict()
        self._stopped = False

    def bring(self, place: Place, spec: FileSpec) -> bool:
        """Have the pack unpacked from this file on, unless it is being unpacked already, and wait for the file.

        True when it is in the cache or among the chunks in memory now; False when it has to be fetched alone.
        """
        sha256, started = spec.sha256, time.monotonic()
        with self._changed:
            stream = self._streams.get(place.stored)
            if stream is None:
                if self._stopped or len(self._streams) >= AT_ONCE:
                    return False
                stream = self._begin(place, sha256)
            self._waited[sha256] += 1
            try:
                while stream.brings(sha256) and self._streams.get(place.stored) is stream:
                    near = stream.coming is None or 0 <= place.offset - stream.position <= WINDOW_BYTES
                    limit_s = self._fetcher.deadline_s / NEAR_SHARE if near else PATIENCE_S
                    left_s = started + limit_s - time.monotonic()
                    if left_s <= 0:
                        return False
                    self._changed.wait(min(left_s, PATIENCE_S))
            finally:
                self._waited[sha256] -= 1
                if not self._waited[sha256]:
                    del self._waited[sha256]
        return self._memory.get((sha256, 0)) is not None or self._cache.is_sealed(sha256)

    def takes(self, stored: bytes) -> bool:
        """Whether the unpacking of this pack could begin now."""
        with self._changed:
            return stored not in self._streams and len(self._streams) < AT_ONCE

    def _begin(self, place: Place, touched: bytes) -> _Stream:
        """The lock is held."""
        stream = self._streams[place.stored] = _Stream()
        stream.thread = threading.Thread(target=self._run, args=(stream, place, touched), name="unpack", daemon=True)
        stream.thread.start()
        return stream

    def close(self) -> None:
        """Unpack no further; the fetcher is stopped before."""
        with self._changed:
            self._stopped = True
            threads = [stream.thread for stream in self._streams.values() if stream.thread is not None]
        end = time.monotonic() + _STOP_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._scribes.close()

    # -- what a pack's own thread does

    def _run(self, stream: _Stream, place: Place, touched: bytes) -> None:
        try:
            runs = list(self._runs(place, touched))
            stream.coming = {each.sha256 for run in runs for each in run}
            for run in runs:
                stream.position = run[0].offset
                if not self._unpack(stream, place.stored, run):
                    break
        except FetchFailed as error:
            log.warning("A pack was unpacked in part only: %s.", error.message)
        except Exception:
            log.exception("A pack could not be unpacked for a reason that nobody foresaw.")
        finally:
            with self._changed:
                del self._streams[place.stored]
                self._changed.notify_all()

    def _runs(self, place: Place, touched: bytes) -> Iterator[Sequence[PackedFile]]:
        """What to ask for, one request each: from the touched file on, then what lies before it."""
        assert place.pack is not None
        files = place.pack()
        missing = _apart(self._cache.small.missing(files))
        at = next((index for index, each in enumerate(missing) if each.sha256 == touched), None)
        if at is None:
            return
        whole = place.whole and self._is_first(place.stored)
        whole = whole and sum(each.size for each in missing) <= self._cache.limit_bytes // LARGEST_SHARE
        first, stop = at, at + 1
        if whole:
            stop = _end_of_run(missing, at)
            first = at - (_end_of_run(missing[at::-1], 0) - 1)
            if missing[at].offset - missing[first].offset <= WINDOW_BYTES:
                at = first
        else:
            end = missing[at].offset + WINDOW_BYTES
            stop = next((n for n in range(at + 1, len(missing)) if _end(missing[n]) > end), len(missing))
            stop = min(stop, _end_of_run(missing, at))
        yield missing[at:stop]
        if first < at:
            yield missing[first:at]

    def _is_first(self, stored: bytes) -> bool:
        """Whether a pack was not asked for as a whole before: what was evicted since comes back by the window, so that
        reading at random never fetches a pack over and over."""
        with self._changed:
            known = stored in self._taken
            self._taken[stored] = None
            if len(self._taken) > REMEMBERED:
                self._taken.popitem(last=False)
        return not known

    def _unpack(self, stream: _Stream, stored: bytes, run: Sequence[PackedFile]) -> bool:
        """Ask for a run of files and unpack them as they come; whether the cache took them."""
        start, length = run[0].offset, _end(run[-1]) - run[0].offset
        groups = _groups(run)
        group: _Group | None = None
        desk = Desk(self._cache.small, self._scribes, partial(self._came, stream), partial(self._is_wrong, stream))
        try:
            with closing(self._contents(stored, start, length, run)) as contents:
                for files, position, data in contents:
                    while files:
                        if group is None or files[0].offset >= _end(group.files[-1]):
                            if group is not None:
                                desk.finish(group.entered)
                                if group.entered.refused:
                                    return False
                            group = self._enter(next(groups))
                        here = [each for each in files if each.offset < _end(group.files[-1])]
                        files = files[len(here) :]
                        self._put(stream, desk, group, here, position, data)
                    if self._stopped or stream.wrong > MOST_WRONG:
                        return False
        finally:
            if group is not None:
                desk.finish(group.entered)
            desk.close()
        return True

    def _enter(self, files: Sequence[PackedFile]) -> _Group:
        return _Group(files, self._cache.small.enter([(each.sha256, each.size) for each in files]))

    def _put(
        self, stream: _Stream, desk: Desk, group: _Group, files: Sequence[PackedFile], position: int, data: memoryview
    ) -> None:
        """Put files of one group, whose bytes lie in ``data`` (from byte ``position`` of the pack on), where readers
        find them: in the cache, or in memory when it refuses them."""
        entered = group.entered
        if not entered.refused:
            wanted = [each for each in files if each.sha256 in entered.digests]
            if wanted:
                desk.put(entered, wanted, position, data)
            if len(wanted) < len(files):  # the others are there already
                for each in files:
                    if each.sha256 not in entered.digests:
                        self._came(stream, each)
            return
        for each in files:
            content = data[each.offset - position : _end(each) - position]
            if blake3(content).digest() == each.blake3:
                self._memory.put((each.sha256, 0), bytes(content))
                self._came(stream, each)
            else:
                self._is_wrong(stream, each)

    def _is_wrong(self, stream: _Stream, each: PackedFile) -> None:
        stream.wrong += 1
        self._fetcher.counters.add("chunks_corrupt")
        log.warning("File %s came with wrong bytes in its pack.", each.sha256.hex())
        self._came(stream, each)

    def _came(self, stream: _Stream, each: PackedFile) -> None:
        """The stream has passed a file: let go whoever waits for it."""
        assert stream.coming is not None
        stream.position = each.offset
        # Without the lock: a reader that begins to wait after this line sees that the file no longer comes.
        stream.coming.discard(each.sha256)
        if each.sha256 in self._waited:
            with self._changed:
                self._changed.notify_all()

    def _contents(
        self, stored: bytes, start: int, length: int, run: Sequence[PackedFile]
    ) -> Generator[tuple[Sequence[PackedFile], int, memoryview]]:
        """The files of a run as they become complete: (files, byte of the pack at which the data begins, data), not
        checked. The data is valid until the next is asked for."""
        # The end of a part, when it is the beginning of a file, is moved before the place of the next part.
        view = memoryview(bytearray(PACK_FILE_BYTES + PART_BYTES))
        low, position, at = PACK_FILE_BYTES, start, 0
        with closing(self._parts(stored, start, length, view[PACK_FILE_BYTES:])) as parts:
            for part in parts:
                high = PACK_FILE_BYTES + len(part)
                first, end = at, position + high - low
                while at < len(run) and _end(run[at]) <= end:
                    at += 1
                if at > first:
                    yield run[first:at], position, view[low:high]
                rest = max(0, end - run[at].offset) if at < len(run) else 0
                view[PACK_FILE_BYTES - rest : PACK_FILE_BYTES] = view[high - rest : high]
                low, position = PACK_FILE_BYTES - rest, end - rest

    def _parts(self, stored: bytes, start: int, length: int, buffer: memoryview) -> Generator[memoryview]:
        yield from self._fetcher.parts(stored, start, length, buffer)


def _end(each: PackedFile) -> int:
    return each.offset + each.size


def _apart(files: Sequence[PackedFile]) -> Sequence[PackedFile]:
    """The files without those that begin inside another one, which no catalog writes: they are fetched alone."""
    found: list[PackedFile] = []
    for each in files:
        if not found or each.offset >= _end(found[-1]):
            found.append(each)
    return found


def _end_of_run(files: Sequence[PackedFile], first: int) -> int:
    """The index after the last file that follows the ``first`` one without a long gap (in either direction)."""
    rest = files[first:]
    for number, (one, other) in enumerate(pairwise(rest)):
        low, high = (one, other) if one.offset < other.offset else (other, one)
        if high.offset - _end(low) > GAP_BYTES:
            return first + number + 1
    return first + len(rest)


def _groups(run: Sequence[PackedFile]) -> Iterator[Sequence[PackedFile]]:
    """The files of a run in portions of up to :data:`GROUP_BYTES`; the first is small, for its first file is waited
    for."""
    first, limit = 0, PART_BYTES
    for index, each in enumerate(run):
        if index > first and _end(each) - run[first].offset > limit:
            yield run[first:index]
            first, limit = index, GROUP_BYTES
    yield run[first:]
