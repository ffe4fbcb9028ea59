"""From one supervisor to the next: the kernel's descriptors, the shared memory and the sockets go over, so that
neither a new version of the code nor the death of a supervisor ends a mount.

There are two ways. A process becomes the next supervisor by running the new code in its own place (execve keeps pid and
descriptors; ``OPENSHELF_HELD`` names them), or systemd keeps the descriptors and gives them to the next start
(:mod:`mountd.systemd`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import NoReturn

from mountd import systemd
from mountd.shared_state import LAYOUT
from openshelf.errors import OpenshelfError

HELD_VARIABLE = "OPENSHELF_HELD"
"""``name=descriptor`` of all that is handed over, separated by commas. No secret."""
CHECK_FLAG = "--check"
"""Asks a program whether it could take over: it imports what it needs and prints its layout of the shared memory."""
CHECK_WITHIN_S = 30.0
_DEVICE = "device-"


class HandoverError(OpenshelfError):
    """Another supervisor cannot take over."""


@dataclass(frozen=True, slots=True)
class Held:
    """The descriptors that are a mount. ``devices``: of the FUSE connection, clones included."""

    devices: tuple[int, ...]
    state: int
    listener: int | None
    work_listener: int | None

    def names(self) -> dict[str, int]:
        """Every descriptor by its name."""
        named = {f"{_DEVICE}{number}": device for number, device in enumerate(self.devices)}
        named["state"] = self.state
        if self.listener is not None and self.work_listener is not None:
            named |= {"control": self.listener, "work": self.work_listener}
        return named

    @classmethod
    def from_names(cls, named: Mapping[str, int]) -> Held | None:
        """From named descriptors; None (and all closed) when the mount's own are not among them."""
        devices = tuple(named[name] for name in sorted(named) if name.startswith(_DEVICE))
        if not devices or "state" not in named:
            for descriptor in named.values():
                os.close(descriptor)
            return None
        return cls(devices, named["state"], named.get("control"), named.get("work"))

    def close(self) -> None:
        """Let all of them go."""
        for descriptor in self.names().values():
            os.close(descriptor)


def adopt(environ: MutableMapping[str, str]) -> Held | None:
    """What a former supervisor handed over to this process, or None. Takes the variables out of ``environ``."""
    named = systemd.taken_descriptors(environ)
    given = environ.pop(HELD_VARIABLE, "")
    for pair in filter(None, given.split(",")):
        name, _, number = pair.partition("=")
        named[name] = int(number)
    for descriptor in named.values():
        os.set_inheritable(descriptor, False)
    return Held.from_names(named) if named else None


@dataclass(frozen=True, slots=True)
class Program:
    """How this program is started anew: what follows the interpreter, and what it reads from standard input."""

    arguments: tuple[str, ...]
    orders: bytes

    def check(self, python: str) -> None:
        """Raise HandoverError when ``python`` could not take over with this program: nothing has changed then."""
        command = [python, *self.arguments, CHECK_FLAG]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_WITHIN_S, check=False,
                cwd="/",
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HandoverError(
                "cannot_take_over", f"{python} cannot be started: {error}", "Repair the installation; all goes on."
            ) from error
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise HandoverError(
                "cannot_take_over", f"The new code does not start: {said}", "Repair the installation; all goes on."
            )
        if done.stdout.strip() != str(LAYOUT):
            raise HandoverError(
                "other_layout",
                "The new code arranges the shared memory differently and cannot take this mount over",
                "Unmount when it is idle, and mount again.",
            )

    def become(self, python: str, held: Held) -> NoReturn:
        """Run this program in place of the present one, with the descriptors of the mount. Raises OSError."""
        orders = os.memfd_create("orders", os.MFD_CLOEXEC)
        view = memoryview(self.orders)
        while view:
            view = view[os.write(orders, view) :]
        os.lseek(orders, 0, os.SEEK_SET)
        os.dup2(orders, 0)
        os.close(orders)
        named = held.names()
        environ = {**os.environ, HELD_VARIABLE: ",".join(f"{name}={number}" for name, number in named.items())}
        try:
            for descriptor in named.values():
                os.set_inheritable(descriptor, True)
            os.execve(python, [python, *self.arguments], environ)  # noqa: S606 (our own interpreter)
        finally:
            for descriptor in named.values():
                os.set_inheritable(descriptor, False)
