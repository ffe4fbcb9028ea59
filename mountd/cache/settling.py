"""Small files reach the disk together, soon after they were sealed.

A file of one chunk is given its sealed name at once, with a mode that says that its bytes may not be on the disk yet.
A moment later one syncfs(2) makes all such files durable, and each gets the mode of a durable one. So a sealed name of
the durable mode always has the right bytes, also after a power cut; one of the other mode, which a daemon that did not
end properly has left, is hashed before it is served.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

WINDOW_S = 1.0
"""How long files are gathered."""
ONE_BY_ONE = 8
"""Up to so many files are synced by themselves; syncfs writes what others have on that disk too."""

Settled = Callable[[Mapping[bytes, object], OSError | None], None]
"""Told of files (digest → what was given to :meth:`Settling.add`) that are durable now, or could not be made so."""


class Settling:
    """The files of one cache that are sealed but may not be on the disk. Thread-safe."""

    def __init__(self, path_of: Callable[[bytes], Path], root: Path, settled: Settled) -> None:
        self._path_of = path_of
        self._root = root
        self._settled = settled
        self._changed = threading.Condition()
        self._waiting: dict[bytes, object] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, sha256: bytes, token: object) -> None:
        """Have a file synced soon; ``token`` tells this sealing from any other of the same file."""
        self.add_all((sha256,), token)

    def add_all(self, digests: Iterable[bytes], token: object) -> None:
        """The same for many files that were sealed together."""
        with self._changed:
            self._waiting.update(dict.fromkeys(digests, token))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="settle", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Sync what is left."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                self._changed.wait_for(lambda: self._closed, WINDOW_S)
                batch, self._waiting = self._waiting, {}
                if not batch:
                    return
            try:
                self._sync(batch)
            except OSError as error:
                self._settled(batch, error)
            else:
                self._settled(batch, None)

    def _sync(self, batch: Mapping[bytes, object]) -> None:
        if len(batch) > ONE_BY_ONE:
            _sync_file_system(self._root)
            return
        for sha256 in batch:
            try:
                descriptor = os.open(self._path_of(sha256), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # evicted meanwhile
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _sync_file_system(folder: Path) -> None:
    """syncfs(2), which Python has not: everything written to the file system of ``folder`` is on its disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(descriptor)
