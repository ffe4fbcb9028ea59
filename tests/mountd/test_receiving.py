"""Waiting for requests: awake where they follow one another closely, asleep where they do not."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mountd.kernel import receiving
from mountd.kernel.processors import IdleProcessors
from mountd.kernel.receiving import MOST_AWAKE_NS, Receiver

BUFFER = memoryview(bytearray(8192))


class Line:
    """A socket in the place of the device, and a clock that goes on a microsecond whenever it is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nothing: Path) -> None:
        self.ours, self.kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.receiver = Receiver(IdleProcessors(nothing))
        self.now_ns = 0
        self.looks = 0
        self.meanwhile: Callable[[], None] = lambda: None
        readv = os.readv
        monkeypatch.setattr(receiving.time, "monotonic_ns", self._clock)
        monkeypatch.setattr(receiving.os, "sched_yield", self._look)
        monkeypatch.setattr(receiving.os, "readv", lambda *what: (self.meanwhile(), readv(*what))[1])

    def _clock(self) -> int:
        self.now_ns += 1_000
        return self.now_ns

    def _look(self) -> None:
        self.looks += 1

    def receive_after(self, waited_ns: int, *, alone: bool = True) -> int:
        """Receive a request that is sent when the receiver has fallen asleep, after ``waited_ns``: looks before."""
        before = self.looks

        def send() -> None:
            self.now_ns += waited_ns
            self.kernel.send(b"request")

        self.meanwhile = send
        assert self.receiver.receive(self.ours.fileno(), BUFFER, alone=alone) == 7
        assert bytes(BUFFER[:7]) == b"request"
        return self.looks - before


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Line]:
    made = Line(monkeypatch, tmp_path / "none")
    yield made
    made.ours.close()
    made.kernel.close()


def test_requests_close_together_are_waited_for_awake_longer_each_time(line: Line) -> None:
    looks = [line.receive_after(40_000) for _ in range(6)]
    assert looks[0] == 0
    assert looks[1:4] == sorted(looks[1:4]) and looks[1] > 0
    assert looks[4] == looks[5] == pytest.approx(MOST_AWAKE_NS / 1_000, abs=2)


def test_a_request_that_comes_while_awake_is_received_without_falling_asleep(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.receive_after(40_000)
    line.receive_after(40_000)

    def arrive() -> None:
        line.looks += 1
        if line.looks % 3 == 0:
            line.kernel.send(b"another")

    line.looks, line.meanwhile = 0, lambda: None
    monkeypatch.setattr(receiving.os, "sched_yield", arrive)
    assert line.receiver.receive(line.ours.fileno(), BUFFER, alone=True) == 7
    assert (line.looks, bytes(BUFFER[:7])) == (3, b"another")


def test_after_long_rests_nobody_stays_awake(line: Line) -> None:
    for _ in range(6):
        line.receive_after(40_000)
    looks = [line.receive_after(5_000_000) for _ in range(6)]
    assert looks[0] > looks[1] > looks[2] > 0
    assert looks[-1] == 0


def test_whoever_is_not_alone_falls_asleep_at_once(line: Line) -> None:
    for _ in range(4):
        line.receive_after(40_000)
    assert line.receive_after(40_000, alone=False) == 0
