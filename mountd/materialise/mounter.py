"""``python -m mountd.materialise.mounter MOUNT STAGE``: the process that walks the mount for the worker.

A path below the mount is looked up by asking the daemon. A worker that did so itself could be killed while it waits for
its own answer; such a thread cannot end before the next worker answers, and that one is not started before it ends.
So a process of its own walks, binds and unbinds. It reads one JSON line for each order, answers with one, and ends when
its input does.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

# include/uapi/linux/mount.h and include/linux/fs.h
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8


def main(mountpoint: str, stage: str) -> int:
    """Carry out orders until there are no more."""
    for line in sys.stdin.buffer:
        order = json.loads(line)
        try:
            match order["do"]:
                case "wait":
                    os.statvfs(mountpoint)  # never answered from a cache of the kernel: somebody serves
                case "bind":
                    _bind(order["source"], order["target"], stage)
                case "unbind":
                    _unmount(order["target"])
                case "look":
                    Path(order["target"]).stat()
            answer = ""
        except OSError as error:
            answer = os.strerror(error.errno or 0)
        sys.stdout.write(json.dumps({"error": answer}) + "\n")
        sys.stdout.flush()
    return 0


def _bind(source: str, target: str, stage: str) -> None:
    """Bind ``source`` over ``target``, read-only from the first moment in every mount namespace.

    The flags of a bind mount can only be changed afterwards, and copies in other namespaces do not follow; so they are
    set on a bind mount at ``stage``, of which ``target`` becomes a copy.
    """
    Path(stage).mkdir(mode=0o700, exist_ok=True)
    while os.path.ismount(stage):  # left by a process that was killed
        _unmount(stage)
    _mount(source, stage, _MS_BIND)
    try:
        _mount(None, stage, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
        _mount(stage, target, _MS_BIND)
    finally:
        _unmount(stage)


def _mount(source: str | None, target: str, flags: int) -> None:
    from_path = None if source is None else os.fsencode(source)
    if _libc().mount(from_path, os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), "mount")


def _unmount(target: str) -> None:
    if _libc().umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
        raise OSError(ctypes.get_errno(), "umount2")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
