"""Seal a draft: check its files, pack the small ones, write the manifest, fix its digest."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from sqlalchemy.orm import Session

from catalog.audit import ledger
from catalog.database.access import Caller
from catalog.database.models import Release
from catalog.disk import writing_to
from catalog.downloads.manifests import keep_manifest
from catalog.manifest import FileEntry, plan_packs, write_manifest
from catalog.names import ReleaseRef, check_paths
from catalog.objects import ObjectDamaged, ObjectStore, StoredObject
from catalog.releases.schemas import ReleaseInfo
from catalog.releases.service import name_of, show
from catalog.runtime import Runtime
from catalog.uploads import repository
from catalog.uploads.repository import Content
from catalog.uploads.service import for_upload
from catalog.web.problems import Conflict, Unprocessable
from openshelf.units import MIB

MODES = (0o444, 0o555)
READ_AHEAD = 16
"""Small objects (1 MiB at most) that are fetched while earlier ones are written into their pack."""
_COLUMNS = ["mode", "mtime_ns", "path", "sha256"]


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as the sealing request lists it."""

    path: str
    sha256: bytes
    mode: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """What sealing made: the manifest's digest, totals, and every object that the release contains."""

    digest: bytes
    files: int
    size_bytes: int
    packs: Sequence[StoredObject]
    contents: Sequence[bytes]


def seal(runtime: Runtime, caller: Caller, ref: ReleaseRef, listing: Path) -> ReleaseInfo:
    """Seal the draft ``ref`` with the files that the Arrow stream in ``listing`` names.

    A release that is sealed already answers an identical list with itself, and any other with :class:`Conflict`.
    """
    files = read_listing(listing)
    with runtime.database.read() as session:
        for_upload(session, caller, ref)
        known = repository.usable_contents(session, caller, dict.fromkeys(file.sha256 for file in files))
    _refuse_unknown(files, known)
    sealed = _build(runtime, files, known)
    now = runtime.now()
    with runtime.change() as session:
        release = for_upload(session, caller, ref)
        if release.state == "draft":
            _record(session, release, sealed, now)
            ledger.append(
                session,
                now,
                caller,
                "release.sealed",
                name_of(release),
                {"manifest_digest": sealed.digest.hex(), "files": sealed.files, "size_bytes": sealed.size_bytes},
            )
        elif release.manifest_digest != sealed.digest:
            raise Conflict(
                "version_exists",
                f"{ref} exists already ({release.state}) with other files",
                "Choose another version.",
            )
        return show(session, release)


def read_listing(listing: Path) -> list[ListedFile]:
    """The files of an Arrow IPC stream with the columns path, sha256, mode and mtime_ns, in path-byte order, checked.

    ``sha256`` is 32 bytes or 64 hexadecimal digits. :class:`Unprocessable` or
    :class:`catalog.names.InvalidPath` when something is wrong.
    """
    try:
        with pa.OSFile(str(listing)) as source, pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        if sorted(table.column_names) != _COLUMNS:
            raise _bad_listing(f"its columns are {', '.join(sorted(table.column_names))[:200]}")
        table.validate(full=True)  # else offsets of the sender's would be followed to wherever they lead
        if any(table.column(name).null_count for name in _COLUMNS):
            raise _bad_listing("it has empty fields")
        paths = table.column("path").cast(pa.large_string()).to_pylist()
        modes = table.column("mode").cast(pa.uint16()).to_pylist()
        times = table.column("mtime_ns").cast(pa.int64()).to_pylist()
        digests = _digests(table.column("sha256"))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _bad_listing(f"it is no such stream ({type(error).__name__})") from error
    if not paths:
        raise Unprocessable("no_files", "The list of files is empty", "A release has at least one file.")
    for path, mode in zip(paths, modes, strict=True):
        if mode not in MODES:
            raise Unprocessable("bad_mode", f"The mode of {path[:120]!a} is {mode:#o}", "Only 0444 and 0555 are kept.")
    files = [ListedFile(*row) for row in zip(paths, digests, modes, times, strict=True)]
    files.sort(key=lambda file: file.path.encode("utf-8", "surrogatepass"))
    for before, after in itertools.pairwise(files):
        if before.path == after.path:
            raise Unprocessable("double_path", f"{after.path[:120]!a} stands twice in the list", "List it once.")
    check_paths(file.path for file in files)
    return files


def _digests(column: pa.ChunkedArray) -> list[bytes]:
    if column.type == pa.binary(32):
        values: list[bytes] = column.to_pylist()
        return values
    try:
        values = [bytes.fromhex(text) for text in column.cast(pa.large_string()).to_pylist()]
    except ValueError:
        values = [b""]
    if any(len(value) != 32 for value in values):
        raise _bad_listing("a sha256 is not 64 hexadecimal digits")
    return values


def _bad_listing(reason: str) -> Unprocessable:
    return Unprocessable(
        "bad_listing",
        f"The list of files cannot be read: {reason}",
        "Send an Arrow IPC stream with path, sha256, mode, mtime_ns.",
    )


def _refuse_unknown(files: Sequence[ListedFile], known: Mapping[bytes, Content]) -> None:
    lacking = [file for file in files if file.sha256 not in known]
    if lacking:
        raise Unprocessable(
            "missing_objects",
            f"{len(lacking)} files have no object yet, the first is {lacking[0].path[:120]!a}"
            f" (SHA-256 {lacking[0].sha256.hex()})",
            "Send the objects that POST …/missing names, then seal again.",
        )


def _build(runtime: Runtime, files: Sequence[ListedFile], known: Mapping[bytes, Content]) -> Sealed:
    """Store the packs and the manifest. Both are named by their contents: a crash leaves nothing that matters."""
    places: dict[bytes, tuple[bytes, int]] = {}
    packs: list[StoredObject] = []
    for members in plan_packs([(file.sha256, known[file.sha256].size) for file in files]):
        digests = [files[member].sha256 for member in members]
        size = sum(known[digest].size for digest in digests)
        pack = runtime.store.put(_portions(_whole(runtime.store, digests)), size, None)
        packs.append(pack)
        offset = 0
        for digest in digests:
            places[digest] = (bytes.fromhex(pack.sha256), offset)
            offset += known[digest].size
    entries = []
    for file in files:
        content = known[file.sha256]
        stored, offset = places.get(file.sha256, (file.sha256, 0))
        entries.append(
            FileEntry(file.path, content.size, file.mode, file.mtime_ns, file.sha256, stored, offset, content.chunks)
        )
    digest = _store_manifest(runtime, entries)
    contents = {file.sha256 for file in files} | {bytes.fromhex(pack.sha256) for pack in packs}
    return Sealed(digest, len(files), sum(entry.size for entry in entries), packs, sorted(contents))


def _whole(store: ObjectStore, digests: Sequence[bytes]) -> Iterator[bytes]:
    """Small objects one after the other, fetched a few ahead: a remote store answers each only after a while."""

    def fetch(digest: bytes) -> bytes:
        body = b"".join(store.open(digest.hex()))
        if hashlib.sha256(body).digest() != digest:
            raise ObjectDamaged(digest.hex())
        return body

    with ThreadPoolExecutor(READ_AHEAD // 2) as pool:
        fetching: deque[Future[bytes]] = deque()
        remaining = iter(digests)
        for digest in itertools.islice(remaining, READ_AHEAD):
            fetching.append(pool.submit(fetch, digest))
        while fetching:
            yield fetching.popleft().result()
            for digest in itertools.islice(remaining, 1):
                fetching.append(pool.submit(fetch, digest))


def _portions(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in portions of about a mebibyte: ten thousand tiny writes are slower than a few."""
    gathered = bytearray()
    for part in parts:
        gathered += part
        if len(gathered) >= MIB:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def _store_manifest(runtime: Runtime, entries: Sequence[FileEntry]) -> bytes:
    built = runtime.incoming / secrets.token_hex(16)
    try:
        with writing_to(runtime.data):
            digest = write_manifest(entries, built)
        with built.open("rb") as source:
            runtime.store.put(iter(lambda: source.read(MIB), b""), built.stat().st_size, digest.hex())
        keep_manifest(runtime, built, digest)
    finally:
        built.unlink(missing_ok=True)
    return digest


def _record(session: Session, release: Release, sealed: Sealed, now: str) -> None:
    for pack in sealed.packs:
        repository.add_object(session, pack)
    repository.set_contents(session, release, sealed.contents)
    release.state = "sealed"
    release.manifest_digest = sealed.digest
    release.files = sealed.files
    release.size_bytes = sealed.size_bytes
    release.sealed_at = now
    session.flush()
