"""Answers on the wire: a header and buffers, or file bytes spliced from the cache without passing through Python."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass

from mountd.kernel.protocol import OUT_HEADER

SPLICE_FROM_BYTES = 32 << 10
"""Shorter answers are copied: two system calls instead of three."""
_PIPE_BYTES = 2 << 20
"""Room for 1 MiB in unaligned pages, with the header's page."""
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTCONN, errno.EINVAL)
"""The request was interrupted or resent elsewhere, or the file system unmounted: nobody waits for this answer.
(EINVAL: the connection knows no such request, as after an answer given by an earlier worker.)"""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FileRange:
    """An answer to READ that lies in a file: ``length`` bytes of ``descriptor`` from ``offset`` on."""

    descriptor: int
    offset: int
    length: int


class Answerer:
    """Writes the answers of one thread to its device."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._pipe: tuple[int, int] | None = None
        self._copy: bytearray | None = None
        self._may_splice = True

    def close(self) -> None:
        """Close the thread's pipe."""
        if self._pipe is not None:
            os.close(self._pipe[0])
            os.close(self._pipe[1])
            self._pipe = None

    def error(self, unique: int, code: int) -> bool:
        """Answer with an errno; False when nobody waits for it any more."""
        return self._write([OUT_HEADER.pack(OUT_HEADER.size, -code, unique)])

    def data(self, unique: int, parts: Sequence[Buffer]) -> bool:
        """Answer with bytes; False when nobody waits for them any more."""
        size = OUT_HEADER.size + (len(parts[0]) if len(parts) == 1 else sum(map(len, parts)))
        return self._write([OUT_HEADER.pack(size, 0, unique), *parts])

    def file(self, unique: int, found: FileRange) -> bool:
        """Answer with bytes of a file; False when nobody waits for them any more. Raises OSError (EIO) when the file
        is shorter than it should be: nothing has been answered then."""
        if found.length >= SPLICE_FROM_BYTES and self._may_splice:
            return self._splice(unique, found)
        return self._copied(unique, found)

    def _write(self, parts: Sequence[Buffer]) -> bool:
        try:
            os.writev(self._device, parts)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
        return True

    def _copied(self, unique: int, found: FileRange) -> bool:
        if self._copy is None or len(self._copy) < found.length:
            self._copy = bytearray(found.length)
        with memoryview(self._copy) as whole, whole[: found.length] as view:
            done = 0
            while done < found.length:
                count = os.preadv(found.descriptor, [view[done:]], found.offset + done)
                if count == 0:
                    raise OSError(errno.EIO, "a cache file is shorter than it was")
                done += count
            return self.data(unique, [view])

    def _splice(self, unique: int, found: FileRange) -> bool:
        pipe = self._open_pipe()
        if pipe is None:
            return self._copied(unique, found)
        source, sink = pipe
        whole = False
        try:
            os.write(sink, OUT_HEADER.pack(OUT_HEADER.size + found.length, 0, unique))
            done = 0
            while done < found.length:
                count = os.splice(found.descriptor, sink, found.length - done, offset_src=found.offset + done)
                if count == 0:
                    raise OSError(errno.EIO, "a cache file is shorter than it was")
                done += count
            os.splice(source, self._device, OUT_HEADER.size + found.length)
            whole = True
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
        finally:
            if not whole:
                self.close()  # a pipe with half an answer in it would spoil the next one
        return True

    def _open_pipe(self) -> tuple[int, int] | None:
        """The thread's pipe, large enough for the largest answer; None where the system does not allow that."""
        if self._pipe is None:
            source, sink = os.pipe2(os.O_CLOEXEC)
            self._pipe = (source, sink)
            try:
                fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            except PermissionError:  # above /proc/sys/fs/pipe-max-size, without CAP_SYS_RESOURCE
                self.close()
                self._may_splice = False
        return self._pipe
