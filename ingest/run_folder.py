"""The run folder: ``OPENSHELF_DATA/runs/<run id>/``, private to its owner, one run at a time.

plan.json     what is done: files with digests, splits, part names
recipe.yaml   the recipe as it was understood
parts/        one folder a split, named by content
duplicates/   what deduplication found
rejects/      rejects.parquet: file, line, byte offset, length, reason; never text
findings/     findings.parquet: where personal data stood and what was done; never values
shards/       a record of each written shard
release/      the files of the release
report/       report.json, report.md, statistics.json
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import compliance
import ingest
from catalog.names import ReleaseRef
from catalog.signing import canonical_json
from ingest.plan import Plan
from ingest.recipe import Recipe
from openshelf.errors import OpenshelfError

_FOLDERS = ("parts", "duplicates", "rejects", "findings", "shards", "release/data", "report")
_ID_DIGITS = 20


@cache
def code_version() -> str:
    """A digest of the code that makes parts, so that no part of an older version is taken for one of this."""
    digest = hashlib.sha256()
    for package in (ingest, compliance):
        home = Path(str(package.__file__)).parent
        for path in sorted(home.rglob("*.py"), key=lambda path: path.relative_to(home).as_posix()):
            digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def run_id(ref: ReleaseRef, plan: Plan, recipe: Recipe, policy_digest: str) -> str:
    """The name of the run: the same release from the same bytes by the same recipe and code is the same run."""
    sources = [[file.label, file.sha256, file.split] for file in plan.files]
    depends = [str(ref), sources, recipe.digest, policy_digest, code_version()]
    return hashlib.sha256(canonical_json(depends)).hexdigest()[:_ID_DIGITS]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folders of one run."""

    path: Path

    @property
    def parts(self) -> Path:
        """Finished parts."""
        return self.path / "parts"

    @property
    def duplicates(self) -> Path:
        """Rows that repeat earlier ones."""
        return self.path / "duplicates"

    @property
    def shards(self) -> Path:
        """Records of written shards."""
        return self.path / "shards"

    @property
    def release(self) -> Path:
        """The files of the release."""
        return self.path / "release"

    @property
    def report(self) -> Path:
        """What reviewers read."""
        return self.path / "report"

    @property
    def rejects_file(self) -> Path:
        """The rejects of the run."""
        return self.path / "rejects" / "rejects.parquet"

    @property
    def findings_file(self) -> Path:
        """The findings of the run."""
        return self.path / "findings" / "findings.parquet"


@contextmanager
def open_run(data: Path, identifier: str) -> Iterator[RunFolder]:
    """Make or reopen the run folder and hold its lock; a second run of the same kind is refused meanwhile."""
    folder = RunFolder(data / "runs" / identifier)
    try:
        for path in (data, data / "runs", folder.path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.path.chmod(0o700)
        for name in _FOLDERS:
            (folder.path / name).mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise OpenshelfError(
            "no_run_folder",
            f"The run folder {folder.path} cannot be made",
            "Set OPENSHELF_DATA to a folder of your own.",
        ) from error
    descriptor = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OpenshelfError(
                "run_in_progress",
                f"This very ingest is running already (run {identifier})",
                "Wait until it ends; the same command then prints the same release.",
            ) from error
        yield folder
    finally:
        os.close(descriptor)
