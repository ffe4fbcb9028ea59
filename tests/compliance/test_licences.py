"""SPDX expressions, their classes, and the strictest-source rule."""

from __future__ import annotations

import json

import pytest

from compliance.licences import Evidence, LicenceError, parse, strictest, too_lax
from compliance.licences.evidence import EvidenceError
from tests.support.shared_data import shared


@pytest.mark.parametrize(
    ("given", "expression", "use", "attribution", "share_alike"),
    [
        ("mit", "MIT", "all", True, False),
        ("apache-2.0", "Apache-2.0", "all", True, False),
        ("CC0-1.0", "CC0-1.0", "all", False, False),
        ("PDDL-1.0", "PDDL-1.0", "all", False, False),
        ("WTFPL", "WTFPL", "all", False, False),
        ("CC-BY-4.0", "CC-BY-4.0", "all", True, False),
        ("CC-BY-SA-3.0", "CC-BY-SA-3.0", "all", True, True),
        ("CC-BY-NC-4.0", "CC-BY-NC-4.0", "non-commercial", True, False),
        ("CC-BY-NC-SA-4.0", "CC-BY-NC-SA-4.0", "non-commercial", True, True),
        ("ODbL-1.0", "ODbL-1.0", "all", True, True),
        ("ODC-By-1.0", "ODC-By-1.0", "all", True, False),
        ("CDLA-Permissive-2.0", "CDLA-Permissive-2.0", "all", True, False),
        ("CDLA-Sharing-1.0", "CDLA-Sharing-1.0", "all", True, True),
        ("GPL-2.0+", "GPL-2.0-or-later", "all", True, True),
        ("GPL-3.0", "GPL-3.0-only", "all", True, True),
        ("BSD-3-Clause", "BSD-3-Clause", "all", True, False),
        ("LicenseRef-OpenRAIL-M", "LicenseRef-OpenRAIL-M", "all", True, True),
        ("LicenseRef-belle-research", "LicenseRef-belle-research", "unspecified", True, False),
        ("GPL-2.0-only with Classpath-exception-2.0", "GPL-2.0-only WITH Classpath-exception-2.0", "all", True, True),
        ("CC-BY-4.0 and CC-BY-NC-SA-4.0", "CC-BY-4.0 AND CC-BY-NC-SA-4.0", "non-commercial", True, True),
        ("CC-BY-NC-4.0 or MIT", "CC-BY-NC-4.0 OR MIT", "all", True, False),
        ("CC0-1.0 AND (GPL-3.0-only OR MIT)", "CC0-1.0 AND (GPL-3.0-only OR MIT)", "all", True, False),
        ("MIT AND LicenseRef-x", "MIT AND LicenseRef-x", "unspecified", True, False),
    ],
)
def test_expressions_are_normalised_and_classified(
    given: str, expression: str, use: str, attribution: bool, share_alike: bool
) -> None:
    licence = parse(given)
    assert (licence.expression, licence.use) == (expression, use)
    assert (licence.attribution, licence.share_alike) == (attribution, share_alike)


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ("", "The licence is empty", "SPDX expression"),
        ("CC BY 4.0", "'CC BY 4.0' is not an SPDX licence identifier", "Did you mean CC-BY-4.0?"),
        ("Apache2.0", "'Apache2.0' is not an SPDX licence identifier", "Did you mean Apache-2.0?"),
        ("CC-BY-NC-SA", "is not an SPDX licence identifier", "Did you mean CC-BY-NC-SA-"),
        ("MIT OR", "'MIT OR' is not an SPDX expression", ""),
        ("(MIT", "'(MIT' is not an SPDX expression", ""),
        ("MIT/Apache-2.0", "is not an SPDX expression", ""),
        ("Classpath-exception-2.0", "is an exception, not a licence", "GPL-2.0-only WITH"),
        ("Apache-2.0 WITH MIT", "does not name a licence WITH an exception", ""),
        ("LicenseRef-a b", "'LicenseRef-a b' is not an SPDX licence identifier", ""),
        ("http://example.com", "is not an SPDX", ""),
    ],
)
def test_a_wrong_expression_is_refused_with_the_nearest_that_exists(given: str, message: str, hint: str) -> None:
    with pytest.raises(LicenceError) as error:
        parse(given)
    assert message in error.value.message
    assert hint in error.value.hint


def test_no_derivatives_is_seen() -> None:
    assert parse("CC-BY-NC-ND-4.0").no_derivatives
    assert parse("MIT AND CC-BY-ND-4.0").no_derivatives
    assert not parse("CC-BY-NC-4.0").no_derivatives


def test_the_strictest_source_decides() -> None:
    sources = [parse("CC-BY-4.0"), parse("CC-BY-NC-4.0"), parse("ODbL-1.0 OR CC-BY-SA-4.0")]
    together = strictest(sources)
    assert together.expression == "CC-BY-4.0 AND CC-BY-NC-4.0 AND (ODbL-1.0 OR CC-BY-SA-4.0)"
    assert (together.use, together.attribution, together.share_alike) == ("non-commercial", True, True)
    assert too_lax(together, sources) == []
    assert strictest([parse("MIT"), parse("mit")]).expression == "MIT"


def test_a_laxer_licence_is_refused_with_every_reason() -> None:
    reasons = too_lax(parse("CC0-1.0"), [parse("CC-BY-NC-SA-4.0"), parse("MIT"), parse("CC-BY-ND-4.0")])
    assert reasons == [
        "CC0-1.0 allows all use, but the source under CC-BY-NC-SA-4.0 allows non-commercial use.",
        "The source under CC-BY-NC-SA-4.0 asks for attribution, CC0-1.0 does not.",
        "The source under CC-BY-NC-SA-4.0 is share-alike, CC0-1.0 is not.",
        "The source under MIT asks for attribution, CC0-1.0 does not.",
        "The source under CC-BY-ND-4.0 asks for attribution, CC0-1.0 does not.",
        "The source under CC-BY-ND-4.0 forbids changed copies, CC0-1.0 does not.",
    ]
    assert too_lax(parse("CC-BY-4.0"), [parse("LicenseRef-unread")])


def test_classes_agree_with_the_data_provenance_initiative() -> None:
    path = shared("data-provenance", "constants", "license_classes.json")
    theirs = json.loads(path.read_text(encoding="utf-8"))
    uses = {"All": "all", "NC": "non-commercial"}
    ids = {
        "Academic Free License v3.0": "AFL-3.0", "Apache License 2.0": "Apache-2.0",
        "Artistic License 2.0": "Artistic-2.0",
        "BSD 2-Clause License": "BSD-2-Clause", "BSD 3-Clause License": "BSD-3-Clause", "CC BY 4.0": "CC-BY-4.0",
        "CC BY-NC 4.0": "CC-BY-NC-4.0", "CC BY-NC-ND 4.0": "CC-BY-NC-ND-4.0", "CC BY-NC-SA 4.0": "CC-BY-NC-SA-4.0",
        "CC BY-SA 4.0": "CC-BY-SA-4.0", "CC0 1.0": "CC0-1.0", "CDLA Permissive 2.0": "CDLA-Permissive-2.0",
        "CDLA Sharing 1.0": "CDLA-Sharing-1.0", "GNU General Public License v3.0": "GPL-3.0-only", "ISC License": "ISC",
        "MIT License": "MIT", "ODC BY 1.0": "ODC-By-1.0", "OGL 3.0": "OGL-UK-3.0",
        "BigScience OpenRAIL-M": "LicenseRef-scancode-bigscience-open-rail-m",
        "Llama 2": "LicenseRef-scancode-llama-2-license-2023",
    }  # fmt: skip
    for name, spdx in ids.items():
        use, attribution, share_alike = theirs[name]
        licence = parse(spdx)
        assert (licence.use, licence.attribution, licence.share_alike) == (
            uses[use], attribution == "1", share_alike == "1",
        ), name  # fmt: skip


def test_evidence_says_what_was_seen() -> None:
    document = {"url": "https://example.com/LICENSE", "sha256": "a" * 64, "recognised": "MIT", "reviewed": "2026-11-30"}
    assert Evidence.from_document(document).to_document() == document | {"files": "**"}
    for wrong in (
        {}, {"note": "trust me"}, {"url": "ftp://a"}, {"url": "https://a b"}, {"sha256": "A" * 64},
        {"url": "https://a.com", "reviewed": "30.11.2026"}, {"url": 1}, {"uri": "https://a.com"}, "MIT",
    ):  # fmt: skip
        with pytest.raises(EvidenceError):
            Evidence.from_document(wrong)
