"""Answers on the wire: a header and buffers, or file bytes spliced from the cache without passing through Python."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mountd.kernel.protocol import OUT_HEADER

SPLICE_FROM_BYTES = 32 << 10
"""Shorter answers are copied: two system calls instead of three."""
_PIPE_BYTES = (2 << 20, 1 << 20)
"""Sizes to try for a pipe; the larger needs CAP_SYS_RESOURCE, as /proc/sys/fs/pipe-max-size usually is 1 MiB."""
_LARGEST_READ_BYTES = 1 << 20
_PAGES_BESIDE = 2
"""Slots of a pipe that an answer takes beside its own pages: its header, and one since it may begin inside a page."""
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTCONN, errno.EINVAL)
"""The request was interrupted or resent elsewhere, or the file system unmounted: nobody waits for this answer.
(EINVAL: the connection knows no such request, as after an answer given by an earlier worker.)"""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FileRange:
    """An answer to READ that lies in a file: ``length`` bytes of ``descriptor`` from ``offset`` on; ``instead``
    has them when the file cannot be read."""

    descriptor: int
    offset: int
    length: int
    instead: Callable[[], Buffer]


@dataclass(frozen=True, slots=True)
class Pipe:
    """A pipe through which answers of up to ``most_bytes`` are spliced."""

    source: int
    sink: int
    most_bytes: int

    @classmethod
    def open(cls) -> Pipe:
        """A pipe as large as the system allows this process."""
        source, sink = os.pipe2(os.O_CLOEXEC)
        for size in _PIPE_BYTES:
            try:
                fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, size)
            except PermissionError:
                continue
            break
        room = fcntl.fcntl(sink, fcntl.F_GETPIPE_SZ)
        return cls(source, sink, room - _PAGES_BESIDE * os.sysconf("SC_PAGESIZE"))

    def close(self) -> None:
        """Close both ends."""
        os.close(self.source)
        os.close(self.sink)


def _pipe_if_any() -> Pipe | None:
    """A pipe, or None when this process has no descriptors left: then the bytes are copied."""
    try:
        return Pipe.open()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return None


def largest_read_bytes() -> int:
    """The largest READ that the kernel should ask for: a power of two whose answer can be spliced.

    Copying answers of 1 MiB cost a cached read 1.0 CPU seconds a GB, splicing 512 KiB at a time 0.6.
    """
    pipe = Pipe.open()
    pipe.close()
    return min(_LARGEST_READ_BYTES, 1 << (pipe.most_bytes.bit_length() - 1))


class Answerer:
    """Writes the answers of one thread to its device."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._pipe: Pipe | None = None
        self._copy: bytearray | None = None

    def close(self) -> None:
        """Close the thread's pipe."""
        if self._pipe is not None:
            self._pipe.close()
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
        if found.length >= SPLICE_FROM_BYTES:
            pipe = self._pipe = self._pipe or _pipe_if_any()
            if pipe is not None and found.length <= pipe.most_bytes:
                return self._splice(unique, found, pipe)
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

    def _splice(self, unique: int, found: FileRange, pipe: Pipe) -> bool:
        whole = False
        try:
            os.write(pipe.sink, OUT_HEADER.pack(OUT_HEADER.size + found.length, 0, unique))
            done = 0
            while done < found.length:
                count = os.splice(found.descriptor, pipe.sink, found.length - done, offset_src=found.offset + done)
                if count == 0:
                    raise OSError(errno.EIO, "a cache file is shorter than it was")
                done += count
            os.splice(pipe.source, self._device, OUT_HEADER.size + found.length)
            whole = True
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
        finally:
            if not whole:
                self.close()  # a pipe with half an answer in it would spoil the next one
        return True
