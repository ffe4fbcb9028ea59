"""Policies: built in, from YAML, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from compliance.detect import ENTITIES
from compliance.policy import POLICY_ENTITIES, Policy, PolicyError


def test_the_policy_knows_every_entity_of_the_detector() -> None:
    assert set(POLICY_ENTITIES) == set(ENTITIES)


def test_standard_replaces_from_one_half_and_report_only_keeps() -> None:
    standard, report_only = Policy.load("standard"), Policy.load("report-only")
    assert {standard.decide(entity, 0.5) for entity in ENTITIES} == {"replace"}
    assert {standard.decide(entity, 0.49) for entity in ENTITIES} == {"keep"}
    assert {report_only.decide(entity, 1.0) for entity in ENTITIES} == {"keep"}
    assert standard.digest != report_only.digest
    assert len(standard.digest) == 64


def test_a_score_of_the_table_is_compared_as_it_was_given() -> None:
    import numpy as np

    assert (
        Policy.from_document({"default": "mask", "min_score": 0.7}).decide("mobile", float(np.float32(0.7))) == "mask"
    )


def test_a_policy_file_sets_actions_and_thresholds(tmp_path: Path) -> None:
    path = tmp_path / "strict.yaml"
    path.write_text(
        "default: mask\nmin_score: 0.6\nentities:\n  email: drop_document\n  uscc: keep\n"
        "  mobile: {action: replace, min_score: 0.3}\n  ipv4: {min_score: 0.9}\n",
        encoding="utf-8",
    )
    policy = Policy.load(path)
    assert policy.name == "strict"
    assert policy.decide("email", 0.95) == "drop_document"
    assert policy.decide("uscc", 0.95) == "keep"
    assert policy.decide("mobile", 0.3) == "replace"
    assert policy.decide("ipv4", 0.8) == "keep"
    assert policy.decide("ipv4", 0.9) == "mask"
    assert policy.decide("plate", 0.6) == "mask"
    assert Policy.from_document(policy.to_document()).digest == policy.digest


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("entities: {phone: replace}", "unknown entity: 'phone'", "Known: resident_id"),
        ("entities: {mobil: replace}", "unknown entity: 'mobil'", "Did you mean 'mobile'?"),
        ("entities: {mobile: delete}", "'delete' is not an action", "Known: replace, mask"),
        ("min_scores: 1", "unknown key: 'min_scores'", "Did you mean 'min_score'?"),
        ("min_score: 2", "must be a number from 0 to 1", ""),
        ("min_score: yes", "must be a number from 0 to 1", ""),
        ("- a", "A policy is a mapping", ""),
        ("entities: [mobile]", "'entities' maps entity names", ""),
        ("a: [", "is not a YAML file", ""),
    ],
)
def test_a_wrong_policy_is_refused_with_the_reason(tmp_path: Path, text: str, message: str, hint: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyError) as error:
        Policy.load(path)
    assert message in error.value.message
    assert hint in error.value.hint


def test_a_policy_that_is_not_there_is_named_with_the_ones_that_are() -> None:
    with pytest.raises(PolicyError, match="no policy 'standrd'") as error:
        Policy.load("standrd")
    assert "standard" in error.value.hint
