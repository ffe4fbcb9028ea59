"""The service manager's side of a mount: readiness, watchdog, and descriptors kept over a restart of the service.

sd_notify(3), sd_pid_notify_with_fds(3) and sd_listen_fds(3), as far as they are needed: datagrams to
``$NOTIFY_SOCKET``. Without a service manager every method does nothing.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Self

_logger = logging.getLogger(__name__)

_FIRST_DESCRIPTOR = 3
"""``SD_LISTEN_FDS_START``."""
_PATIENCE_S = 1.0


class ServiceManager:
    """Who started this process as a service: ``address`` of its socket (None: nobody), ``watchdog_s`` its patience."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = "\0" + address[1:] if address is not None and address.startswith("@") else address
        self.watchdog_s = watchdog_s if address is not None else None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """What the variables ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` say."""
        meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environ.get("WATCHDOG_USEC", "")
        watchdog_s = int(microseconds) / 1e6 if meant and microseconds.isdigit() and int(microseconds) else None
        return cls(environ.get("NOTIFY_SOCKET") or None, watchdog_s)

    @property
    def present(self) -> bool:
        """Whether there is one."""
        return self._address is not None

    def ready(self, status: str) -> None:
        """The service is up; ``status`` is one line for ``systemctl status``."""
        self._tell("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def status(self, text: str) -> None:
        """Another line for ``systemctl status``."""
        self._tell(f"STATUS={text}")

    def alive(self) -> None:
        """A sign of life for the watchdog."""
        if self.watchdog_s is not None:
            self._tell("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        """The service is about to end."""
        self._tell("STOPPING=1", f"STATUS={status}")

    def store(self, named: Mapping[str, int]) -> None:
        """Have descriptors kept until they are forgotten, also while the service does not run.

        They are not watched (``FDPOLL=0``): the device reports an error for as long as it takes to be replaced.
        """
        for name, descriptor in named.items():
            self._tell("FDSTORE=1", f"FDNAME={name}", "FDPOLL=0", descriptor=descriptor)

    def forget(self, names: Iterable[str]) -> None:
        """Have descriptors closed that were kept under these names."""
        for name in names:
            self._tell("FDSTOREREMOVE=1", f"FDNAME={name}")

    def _tell(self, *lines: str, descriptor: int | None = None) -> None:
        if self._address is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_PATIENCE_S)
            try:
                sender.connect(self._address)
                body = ["\n".join(line.replace("\n", " ") for line in lines).encode()]
                socket.send_fds(sender, body, [descriptor] if descriptor is not None else [])
            except OSError as error:
                _logger.warning("the service manager did not take %s: %s", lines[0], error.strerror or error)


def credential(name: str, environ: Mapping[str, str]) -> str | None:
    """A secret that the unit loads (``LoadCredential=`` of systemd.exec(5)), or None."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    path = Path(folder) / name if folder else None
    return path.read_text("utf-8").strip() if path is not None and path.is_file() else None


def taken_descriptors(environ: MutableMapping[str, str]) -> dict[str, int]:
    """The descriptors that the service manager passed to this very process, by name; takes the variables away."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit():
        return {}
    numbers = range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count))
    return dict(zip(names, numbers, strict=False))
