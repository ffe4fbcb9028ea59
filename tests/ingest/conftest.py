"""What the tests of a whole run share: one real catalog, and runs against it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catalog.client import Client
from catalog.names import parse_release
from compliance.policy import Policy
from ingest.recipe import Recipe
from ingest.run import Outcome, Request, ingest
from openshelf.console import SILENT, Progress
from tests.support.catalog_server import RunningCatalog, running_catalog

_NUMBERS = itertools.count(1)


@dataclass
class Notes:
    """A reporter that remembers what it was told."""

    notes: list[str] = field(default_factory=list)

    def stage(self, title: str, total: int | None) -> AbstractContextManager[Progress]:
        return nullcontext(SILENT)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="session")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    with running_catalog(tmp_path_factory.mktemp("catalog") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def curator(catalog: RunningCatalog) -> str:
    return catalog.token("curator", "curator")


@pytest.fixture
def client(catalog: RunningCatalog, curator: str) -> Iterator[Client]:
    with Client(catalog.url, curator) as client:
        yield client


Run = Callable[..., Outcome]


@pytest.fixture
def run(client: Client, tmp_path: Path) -> Run:
    """Ingest sources as a new release; keywords: fields of the recipe, ``policy``, ``jobs``, ``ref``, ``data``."""

    def go(*sources: Path, **options: Any) -> Outcome:
        ref = parse_release(options.pop("ref", f"datasets/test/run{next(_NUMBERS)}@1.0"))
        policy = options.pop("policy", Policy.load("standard"))
        jobs, data = options.pop("jobs", 1), options.pop("data", tmp_path / "client")
        recipe = Recipe.model_validate({"licence": "Apache-2.0", **options})
        return ingest(Request(tuple(sources), ref, recipe, policy, jobs, data), client, Notes())

    return go


def rows_of(outcome: Outcome) -> list[dict[str, Any]]:
    """All rows of the release in the run folder, in file order."""
    tables = [pq.read_table(path) for path in sorted((outcome.folder / "release" / "data").glob("*.parquet"))]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return rows


def rejects_of(outcome: Outcome) -> list[dict[str, Any]]:
    """The run's rejects."""
    rows: list[dict[str, Any]] = pq.read_table(outcome.folder / "rejects" / "rejects.parquet").to_pylist()
    return rows


def findings_of(outcome: Outcome) -> list[dict[str, Any]]:
    """The run's findings."""
    rows: list[dict[str, Any]] = pq.read_table(outcome.folder / "findings" / "findings.parquet").to_pylist()
    return rows


def write_jsonl(path: Path, records: list[Any]) -> Path:
    """A JSONL file of ``records``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return path
