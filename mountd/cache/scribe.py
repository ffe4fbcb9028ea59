"""The program that writes the files of packs, beside the worker: ``python -I scribe.py SOCKET MEMORY PARENT``.

Checking and writing a small file takes a dozen short system calls, after each of which a thread of the worker would
wait for the interpreter that answers opens. So a process of its own does it. It imports next to nothing.

It reads orders from ``SOCKET``: the length of what follows, then, marshalled, a list of files (path, first byte in
``MEMORY``, size in bytes, mtime in nanoseconds, BLAKE3). To each order it answers with one byte a file: 0 when the file
is written, :data:`WRONG`, or an errno. It ends with the worker, between two files.
"""

from __future__ import annotations

import errno
import marshal
import mmap
import os
import socket
import sys
from struct import Struct

from blake3 import blake3

LENGTH = Struct("=I")
WRONG = 255
"""Answer for a file whose bytes are not those that its BLAKE3 promises; nothing was written."""
MODE = 0o400
"""Of a file that may not be on the disk yet (``UNSETTLED_MODE`` of :mod:`mountd.cache.layout`)."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

Order = tuple[str, int, int, int, bytes]
"""Path, first byte in the memory, size in bytes, mtime in nanoseconds, BLAKE3."""


def write_new(path: str, data: memoryview, mtime_ns: int) -> None:
    """Make the file ``path`` with these bytes and this date. OSError: it exists (EEXIST), or the disk refuses, and
    nothing of it is left."""
    try:
        descriptor = os.open(path, _NEW, MODE)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)  # noqa: PTH103, PTH120 - pathlib is slow to import
        descriptor = os.open(path, _NEW, MODE)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))
    except OSError:
        os.unlink(path)  # noqa: PTH108
        raise
    finally:
        os.close(descriptor)


def _carry_out(order: Order, memory: memoryview) -> int:
    path, start, size, mtime_ns, digest = order
    data = memory[start : start + size]
    if blake3(data).digest() != digest:
        return WRONG
    try:
        write_new(path, data, mtime_ns)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def receive(connection: socket.socket, length: int) -> bytearray:
    """Exactly ``length`` bytes; EOFError when the other side is gone."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data


def main(arguments: list[str]) -> int:
    """Write until the worker closes the connection or is gone."""
    connection, descriptor, parent = socket.socket(fileno=int(arguments[0])), int(arguments[1]), int(arguments[2])
    memory = memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ))
    while True:
        try:
            (length,) = LENGTH.unpack(receive(connection, LENGTH.size))
            orders: list[Order] = marshal.loads(receive(connection, length))  # noqa: S302 - from the worker
            answer = bytearray()
            for order in orders:
                # Nothing may appear in the cache after the next worker has looked at it.
                if os.getppid() != parent:
                    return 1
                answer.append(_carry_out(order, memory))
            connection.sendall(answer)
        except (EOFError, ConnectionError):
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
