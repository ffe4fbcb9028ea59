"""A release from files to published, through the client as a curator and an auditor use it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from catalog.client import Client, DraftAbout, DraftFile
from catalog.names import ReleaseRef
from tests.support.catalog_server import RunningCatalog

CREATED = "2026-01-31T00:00:00Z"
MTIME_NS = 946_684_800 * 10**9


class Publisher:
    """Two people at one catalog: ``lin`` who uploads, ``wang`` who approves."""

    def __init__(self, catalog: RunningCatalog, folder: Path) -> None:
        self._folder = folder
        self.curator = Client(catalog.url, catalog.token("lin", "curator"))
        self.auditor = Client(catalog.url, catalog.token("wang", "auditor"))

    def publish(self, ref: ReleaseRef, files: Mapping[str, bytes]) -> None:
        """Upload, seal, submit, approve and publish ``files`` (path → bytes)."""
        about = DraftAbout(
            created=CREATED, licence_expression="CC-BY-4.0", licence_evidence=[{"source": "the uploader"}]
        )
        self.curator.create_draft(ref, about)
        rows = []
        source = self._folder / "upload.bin"
        for path, content in files.items():
            source.write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            if self.curator.missing(ref, [digest]):
                self.curator.upload(ref, source)
            rows.append(DraftFile(path, digest, MTIME_NS))
        self.curator.seal(ref, rows)
        self.curator.submit(ref)
        self.auditor.approve(ref)
        self.curator.publish(ref)

    def close(self) -> None:
        self.curator.close()
        self.auditor.close()
