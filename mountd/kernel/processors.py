"""Idle processors kept within reach while requests follow one another closely.

Each request wakes the daemon and each answer wakes its reader. A virtual machine's idle processor is given back to the
host at once, and takes up to 0.1 ms to come back; a real one leaves its deep sleep in as long. Neither happens for as
long as someone holds a low value at ``/dev/cpu_dma_latency`` (``Documentation/power/pm_qos_interface.rst``); the kernel
forgets the value when the holder dies.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

LATENCY_DEVICE = Path("/dev/cpu_dma_latency")
DRIVER = Path("/sys/devices/system/cpu/cpuidle/current_driver")
TICK_S = 0.01
ENOUGH = 5
"""So many requests in a tick are worth it: waking up is then a twentieth of the time between them, or more."""

_HALTED_US = 0
"""``haltpoll``, the driver of virtual machines, halts unless nothing at all may be waited for."""
_SHALLOW_US = 2
"""Real processors come back from their first idle state within this, and save most of what idling saves in it."""
_NO_MATTER = -1
"""``PM_QOS_DEFAULT_VALUE``: our wish is withdrawn."""


class IdleProcessors:
    """Lets the host's processors sleep deeply, but for the time that many requests come. Where the device is not to be
    had (no root, or a container without it), nothing happens."""

    def __init__(self, device: Path = LATENCY_DEVICE, driver: Path = DRIVER) -> None:
        self._device = -1
        with contextlib.suppress(OSError):
            self._device = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
        self._latency_us = allowed_latency_us(driver)
        self._stirred = threading.Event()
        self._closing = False
        self._requests = 0
        self._thread = threading.Thread(target=self._run, name="processors", daemon=True)

    def start(self) -> None:
        """Begin to watch what :meth:`request` tells."""
        if self._device >= 0:
            self._thread.start()

    def request(self) -> None:
        """A request came; quick, called by one thread at a time."""
        self._requests += 1
        if not self._stirred.is_set():
            self._stirred.set()

    def close(self) -> None:
        """Withdraw the wish and end."""
        self._closing = True
        self._stirred.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._device >= 0:
            os.close(self._device)
            self._device = -1

    def _run(self) -> None:
        while not self._closing:
            self._stirred.wait()
            self._while_many_come()
            self._stirred.clear()

    def _while_many_come(self) -> None:
        held, before = False, self._requests
        while not self._closing:
            time.sleep(TICK_S)
            now = self._requests
            if now - before < ENOUGH:
                break
            before = now
            held = held or self._wish(self._latency_us)
        if held:
            self._wish(_NO_MATTER)

    def _wish(self, latency_us: int) -> bool:
        """Say how long a processor may take to come back; a signed number of 32 bits is what the device takes."""
        with contextlib.suppress(OSError):
            os.write(self._device, latency_us.to_bytes(4, sys.byteorder, signed=True))
            return True
        return False


def allowed_latency_us(driver: Path = DRIVER) -> int:
    """What an idle processor may take to come back while requests are answered, by the kernel's cpuidle driver."""
    try:
        return _HALTED_US if driver.read_text().strip() == "haltpoll" else _SHALLOW_US
    except OSError:
        return _SHALLOW_US


def may_be_held(device: Path = LATENCY_DEVICE) -> bool:
    """Whether this process may say how long processors may take; says nothing."""
    try:
        os.close(os.open(device, os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
