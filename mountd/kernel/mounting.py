"""Mounting and unmounting: mount(2) as root, ``fusermount3`` otherwise, and what can stand in the way."""

from __future__ import annotations

import array
import ctypes
import errno
import os
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mountd.kernel.device import READ_AHEAD_BYTES, open_device
from openshelf.errors import OpenshelfError, UsageError

FILESYSTEM_TYPE = "fuse.openshelf"
SOURCE = "openshelf"
READ_AHEAD_KIB = READ_AHEAD_BYTES >> 10

# include/uapi/linux/mount.h and include/linux/fs.h
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

_ESCAPE = re.compile(rb"\\([0-7]{3})")


class MountError(OpenshelfError):
    """The file system cannot be mounted or unmounted there."""


class MountBusy(MountError):
    """Files of the mount are still open."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """One line of ``/proc/self/mountinfo`` (proc_pid_mountinfo(5))."""

    path: Path
    device: str
    type: str
    source: str
    shared: bool
    """Whether mounts below it appear in other mount namespaces too (containers)."""


def mounts() -> list[Mounted]:
    """All mounts of this mount namespace, the topmost of one path last. Touches no mounted file system."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        left, _, right = line.partition(b" - ")
        fields = left.split(b" ")
        kind, source, *_ = right.split(b" ")
        shared = any(field.startswith(b"shared:") for field in fields[6:])
        found.append(Mounted(Path(_unescape(fields[4])), fields[2].decode(), kind.decode(), _unescape(source), shared))
    return found


def _unescape(text: bytes) -> str:
    """A field of mountinfo: space, tab, newline and backslash are written in octal."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match.group(1), 8)]), text))


def mounted_at(path: Path) -> Mounted | None:
    """What is mounted exactly at ``path`` (the topmost), or None."""
    return next((mount for mount in reversed(mounts()) if mount.path == path), None)


def canonical(path: Path) -> Path:
    """``path`` absolute and without symbolic links, without touching a mount at its end (it may be dead)."""
    absolute = Path(os.path.normpath(path.absolute()))
    # Not Path.resolve: it calls stat at the end, which hangs on a mount that nobody serves.
    absolute = Path(os.path.realpath(absolute.parent)) / absolute.name
    if mounted_at(absolute) is not None:
        return absolute
    return Path(os.path.realpath(absolute))


def refuse_nesting(mountpoint: Path, cache: Path) -> None:
    """Raise UsageError when mount and cache (canonical) lie one inside the other: the daemon would wait for itself."""
    inside = cache == mountpoint or mountpoint in cache.parents
    if inside or cache in mountpoint.parents:
        raise UsageError(
            "cache_inside_mount",
            f"The cache {cache} and the mount {mountpoint} lie one inside the other",
            "Choose a cache folder outside the mount.",
        )


def prepare(mountpoint: Path) -> None:
    """Make ``mountpoint`` ready: clear a stale mount, create a missing folder, refuse what cannot work.

    Raises MountError with one line that says what to do.
    """
    present = mounted_at(mountpoint)
    if present is not None:
        if not (present.type.startswith("fuse") and _is_dead(mountpoint)):
            raise MountError(
                "already_mounted",
                f"{mountpoint} is already mounted ({present.type})",
                f"Unmount it first: openshelf umount {mountpoint}"
                if present.type == FILESYSTEM_TYPE
                else "Choose another folder, or unmount what is there.",
            )
        detach(mountpoint)
    try:
        mountpoint.mkdir(parents=False, exist_ok=True)
        with os.scandir(mountpoint) as found:
            occupied = any(found)
    except FileNotFoundError as error:
        raise MountError("no_parent", f"{mountpoint.parent} does not exist", "Create it, or name another.") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise MountError("not_a_folder", f"{mountpoint} is not a folder", "Choose an empty folder.") from error
    except OSError as error:
        raise MountError("bad_mountpoint", f"{mountpoint} cannot be used: {error.strerror}") from error
    if occupied:
        raise MountError("not_empty", f"{mountpoint} is not empty", "Choose an empty folder to mount on.")


def _is_dead(mountpoint: Path) -> bool:
    """Whether the file system at ``mountpoint`` has lost its daemon."""
    try:
        os.statvfs(mountpoint)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def mount(mountpoint: Path, max_read_bytes: int) -> int:
    """Mount at ``mountpoint``, read-only, and return the descriptor of the device. INIT is then waiting on it.

    ``max_read_bytes`` is the largest READ that the kernel may ask for. Raises MountError.
    """
    if os.geteuid() == 0:
        device = open_device()
        try:
            _mount_as_root(device, mountpoint, max_read_bytes)
        except BaseException:
            os.close(device)
            raise
        return device
    return _mount_with_fusermount(mountpoint, max_read_bytes)


def _mount_as_root(device: int, mountpoint: Path, max_read_bytes: int) -> None:
    options = (
        f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read={max_read_bytes}"
    )
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    result = _libc().mount(
        SOURCE.encode(), os.fsencode(mountpoint), FILESYSTEM_TYPE.encode(), ctypes.c_ulong(flags), options.encode()
    )
    if result != 0:
        code = ctypes.get_errno()
        hint = "CAP_SYS_ADMIN is needed." if code == errno.EPERM else "See the kernel's log (dmesg)."
        raise MountError("mount_failed", f"{mountpoint} cannot be mounted: {os.strerror(code)}", hint)


def _mount_with_fusermount(mountpoint: Path, max_read_bytes: int) -> int:
    """Let the set-uid helper mount and pass the device back over ``_FUSE_COMMFD`` (fusermount3(1))."""
    program = shutil.which("fusermount3")
    if program is None:
        raise MountError("no_fusermount", "Mounting without root needs fusermount3", "Install the package fuse3.")
    options = f"ro,nosuid,nodev,default_permissions,max_read={max_read_bytes},fsname={SOURCE},subtype={SOURCE}"
    # allow_other needs a line in /etc/fuse.conf; without it the mount is for its owner alone.
    refusal = ""
    for extra in (",allow_other", ""):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            done = subprocess.run(
                [program, "-o", options + extra, "--", str(mountpoint)],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
                descriptors = array.array("i", ancillary[0][2][:4])
                os.set_inheritable(descriptors[0], False)
                return descriptors[0]
            refusal = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    raise MountError("mount_failed", f"{mountpoint} cannot be mounted: {refusal}")


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount; ``lazy`` detaches the name at once and lets open files go on. Raises MountBusy, MountError."""
    if os.geteuid() != 0:
        program = shutil.which("fusermount3") or "fusermount3"
        done = subprocess.run(
            [program, "-u", *(["-z"] if lazy else []), "--", str(mountpoint)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
        text = done.stderr.strip()
        if "busy" in text:
            raise MountBusy("mount_busy", f"{mountpoint} is in use")
        raise MountError("umount_failed", f"{mountpoint} cannot be unmounted: {text}")
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    if _libc().umount2(os.fsencode(mountpoint), flags) == 0:
        return
    code = ctypes.get_errno()
    if code == errno.EBUSY:
        raise MountBusy("mount_busy", f"{mountpoint} is in use")
    raise MountError("umount_failed", f"{mountpoint} cannot be unmounted: {os.strerror(code)}")


def unmount_below(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount what is mounted on folders inside ``mountpoint``, the deepest first."""
    for below in sorted((m.path for m in mounts() if mountpoint in m.path.parents), reverse=True):
        unmount(below, lazy=lazy)


def detach(mountpoint: Path) -> None:
    """Take a dead mount off its folder."""
    unmount(mountpoint, lazy=True)


def raise_read_ahead(mountpoint: Path) -> bool:
    """Let the kernel read ahead 1 MiB instead of 128 KiB, in large requests; False where that is not allowed."""
    present = mounted_at(mountpoint)
    if present is None:
        return False
    try:
        Path(f"/sys/class/bdi/{present.device}/read_ahead_kb").write_text(str(READ_AHEAD_KIB))
    except OSError:
        return False  # not root, or /sys is read-only in this container: smaller requests, nothing else
    return True
