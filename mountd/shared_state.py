"""Memory that supervisor and workers share (a memfd), so that a killed worker takes nothing with it.

It holds counters, the table of open nodeids with their backing ids, a one-step log that makes changes of the table
whole, the requests being worked on, and the last facts reported. Only one worker lives at a time; within it, one lock
guards the table. All layouts are declared here.

    offset        content
    0             header: magic
    64            log record (one change of the open table)
    128           backing ids: last opened, being closed
    192           rows in use (high-water mark)
    224           last sign of life: pid of the worker, monotonic time in nanoseconds
    240           the present worker: pid, its start in clock ticks since boot
    256           length, JSON: what the next supervisor must know
    4096          counters: (SLOTS + 1) rows of 16 unsigned 64-bit numbers
    16384         per slot: unique of the last OPEN or RELEASE that was applied
    20480         facts: sequence, length, JSON
    131072        request buffers, one per slot
    1179648       open table: rows of (nodeid, backing id, opens)
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Any

SLOTS = 64
"""Threads of a worker, at most; each has one counter row, one request buffer, one journal place."""
REQUEST_BYTES = 16 << 10
TABLE_ROWS = 1 << 20
"""Files open at once, at most."""

LOG = Struct("=IIQQQiI")
"""The one change under way: valid, slot, unique, row, nodeid, backing id, opens."""
BACKING = Struct("=ii")
"""Last backing id opened, backing id being closed (0: none)."""
ROW = Struct("=QiI")
"""One open nodeid: nodeid, backing id (0: served by us), opens (0: the row is free)."""
PROCESS = Struct("=qQ")
"""A worker's pid and a time: of its last sign of life, or of its start."""

LAYOUT = 2
"""Number of this layout: code of another number cannot take the memory over."""
_MAGIC = b"OSHELF\x00" + bytes([LAYOUT])
_LOG_AT = 64
_BACKING_AT = 128
_ROWS_AT = 192
_BEAT_AT = 224
_WORKER_AT = 240
_KEPT_AT = 256
_KEPT_BYTES = 3840
_COUNTERS_AT = 4096
_COUNTERS = 16
_APPLIED_AT = 16384
_FACTS_AT = 20480
_FACTS_BYTES = 64 << 10
_REQUESTS_AT = 128 << 10
_TABLE_AT = _REQUESTS_AT + SLOTS * REQUEST_BYTES
_SIZE = _TABLE_AT + TABLE_ROWS * ROW.size
_FACTS = Struct("=II")
_U64 = Struct("=Q")
_U32 = Struct("=I")
_I32 = Struct("=i")


class Counter(IntEnum):
    """What is counted; each thread counts in its own row, so that none is lost without a lock."""

    REQUESTS = 0
    LOOKUPS = 1
    OPENS_PASSTHROUGH = 2
    OPENS_SERVED = 3
    READS_SERVED = 4
    BYTES_SERVED = 5
    READ_ERRORS = 6
    INVALIDATIONS = 7
    RESENT = 8
    RESTARTS = 9
    TAKEOVERS = 10


class SharedState:
    """The memory itself. Made by the first supervisor before its first fork; children inherit the mapping, and a later
    supervisor is handed ``descriptor``."""

    def __init__(self, descriptor: int | None = None) -> None:
        """New memory, or with ``descriptor`` that of an earlier supervisor. ValueError for another layout's."""
        if descriptor is None:
            self.descriptor = os.memfd_create("openshelf", os.MFD_CLOEXEC)
            os.ftruncate(self.descriptor, _SIZE)
            self._map = mmap.mmap(self.descriptor, _SIZE)
            self._map[: len(_MAGIC)] = _MAGIC
        else:
            if os.fstat(descriptor).st_size != _SIZE or os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
                raise ValueError("the shared memory has another layout")
            self.descriptor = descriptor
            self._map = mmap.mmap(descriptor, _SIZE)
        self._used_rows = 0  # at most what :meth:`rows` says
        self._view = memoryview(self._map)
        self._counters = self._view[_COUNTERS_AT : _COUNTERS_AT + (SLOTS + 1) * _COUNTERS * 8].cast("Q")

    def close(self) -> None:
        """Let the memory go (in this process)."""
        self._counters.release()
        self._view.release()
        self._map.close()
        os.close(self.descriptor)

    # Counters

    def counters(self, slot: int) -> memoryview:
        """The counter row of a thread, indexed by :class:`Counter`; row ``SLOTS`` is the supervisor's."""
        return self._counters[slot * _COUNTERS : (slot + 1) * _COUNTERS]

    def total(self, counter: Counter) -> int:
        """The sum over all threads, past workers included."""
        return sum(self._counters[counter::_COUNTERS])

    # Facts

    def publish(self, facts: Mapping[str, Any]) -> None:
        """Replace the facts; a reader never sees half of them (odd sequence: being written)."""
        body = json.dumps(facts, ensure_ascii=False).encode()
        if len(body) > _FACTS_BYTES - _FACTS.size:
            raise ValueError("the facts do not fit into the shared memory")
        sequence, _ = _FACTS.unpack_from(self._map, _FACTS_AT)
        sequence |= 1
        _FACTS.pack_into(self._map, _FACTS_AT, sequence, 0)
        start = _FACTS_AT + _FACTS.size
        self._map[start : start + len(body)] = body
        _FACTS.pack_into(self._map, _FACTS_AT, (sequence + 1) & 0xFFFFFFFF, len(body))

    def facts(self) -> dict[str, Any]:
        """The last facts published whole; empty before the first, or when a worker died while writing."""
        for _ in range(100):
            before, length = _FACTS.unpack_from(self._map, _FACTS_AT)
            start = _FACTS_AT + _FACTS.size
            body = self._map[start : start + length]
            after, _ = _FACTS.unpack_from(self._map, _FACTS_AT)
            if before == after and not before & 1:
                return dict(json.loads(body)) if length else {}
        return {}

    # Which worker serves

    def enlist(self, pid: int, started: int) -> None:
        """Note the present worker: its pid and its start, as ``/proc`` tells it."""
        PROCESS.pack_into(self._map, _WORKER_AT, pid, started)

    def enlisted(self) -> tuple[int, int]:
        """(pid, start) of the last worker; zeros before the first."""
        pid, started = PROCESS.unpack_from(self._map, _WORKER_AT)
        return pid, started

    def beat(self, pid: int, now_ns: int) -> None:
        """A sign of life of the worker ``pid``."""
        PROCESS.pack_into(self._map, _BEAT_AT, pid, now_ns)

    def last_beat(self) -> tuple[int, int]:
        """(pid, monotonic nanoseconds) of the last sign of life; zeros before the first."""
        pid, now_ns = PROCESS.unpack_from(self._map, _BEAT_AT)
        return pid, now_ns

    # From supervisor to supervisor

    def keep(self, what: Mapping[str, Any]) -> None:
        """Leave what the next supervisor must know; no secrets."""
        body = json.dumps(what, ensure_ascii=False).encode()
        if len(body) > _KEPT_BYTES - _U32.size:
            raise ValueError("what is kept does not fit into the shared memory")
        self._map[_KEPT_AT + _U32.size : _KEPT_AT + _U32.size + len(body)] = body
        _U32.pack_into(self._map, _KEPT_AT, len(body))

    def kept(self) -> dict[str, Any]:
        """What the former supervisor left; empty when there was none."""
        (length,) = _U32.unpack_from(self._map, _KEPT_AT)
        start = _KEPT_AT + _U32.size
        return dict(json.loads(self._map[start : start + length])) if length else {}

    # Requests being worked on

    def request_buffer(self, slot: int) -> memoryview:
        """Where the thread of ``slot`` receives its requests."""
        start = _REQUESTS_AT + slot * REQUEST_BYTES
        return self._view[start : start + REQUEST_BYTES]

    # The journal of OPEN and RELEASE

    def applied(self) -> frozenset[int]:
        """``unique`` of the last OPEN or RELEASE that each slot has entered into the table."""
        uniques = self._view[_APPLIED_AT : _APPLIED_AT + SLOTS * 8].cast("Q")
        with uniques:
            return frozenset(uniques) - {0}

    def change_row(self, slot: int, unique: int, row: int, nodeid: int, backing_id: int, opens: int) -> None:
        """Set one row and note the request as applied, as one step: killed half-way, :meth:`redo` completes it."""
        LOG.pack_into(self._map, _LOG_AT, 0, slot, unique, row, nodeid, backing_id, opens)
        _U32.pack_into(self._map, _LOG_AT, 1)
        self._apply(slot, unique, row, nodeid, backing_id, opens)
        _U32.pack_into(self._map, _LOG_AT, 0)

    def redo(self) -> None:
        """Complete the change that a killed worker has begun; harmless when there is none."""
        valid, slot, unique, row, nodeid, backing_id, opens = LOG.unpack_from(self._map, _LOG_AT)
        if valid:
            self._apply(slot, unique, row, nodeid, backing_id, opens)
            _U32.pack_into(self._map, _LOG_AT, 0)

    def _apply(self, slot: int, unique: int, row: int, nodeid: int, backing_id: int, opens: int) -> None:
        ROW.pack_into(self._map, _TABLE_AT + row * ROW.size, nodeid, backing_id, opens)
        if row >= self._used_rows:
            self._used_rows = max(self.rows(), row + 1)
            _U32.pack_into(self._map, _ROWS_AT, self._used_rows)
        _U64.pack_into(self._map, _APPLIED_AT + slot * 8, unique)

    def rows(self) -> int:
        """Rows that were ever in use; all beyond are free."""
        return int(_U32.unpack_from(self._map, _ROWS_AT)[0])

    def row(self, row: int) -> tuple[int, int, int]:
        """(nodeid, backing id, opens) of one row."""
        nodeid, backing_id, opens = ROW.unpack_from(self._map, _TABLE_AT + row * ROW.size)
        return nodeid, backing_id, opens

    # Backing ids whose fate is undecided while a worker may be killed

    def backing_marks(self) -> tuple[int, int]:
        """(last id opened, id being closed or 0)."""
        last, closing = BACKING.unpack_from(self._map, _BACKING_AT)
        return last, closing

    def mark_backing(self, *, last: int | None = None, closing: int | None = None) -> None:
        """Change one or both of the marks."""
        if last is not None:
            _I32.pack_into(self._map, _BACKING_AT, last)
        if closing is not None:
            _I32.pack_into(self._map, _BACKING_AT + _I32.size, closing)
