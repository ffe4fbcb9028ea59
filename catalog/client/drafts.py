"""Making a draft: begin, ask what is missing, upload, attach what reviewers need, seal."""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from catalog.client.errors import BadAnswer
from catalog.client.models import Attachment, DraftAbout, DraftFile, ReleaseInfo, UploadedObject
from catalog.client.paths import release_path
from catalog.client.session import Body, Session
from catalog.names import ReleaseRef
from openshelf.console import SILENT, Progress
from openshelf.errors import OpenshelfError
from openshelf.units import MIB

UPLOAD_PORTION_BYTES = 1 * MIB
STORE_TIMEOUT_S = 600.0
"""How long the catalog may be silent after the last byte of an object, while its store makes it durable."""
SEAL_TIMEOUT_S = 3600.0
"""How long the catalog may be silent while it packs small files and writes the manifest."""
ASKED_DIGESTS = 10_000
SEAL_BATCH_ROWS = 65_536


class FileChanged(OpenshelfError):
    """A file has another length than when its upload began."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            "file_changed", f"{path} changed while it was being sent", "Let nothing write to it, and run again."
        )


class _FileBody:
    """The bytes of a file, once; takes back its progress when an attempt is given up."""

    def __init__(self, path: Path, size: int, progress: Progress) -> None:
        self._path = path
        self._size = size
        self._progress = progress
        self._sent = 0

    def begin(self) -> Iterator[bytes]:
        if self._sent:
            self._progress.advance(-self._sent)
            self._sent = 0
        return self._portions()

    def _portions(self) -> Iterator[bytes]:
        with self._path.open("rb") as source:
            while portion := source.read(min(UPLOAD_PORTION_BYTES, self._size - self._sent)):
                yield portion
                self._sent += len(portion)
                self._progress.advance(len(portion))
            if self._sent != self._size or os.fstat(source.fileno()).st_size != self._size:
                raise FileChanged(self._path)


class Drafts:
    """The part of the client that curators use while a release is a draft."""

    _session: Session

    def create_draft(self, ref: ReleaseRef, about: DraftAbout) -> ReleaseInfo:
        """Begin the draft ``ref``, or renew it: the same uploader may repeat this until it is submitted.

        Raises :class:`~catalog.client.errors.Conflict` when the version exists and is not the caller's to redo.
        """
        answer = self._session.call("PUT", release_path(ref), json_body=about.to_json())
        return ReleaseInfo.from_json(answer.json())

    def missing(self, ref: ReleaseRef, digests: Sequence[str]) -> set[str]:
        """Which of these objects (hexadecimal SHA-256) must still be sent for the draft ``ref``."""
        found: set[str] = set()
        for start in range(0, len(digests), ASKED_DIGESTS):
            asked = list(digests[start : start + ASKED_DIGESTS])
            answer = self._session.call(
                "POST", release_path(ref, "missing"), json_body={"digests": asked}, repeatable=True
            )
            listed = answer.json().get("missing")
            if not isinstance(listed, list) or not set(listed) <= set(asked):
                raise BadAnswer(self._session.url, "no list of missing objects")
            found.update(listed)
        return found

    def upload(
        self, ref: ReleaseRef, path: Path, *, sha256: str | None = None, progress: Progress = SILENT
    ) -> UploadedObject:
        """Send the file at ``path`` as an object of the draft ``ref``; the catalog computes its digest itself.

        ``sha256``, when the caller knows it, saves one reading of the file. A broken connection begins this file
        again, a few times; whole files that arrived need not be sent again (:meth:`missing`). ``progress`` is told
        bytes, and fewer when an attempt is repeated. Raises :class:`FileChanged` when the file grows or shrinks, and
        :class:`~catalog.client.errors.InvalidRequest` (code ``digest_mismatch``) when its bytes are not the digest's.
        """
        with path.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            if sha256 is None:
                sha256 = hashlib.file_digest(source, "sha256").hexdigest()
        body = _FileBody(path, size, progress)
        answer = self._session.call(
            "PUT",
            release_path(ref, "objects", sha256),
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
            make_body=body.begin,
            timeout_s=max(self._session.timeout_s, STORE_TIMEOUT_S),
        )
        stored = answer.json()
        if stored.get("sha256") != sha256 or stored.get("size") != size:
            raise BadAnswer(self._session.url, f"it did not store object {sha256}")
        return UploadedObject(sha256, size)

    def seal(self, ref: ReleaseRef, files: Iterable[DraftFile]) -> ReleaseInfo:
        """Close the draft ``ref`` with these files, whose objects were all sent; the answer has the manifest digest.

        Modes other than 0o444 and 0o555, unsafe paths and objects that are not there are refused by the catalog
        (:class:`~catalog.client.errors.InvalidRequest`). Sealing the same files again succeeds.
        """
        with tempfile.TemporaryFile() as stream:
            _write_files(files, stream)
            size = stream.tell()

            def make_body() -> Body:
                stream.seek(0)
                return iter(lambda: stream.read(UPLOAD_PORTION_BYTES), b"")

            answer = self._session.call(
                "POST",
                release_path(ref, "seal"),
                headers={"Content-Type": "application/vnd.apache.arrow.stream", "Content-Length": str(size)},
                make_body=make_body,
                timeout_s=max(self._session.timeout_s, SEAL_TIMEOUT_S),
            )
        return ReleaseInfo.from_json(answer.json())

    def attach(self, ref: ReleaseRef, name: str, path: Path, media_type: str) -> None:
        """Put the file at ``path`` beside the draft as the review object ``name``, replacing an earlier one."""
        body = _FileBody(path, path.stat().st_size, SILENT)
        self._session.call(
            "PUT",
            release_path(ref, "attachments", name),
            headers={"Content-Type": media_type, "Content-Length": str(path.stat().st_size)},
            make_body=body.begin,
            timeout_s=max(self._session.timeout_s, STORE_TIMEOUT_S),
        )

    def attachments(self, ref: ReleaseRef) -> list[Attachment]:
        """The review objects of a release."""
        items = self._session.call("GET", release_path(ref, "attachments")).items("attachments")
        return [Attachment.from_json(item) for item in items]

    def attachment(self, ref: ReleaseRef, name: str) -> bytes:
        """The bytes of one review object."""
        return self._session.call("GET", release_path(ref, "attachments", name)).body


def _write_files(files: Iterable[DraftFile], sink: IO[bytes]) -> None:
    import pyarrow as pa

    schema = pa.schema(
        [
            pa.field("path", pa.large_string(), nullable=False),
            pa.field("sha256", pa.binary(32), nullable=False),
            pa.field("mode", pa.uint16(), nullable=False),
            pa.field("mtime_ns", pa.int64(), nullable=False),
        ]
    )
    remaining = iter(files)
    with pa.ipc.new_stream(sink, schema) as writer:
        while batch := list(itertools.islice(remaining, SEAL_BATCH_ROWS)):
            columns = [
                pa.array([file.path for file in batch], pa.large_string()),
                pa.array([bytes.fromhex(file.sha256) for file in batch], pa.binary(32)),
                pa.array([file.mode for file in batch], pa.uint16()),
                pa.array([file.mtime_ns for file in batch], pa.int64()),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
