"""One catalog for the tests of a module, and people who call it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.catalog_api import People
from tests.support.catalog_server import RunningCatalog, running_catalog


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    folder: Path = tmp_path_factory.mktemp("catalog")
    with running_catalog(folder / "data") as running:
        yield running


@pytest.fixture(scope="module")
def people(catalog: RunningCatalog) -> Iterator[People]:
    found = People(catalog)
    yield found
    found.close()


_NUMBERS = itertools.count()


@pytest.fixture
def new_ref() -> Callable[[], str]:
    """Makes names of releases that nobody used."""
    return lambda: f"datasets/space{next(_NUMBERS)}/corpus@1.0"


@pytest.fixture
def ref(new_ref: Callable[[], str]) -> str:
    return new_ref()
