"""Where things lie in the cache's own folder, who may use it, and what it lies on.

<cache>/                       0700, of the daemon's user; `lock`: one daemon per cache; `format`: version
<cache>/objects/, partial/, trees/, disk   as on every disk: :mod:`mountd.cache.disk`
<cache>/manifests/<sha256>.arrow, <cache>/records/…   verified manifests and signed release records
<cache>/index.sqlite           sizes, disks and last use of objects, pins
<cache>/names.sqlite           the last good feed state
<cache>/inodes                 which folder has which node id
<cache>/trust.json             the catalog's key and the feed position last seen

Format 1 had no other disks and no pins; it is brought to format 2 in place when it is opened.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from pathlib import Path

from mountd.cache.disk import Disk, Disks
from openshelf.errors import OpenshelfError

FORMAT = "2"
OLDER_FORMATS = frozenset({"1"})
SEALED_MODE = 0o444
_FOLDERS = 256
UNSETTLED_MODE = 0o400
"""The mode of a small sealed file whose bytes may not be on the disk yet (:mod:`mountd.cache.settling`)."""
OVERLAYFS_TYPES = frozenset({"overlay", "overlayfs", "fuse.fuse-overlayfs"})


class CacheError(OpenshelfError):
    """The cache folder cannot be used as it is."""


class CacheLock:
    """Exclusive use of a cache folder, held until :meth:`release` or the end of the process (flock on `lock`)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, cache: Path) -> CacheLock:
        """Lock ``path`` or raise :class:`CacheError` naming the process that holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            named = f" (process {holder})" if holder.isdigit() else ""
            raise CacheError(
                "cache_in_use",
                f"The cache {cache} is in use by another mount{named}",
                "Give each mount its own --cache, or unmount the other one.",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)


class Layout:
    """The paths of a cache folder that exists, is private and has a format this version knows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / "lock"
        self.disks = Disks(Disk(0, root))
        self.objects = root / "objects"
        self.partial = root / "partial"
        self.manifests = root / "manifests"
        self.records = root / "records"
        self.index = root / "index.sqlite"
        self.names = root / "names.sqlite"
        self.inodes = root / "inodes"
        self.trust = root / "trust.json"

    @classmethod
    def prepare(cls, root: Path) -> Layout:
        """Make or check the folder: owner, mode 0700, format version. :class:`CacheError` says what is wrong."""
        prepare_folder(root)
        layout = cls(root)
        for folder in (layout.manifests, layout.records):
            folder.mkdir(mode=0o700, exist_ok=True)
        return layout

    def object_path(self, sha256: bytes) -> Path:
        """Where the sealed file with this digest goes, and lies unless a disk was added since: ask
        :meth:`mountd.cache.store.Cache.object_path` for where it is."""
        return self.disks.home(sha256).object_path(sha256)

    def object_name(self, sha256: bytes) -> str:
        """The same as text, which is made in a tenth of the time: it is asked for at every open of a small file."""
        return self.disks.home(sha256).object_name(sha256)

    def partial_path(self, sha256: bytes) -> Path:
        """Where the partial file with this digest goes."""
        return self.disks.home(sha256).partial_path(sha256)

    def manifest_path(self, digest_hex: str) -> Path:
        """Where the verified manifest with this digest lies."""
        return self.manifests / f"{digest_hex}.arrow"


def prepare_folder(root: Path) -> None:
    """Make or check a folder for objects: owner, mode 0700, format version. Raises :class:`CacheError`."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = root.stat()
    except OSError as error:
        raise CacheError(
            "cache_unusable",
            f"The cache {root} cannot be made: {error.strerror}",
            "Choose a folder on a local disk with --cache.",
        ) from error
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise CacheError(
            "cache_not_private",
            f"The cache {root} is open to others (mode {stat.S_IMODE(state.st_mode):04o}, owner {state.st_uid})",
            f"Make it your own: chown {os.geteuid()} {root} && chmod 700 {root}.",
        )
    _check_format(root)
    for name in ("objects", "partial"):
        (root / name).mkdir(mode=0o700, exist_ok=True)
    _make_folders(root / "objects")


def _make_folders(objects: Path) -> None:
    """Make the folders of objects all at once, so that they are counted before anything lies in them."""
    if sum(1 for _ in objects.iterdir()) < _FOLDERS:
        with contextlib.suppress(OSError):  # a full disk: nothing will be kept there, and that is said then
            for number in range(_FOLDERS):
                (objects / f"{number:02x}").mkdir(mode=0o700, exist_ok=True)


def _check_format(root: Path) -> None:
    marker = root / "format"
    if not marker.exists():
        if (root / "objects").exists():
            raise CacheError(
                "cache_format",
                f"The cache {root} has no format file",
                "Use another --cache folder, or remove this one: everything in it can be fetched again.",
            )
        write_format(root)
        return
    found = marker.read_text("ascii", "replace").strip()
    if found != FORMAT and found not in OLDER_FORMATS:
        raise CacheError(
            "cache_format",
            f"The cache {root} has format {found[:20]!r}; this version writes format {FORMAT!r}",
            "Use another --cache folder, or remove this one: everything in it can be fetched again.",
        )


def write_format(root: Path) -> None:
    """Say that the folder is of this version's format. OSError."""
    marker = root / "format"
    if not marker.exists() or marker.read_text("ascii", "replace").strip() != FORMAT:
        _replace_text(marker, FORMAT)


def identity(root: Path) -> str:
    """The identity of a disk's folder, 16 hexadecimal digits, made when it has none. OSError."""
    path = root / "disk"
    found = path.read_text("ascii", "replace").strip() if path.exists() else ""
    if len(found) != 16 or not set(found) <= set("0123456789abcdef"):
        found = secrets.token_hex(8)
        _replace_text(path, found)
    return found


def _replace_text(path: Path, text: str) -> None:
    """Give ``path`` one line of text, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text + "\n", "ascii")
    fresh.rename(path)


def filesystem_type(path: Path, mountinfo: str | None = None) -> str:
    """The type of the file system that ``path`` lies on, as in proc(5) mountinfo (e.g. ``ext4``, ``overlay``)."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    target = os.path.realpath(path)
    best, kind = "", ""
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def is_overlay(path: Path) -> bool:
    """Whether ``path`` lies on overlayfs, which the kernel refuses as a passthrough backing (ELOOP)."""
    return filesystem_type(path) in OVERLAYFS_TYPES
