"""fanotify(7): which file was opened in a marked folder, and by which process.

A mark belongs to the folder's inode, so an open is seen through any bind mount and in any mount namespace, and opens of
the same inode under another name (the cache's own) are not. Events name folder and file (``FAN_REPORT_DFID_NAME``,
Linux 5.9): no descriptor is opened for an event, and equal ones of one process that nobody has read yet become one.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

# include/uapi/linux/fanotify.h
_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_UNLIMITED_MARKS, _FAN_REPORT_DFID_NAME = 0x1, 0x2, 0x20, 0xC00
_FAN_MARK_ADD, _FAN_MARK_ONLYDIR = 0x1, 0x8
_FAN_OPEN, _FAN_Q_OVERFLOW, _FAN_EVENT_ON_CHILD = 0x20, 0x4000, 0x0800_0000
_METADATA = struct.Struct("=IBBHQii")
"""``struct fanotify_event_metadata``: length, version, reserved, length of itself, mask, descriptor, pid."""
_FID = struct.Struct("=BBHQ")
"""``struct fanotify_event_info_fid`` up to its handle: type, padding, length, file system id."""
_HANDLE = struct.Struct("=Ii")
"""``struct file_handle``: bytes of the handle that follows, its type."""
_MAX_HANDLE_BYTES = 128
_AT_FDCWD = -100
BUFFER_BYTES = 64 << 10

Opens = Iterator[tuple[bytes, bytes, int]]


class Fanotify:
    """A group of marks. Raises OSError where the kernel has none of this, or without root.

    The kernel's queue is bounded (``/proc/sys/fs/fanotify/max_queued_events``): who opens a file never waits for it,
    and a listener that is stopped costs no memory without end. ``lost`` counts how often the queue was full.
    """

    def __init__(self) -> None:
        flags = _FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_UNLIMITED_MARKS | _FAN_REPORT_DFID_NAME
        self.descriptor = _checked(_libc().fanotify_init(flags, os.O_RDONLY))
        self.lost = 0

    def mark(self, folder: bytes) -> bytes:
        """Watch a folder; the handle by which events name it. Raises OSError where its file system has none."""
        mask = ctypes.c_uint64(_FAN_OPEN | _FAN_EVENT_ON_CHILD)
        flags = _FAN_MARK_ADD | _FAN_MARK_ONLYDIR
        _checked(_libc().fanotify_mark(self.descriptor, flags, mask, _AT_FDCWD, folder))
        return _handle_of(folder)

    def read(self) -> bytes:
        """Some of the events that are waiting, for :meth:`opens`; empty when none is."""
        try:
            return os.read(self.descriptor, BUFFER_BYTES)
        except BlockingIOError:
            return b""

    def opens(self, data: bytes) -> Opens:
        """(handle of the folder, name of the file, pid) of each open."""
        place, end = 0, len(data)
        while place < end:
            length, _, _, header, mask, _, pid = _METADATA.unpack_from(data, place)
            if mask & _FAN_Q_OVERFLOW:
                self.lost += 1
            else:
                start = place + header + _FID.size
                name = start + _HANDLE.size + _HANDLE.unpack_from(data, start)[0]
                yield data[start:name], data[name : data.index(b"\0", name)], pid
            place += length

    def close(self) -> None:
        """Remove all marks."""
        os.close(self.descriptor)


def _handle_of(folder: bytes) -> bytes:
    """name_to_handle_at(2): what names a folder as long as it exists."""
    buffer = ctypes.create_string_buffer(_HANDLE.size + _MAX_HANDLE_BYTES)
    _HANDLE.pack_into(buffer, 0, _MAX_HANDLE_BYTES, 0)
    mount_id = ctypes.c_int()
    _checked(_libc().name_to_handle_at(_AT_FDCWD, folder, buffer, ctypes.byref(mount_id), 0))
    return buffer.raw[: _HANDLE.size + _HANDLE.unpack_from(buffer, 0)[0]]


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
