"""Recall and precision: on a planted corpus, and on real files where a person has counted."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest

from compliance.detect import Detector
from tests.compliance.planted import MAKERS, corpus
from tests.support.shared_data import shared

DETECTOR = Detector()
STANDARD = 0.5


def acted(texts: list[str]) -> list[tuple[int, int, int, str]]:
    rows = DETECTOR.scan(pa.array(texts, pa.large_string())).to_pylist()
    return [(row["row"], row["start"], row["end"], row["entity"]) for row in rows if row["score"] >= STANDARD - 1e-6]


def test_a_planted_corpus_with_hard_negatives_is_found_right_type_and_whole_value() -> None:
    texts, plants = corpus(20261130, 5_000)
    got, wanted = set(acted(texts)), {(p.document, p.start, p.end, p.entity) for p in plants}
    for entity in MAKERS:
        found, planted = ({item for item in items if item[3] == entity} for items in (got, wanted))
        assert len(found & planted) / len(planted) >= 0.99, f"recall of {entity}"
        assert len(found & planted) / len(found) >= 0.99, f"precision of {entity}"


def test_laws_court_cases_and_poems_hold_no_personal_data() -> None:
    laws = [path.read_text(encoding="utf-8") for path in sorted(shared("laws").rglob("*.md"))]
    poems = [path.read_text(encoding="utf-8") for path in sorted(shared("chinese-poetry").rglob("*.json"))]
    assert sum(map(len, laws)) > 2_000_000
    assert acted(laws) == []
    assert acted(poems) == []


@pytest.mark.parametrize("database", ["hotel", "restaurant", "attraction"])
def test_every_mobile_and_no_landline_in_the_crosswoz_database_is_a_mobile(database: str) -> None:
    path = shared("crosswoz", "data", "crosswoz", "database", f"{database}_db.json")
    phones = [entry[1].get("电话") or "" for entry in json.loads(path.read_text(encoding="utf-8"))]
    # Written by hand after reading the files: numbers are separated by ; or , and mobiles are bare.
    wanted = [
        (row, part.strip())
        for row, text in enumerate(phones)
        for part in re.split(r"[;,，；/、 ]", text)
        if re.fullmatch(r"1[3-9][0-9]{9}", part.strip())
    ]
    got = [(row, phones[row][start:end]) for row, start, end, entity in acted(phones) if entity == "mobile"]
    assert got == wanted
    assert len(phones) > 400


def test_example_numbers_of_libphonenumber_are_mobiles() -> None:
    xml = shared("libphonenumber", "resources", "PhoneNumberMetadata.xml").read_text(encoding="utf-8")
    territory = re.search(r'<territory id="CN".*?</territory>', xml, re.DOTALL)
    assert territory is not None
    example = re.search(r"<mobile>.*?<exampleNumber>([0-9]+)<", territory.group(), re.DOTALL)
    assert example is not None
    assert acted([f"电话{example[1]}"]) == [(0, 2, 13, "mobile")]
