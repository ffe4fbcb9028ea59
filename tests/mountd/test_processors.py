"""Idle processors kept within reach: when the kernel is told, what, and that it forgets."""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mountd.kernel.processors import ENOUGH, LATENCY_DEVICE, TICK_S, IdleProcessors
from tests.support.plain_mount import PlainMount

WITHDRAWN = -1


class Machine:
    """A file in the place of the device, in which everything that was said stays, and the name of a driver."""

    def __init__(self, base: Path, driver: str) -> None:
        self.device = base / "cpu_dma_latency"
        self.device.touch()
        name = base / "current_driver"
        name.write_text(driver + "\n")
        self.processors = IdleProcessors(self.device, name)
        self.processors.start()

    def said(self) -> list[int]:
        """The signed numbers of 32 bits that were written, in the order of this machine's bytes."""
        content = self.device.read_bytes()
        order = "<" if sys.byteorder == "little" else ">"
        return [number for (number,) in struct.iter_unpack(f"{order}i", content)]

    def requests_until(self, true: Callable[[], bool]) -> None:
        until = time.monotonic() + 20
        while not true():
            assert time.monotonic() < until, self.said()
            self.processors.request()
            time.sleep(TICK_S / ENOUGH / 10)


@pytest.fixture(params=["haltpoll", "intel_idle"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, request.param)
    yield made
    made.processors.close()


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(TICK_S)


def test_the_wish_is_said_once_while_many_requests_come_and_withdrawn_after_them(
    machine: Machine, request: pytest.FixtureRequest
) -> None:
    wished = 0 if "haltpoll" in request.node.name else 2
    for _ in range(3):
        machine.requests_until(lambda: len(machine.said()) % 2 == 1)
        wait_until(lambda: len(machine.said()) % 2 == 0)
    found = machine.said()
    assert len(found) >= 6
    assert found == [wished, WITHDRAWN] * (len(found) // 2)


def test_the_end_withdraws_the_wish(machine: Machine) -> None:
    machine.requests_until(lambda: len(machine.said()) % 2 == 1)
    machine.processors.close()
    assert machine.said()[-1] == WITHDRAWN
    machine.processors.close()


def test_few_requests_are_not_worth_a_word(machine: Machine) -> None:
    for _ in range(10):
        machine.processors.request()
        time.sleep(TICK_S)
    assert machine.said() == []


def test_without_the_device_nothing_happens(tmp_path: Path) -> None:
    processors = IdleProcessors(tmp_path / "none", tmp_path / "neither")
    processors.start()
    for _ in range(100):
        processors.request()
    processors.close()
    assert list(tmp_path.iterdir()) == []


def allowed_us() -> int:
    """What the kernel goes by: the lowest wish of all who have one."""
    with LATENCY_DEVICE.open("rb") as device:
        return int.from_bytes(device.read(4), sys.byteorder, signed=True)


def look_up_until(folder: Path, true: Callable[[], bool]) -> None:
    """Look up names that are not there, one after the other, until ``true`` or 20 seconds have gone."""
    until, number = time.monotonic() + 20, 0
    while not true():
        assert time.monotonic() < until
        for _ in range(200):
            number += 1
            (folder / f"absent-{number}").exists()


@pytest.mark.skipif(not os.access(LATENCY_DEVICE, os.W_OK), reason="the kernel has no power management, or we may not")
def test_the_kernel_is_told_during_a_burst_and_forgets_a_worker_that_died(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_bytes(b"a")
    wait_until(lambda: allowed_us() > 2)  # a mount of an earlier test that left its wish behind would be a fault
    before = allowed_us()
    with PlainMount(tmp_path, source) as mount:
        (mount.mountpoint / "a.txt").read_bytes()
        look_up_until(mount.mountpoint, lambda: allowed_us() <= 2)
        wait_until(lambda: allowed_us() == before)
        look_up_until(mount.mountpoint, lambda: allowed_us() <= 2)
        mount.kill_worker()
        wait_until(lambda: allowed_us() == before)
        assert (mount.mountpoint / "a.txt").read_bytes() == b"a"
        look_up_until(mount.mountpoint, lambda: allowed_us() <= 2)
    wait_until(lambda: allowed_us() == before)
