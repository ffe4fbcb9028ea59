"""Files of a pack on their way to the disk: ordered from a scribe, answered, and finished by the group."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blake3 import blake3

from mountd.cache.scribe import WRONG
from mountd.cache.scribes import Scribe, ScribeLost, Scribes
from mountd.cache.small import Entered, SmallFiles
from mountd.rows import PackedFile

SEGMENTS = 2
"""The files of one order are written while the bytes of the next one come."""

Told = Callable[[PackedFile], None]


def memory_bytes(segment_bytes: int) -> int:
    """What a scribe's memory must hold for orders whose data is up to ``segment_bytes``."""
    return SEGMENTS * segment_bytes


@dataclass(frozen=True, slots=True)
class _Order:
    entered: Entered
    files: Sequence[PackedFile]
    starts: Sequence[int]
    segment: memoryview


class Desk:
    """Writes the files of one pack, and tells of each when it is done, or that its bytes are wrong. Used by one
    thread."""

    def __init__(self, small: SmallFiles, scribes: Scribes, done: Told, wrong: Told) -> None:
        self._small = small
        self._scribes = scribes
        self._scribe: Scribe | None = scribes.take()
        self._done = done
        self._wrong = wrong
        self._orders: deque[_Order] = deque()
        self._written: list[bytes] = []
        self._number = 0

    def put(self, entered: Entered, files: Sequence[PackedFile], position: int, data: memoryview) -> None:
        """Have entered files written, whose bytes lie in ``data`` from byte ``position`` of the pack on."""
        first = files[0].offset
        content = data[first - position : files[-1].offset + files[-1].size - position]
        starts = [each.offset - first for each in files]
        scribe = self._scribe
        if scribe is None:
            self._write(_Order(entered, files, starts, content))
            return
        at = self._number % SEGMENTS * (len(scribe.memory) // SEGMENTS)
        segment = scribe.memory[at : at + len(content)]
        segment[:] = content
        orders = [self._small.order(entered, each, at + start) for each, start in zip(files, starts, strict=True)]
        kept = [(each, start) for each, start, order in zip(files, starts, orders, strict=True) if order is not None]
        for each, order in zip(files, orders, strict=True):
            if order is None:
                self._done(each)
        self._orders.append(_Order(entered, [each for each, _ in kept], [start for _, start in kept], segment))
        try:
            scribe.order([order for order in orders if order is not None])
        except ScribeLost:
            self._lose()
        # The first file is waited for; later answers are taken when others are under way.
        while len(self._orders) > (1 if self._number else 0):
            self._take_answer()
        self._number += 1

    def finish(self, entered: Entered) -> None:
        """All files of a group have been put: take what is outstanding, and have them settled."""
        while self._orders:
            self._take_answer()
        self._small.finish(entered, self._written)
        self._written = []

    def close(self) -> None:
        """Give the scribe back."""
        if self._scribe is not None:
            self._scribes.give_back(self._scribe)
            self._scribe = None

    def _take_answer(self) -> None:
        """Act on what became of the oldest order."""
        if self._scribe is None:
            self._write(self._orders.popleft())
            return
        order = self._orders[0]
        try:
            answer = self._scribe.answer(len(order.files))
        except ScribeLost:
            self._lose()
            return
        self._orders.popleft()
        for index, (each, code) in enumerate(zip(order.files, answer, strict=True)):
            if code == 0:
                self._small.show(each.sha256)
                self._written.append(each.sha256)
            elif code == errno.EEXIST:
                self._write(_Order(order.entered, [each], [order.starts[index]], order.segment))
                continue
            elif code == WRONG:
                self._wrong(each)
                continue
            else:
                self._small.give_up(each.sha256, code)
            self._done(each)

    def _lose(self) -> None:
        """The scribe is gone: write by ourselves what it was ordered, and the rest of the pack."""
        if self._scribe is not None:
            self._scribe.close()
            self._scribe = None
        while self._orders:
            self._write(self._orders.popleft())

    def _write(self, order: _Order) -> None:
        for each, start in zip(order.files, order.starts, strict=True):
            content = order.segment[start : start + each.size]
            if blake3(content).digest() != each.blake3:
                self._wrong(each)
                continue
            if self._small.write(order.entered, each.sha256, content, each.mtime_ns):
                self._written.append(each.sha256)
            self._done(each)
