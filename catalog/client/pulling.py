"""``pull``: a published release as a plain folder, every byte verified.

While it runs, ``DIR/.openshelf-partial`` holds the manifest and what is not complete; a file appears under its own
name once its SHA-256 is right, and ``release.json`` last of all. The same command again goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from catalog.client.client import Client
from catalog.client.fetching import CorruptContents, Piece, Span, fetch_span, is_chunk, pieces_of, plan_spans
from catalog.client.parallel import each
from catalog.client.trusted import TrustedRelease
from catalog.manifest import FileEntry, Manifest
from catalog.names import check_paths
from catalog.signing import canonical_json
from openshelf.console import SILENT, Progress
from openshelf.errors import OpenshelfError

THREADS = 8
PARTIAL = ".openshelf-partial"
RECORD = "release.json"
SIGNATURE = "release.json.sig"


class PullRefused(OpenshelfError):
    """The folder is not one to pull this release into."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did: ``files`` and ``size_bytes`` of the release, ``fetched_bytes`` over the network, seconds."""

    files: int
    size_bytes: int
    fetched_bytes: int
    seconds: float


def pull(client: Client, release: TrustedRelease, folder: Path, progress: Progress = SILENT) -> Pulled:
    """Make ``folder`` hold exactly the files of ``release``, with their modes and times, and its signed record.

    What is there already with the right size and time is kept (``verify`` reads it all). Raises :class:`PullRefused`
    for a folder that holds something else, :class:`~catalog.client.fetching.CorruptContents` and
    :class:`~catalog.client.fetching.FileUnreadable`, both naming the file.
    """
    began = time.monotonic()
    with _disk_errors(folder), _claimed(folder, release) as partial:
        manifest_path = partial / "files.arrow"
        digest = bytes.fromhex(release.manifest_digest)
        if not manifest_path.exists():
            client.download_manifest(release.manifest_digest, manifest_path)
        manifest = Manifest.open(manifest_path, expected=digest)
        check_paths(entry.path for entry in manifest.rows())
        first = manifest.lower_bound(PARTIAL.encode())
        if first < len(manifest) and manifest.path(first).split("/")[0] == PARTIAL:
            raise PullRefused("pull_refused", f"{release.ref} has files in {PARTIAL}, which pull needs", "Mount it.")
        work = _Pull(client, manifest, folder, partial, progress)
        for _ in each(THREADS, work.fetch, plan_spans(work.wanted())):
            pass
        _sync_file_system(folder)
        record, signature = release.record.files()
        _write(partial, folder / SIGNATURE, signature)
        _write(partial, folder / RECORD, record)
        pulled = Pulled(len(manifest), manifest.total_bytes(), work.fetched, time.monotonic() - began)
        shutil.rmtree(partial)
    return pulled


class _Pull:
    """The files of one release on their way into a folder. :meth:`fetch` runs in several threads."""

    def __init__(self, client: Client, manifest: Manifest, folder: Path, partial: Path, progress: Progress) -> None:
        self._client = client
        self._manifest = manifest
        self._folder = folder
        self._partial = partial
        self._progress = progress
        self._lock = threading.Lock()
        self._remaining: dict[int, int] = {}
        self._checked_folders: set[Path] = {folder}
        self.fetched = 0

    def wanted(self) -> Iterator[Piece]:
        """The chunks that are not here yet, file by file; files that need none are finished on the way."""
        for row, entry in enumerate(self._manifest.rows()):
            target = self._target(entry.path)
            if _is_current(target, entry):
                self._advance(entry.size)
                continue
            pieces = pieces_of(row, entry)
            missing = self._missing(row, pieces)
            self._advance(sum(piece.length for piece in pieces) - sum(piece.length for piece in missing))
            if not missing:
                self._finish(row, entry)
                continue
            with self._lock:
                self._remaining[row] = len(missing)
            yield from missing

    def fetch(self, span: Span) -> None:
        """Fetch one span, put its pieces into their files, and finish the files that are complete."""
        for piece, content in zip(span.pieces, fetch_span(self._client, span), strict=True):
            descriptor = os.open(self._part(piece.row), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as part:
                written = 0
                while written < len(content):
                    written += os.pwrite(part.fileno(), content[written:], piece.file_offset + written)
            self._advance(piece.length)
            with self._lock:
                self.fetched += piece.length
                self._remaining[piece.row] -= 1
                complete = self._remaining[piece.row] == 0
                if complete:
                    del self._remaining[piece.row]
            if complete:
                self._finish(piece.row, piece.entry)

    def _advance(self, amount: int) -> None:
        with self._lock:
            self._progress.advance(amount)

    def _part(self, row: int) -> Path:
        return self._partial / f"{row}.part"

    def _missing(self, row: int, pieces: list[Piece]) -> list[Piece]:
        """The pieces that an earlier, interrupted pull did not leave whole."""
        try:
            with self._part(row).open("rb", buffering=0) as part:
                return [piece for piece in pieces if not is_chunk(_at(part.fileno(), piece), piece)]
        except FileNotFoundError:
            return pieces

    def _finish(self, row: int, entry: FileEntry) -> None:
        """Give a complete file its mode, time and name, once its SHA-256 is right."""
        path = self._part(row)
        with path.open("r+b" if entry.size else "w+b") as part:
            part.truncate(entry.size)
            if hashlib.file_digest(part, "sha256").digest() != entry.sha256:
                path.unlink()
                raise CorruptContents(entry.path, "every chunk is right but the SHA-256 of the whole is not")
            os.fchmod(part.fileno(), entry.mode & 0o555)
        os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
        path.rename(self._target(entry.path))

    def _target(self, path: str) -> Path:
        """Where a file goes, its folders made; nothing is followed out of the pulled folder."""
        target = self._folder / path
        for parent in reversed(target.relative_to(self._folder).parents):
            folder = self._folder / parent
            if folder not in self._checked_folders:
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                if folder.is_symlink() or not folder.is_dir():
                    raise PullRefused(
                        "pull_refused",
                        f"{folder} is not a plain folder, but the release has one there",
                        "Move it away.",
                    )
                self._checked_folders.add(folder)
        return target


def _at(descriptor: int, piece: Piece) -> bytes:
    return os.pread(descriptor, piece.length, piece.file_offset)


def _is_current(target: Path, entry: FileEntry) -> bool:
    try:
        there = target.lstat()
    except FileNotFoundError:
        return False
    return (there.st_mode, there.st_size, there.st_mtime_ns) == (
        0o100000 | (entry.mode & 0o555),
        entry.size,
        entry.mtime_ns,
    )


@contextlib.contextmanager
def _claimed(folder: Path, release: TrustedRelease) -> Iterator[Path]:
    """The folder for incomplete things in ``folder``, once it is certain that nothing else is overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / PARTIAL
    wanted = canonical_json(release.document)
    for record in (folder / RECORD, partial / RECORD):
        if record.exists() and record.read_bytes() != wanted:
            raise PullRefused(
                "pull_refused", f"{folder} holds another release than {release.ref}", "Pull into another folder."
            )
    if not (folder / RECORD).exists() and not partial.exists() and any(folder.iterdir()):
        raise PullRefused(
            "pull_refused", f"{folder} is not empty and holds no pulled release", "Pull into a new folder."
        )
    partial.mkdir(exist_ok=True, mode=0o700)
    with (partial / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PullRefused("pull_running", f"Another pull into {folder} is running", "Wait for it.") from error
        _write(partial, partial / RECORD, wanted)
        yield partial


def _sync_file_system(folder: Path) -> None:
    """Make all of the folder's file system durable: for many small files much quicker than each by itself."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _write(partial: Path, target: Path, content: bytes) -> None:
    temporary = partial / f"{target.name}.new"
    with temporary.open("wb") as sink:
        sink.write(content)
        sink.flush()
        os.fchmod(sink.fileno(), 0o444)
        os.fsync(sink.fileno())
    temporary.rename(target)


@contextlib.contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise OpenshelfError(
            "disk_full" if full else "cannot_write",
            f"{folder}: {error.strerror or type(error).__name__}",
            "Free space, then run the same command again: it goes on where it stopped."
            if full
            else "Choose a folder that you may write.",
        ) from error
