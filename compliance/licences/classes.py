"""What a licence permits, as the triple of the Data Provenance Initiative: use, attribution, share-alike."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Use = Literal["all", "non-commercial", "academic", "unspecified"]

USES: tuple[Use, ...] = ("all", "non-commercial", "academic", "unspecified")
"""From lax to strict: what nobody has read yet is treated as the strictest."""


@dataclass(frozen=True, slots=True)
class Licence:
    """An SPDX expression with its class. ``no_derivatives``: a changed copy may not be passed on at all."""

    expression: str
    use: Use
    attribution: bool
    share_alike: bool
    no_derivatives: bool = False

    @property
    def strictness(self) -> tuple[int, bool, bool, bool]:
        """Sorts from lax to strict."""
        return USES.index(self.use), self.no_derivatives, self.share_alike, self.attribution


_Triple = tuple[Use, bool, bool]

_FREE: _Triple = ("all", False, False)
_CREDIT: _Triple = ("all", True, False)
_COPYLEFT: _Triple = ("all", True, True)
_NON_COMMERCIAL: _Triple = ("non-commercial", True, False)

_CREATIVE_COMMONS = re.compile(r"CC-(?:BY-)?(?P<terms>(?:NC|ND|SA|BY|-)*)-?\d.*")

_FAMILIES: tuple[tuple[str, _Triple], ...] = (
    (
        r"CC0-1\.0|CC-PDDC|CC-PDM-1\.0|PDDL-1\.0|Unlicense|WTFPL|0BSD|MIT-0|BlueOak-1\.0\.0|LicenseRef-public-domain",
        _FREE,
    ),
    (r"ODbL-1\.0|CDLA-Sharing-1\.0|LicenseRef-scancode-.*rail.*|LicenseRef-OpenRAIL.*|GFDL-.*", _COPYLEFT),
    (r"A?GPL-.*|MPL-.*|EUPL-.*|OSL-.*|CECILL-2.*|MulanPubL-.*|EPL-.*|CDDL-.*", _COPYLEFT),
    # A dataset cannot "link"; the lesser licence still asks for its own terms on changed copies.
    (r"LGPL-.*", _COPYLEFT),
    (r"ODC-By-1\.0|CDLA-Permissive-.*|C-UDA-1\.0|O-UDA-1\.0|OGL-.*|etalab-.*|DL-DE-BY-2\.0", _CREDIT),
    (r"DL-DE-ZERO-2\.0", _FREE),
    (
        r"Apache-.*|MIT|MIT-.*|BSD-.*|ISC|Zlib|BSL-1\.0|NCSA|PSF-2\.0|Python-2\.0.*|AFL-.*|Artistic-.*|MulanPSL-.*",
        _CREDIT,
    ),
    (r"LicenseRef-scancode-llama-.*", _CREDIT),
    (r"PolyForm-Noncommercial-1\.0\.0|LicenseRef-scancode-exaone-ai-model-.*-nc", _NON_COMMERCIAL),
)


def classify(key: str) -> Licence:
    """The class of one SPDX identifier or ``LicenseRef-…``; what is not in the table is ``unspecified``.

    BSD, MIT and Apache keep notices, so they count as attribution; OpenRAIL's use restrictions travel with copies, so
    it counts as share-alike (as the Data Provenance Initiative has it).
    """
    commons = _CREATIVE_COMMONS.fullmatch(key)
    if commons and not key.startswith("CC0"):
        terms = commons["terms"].split("-")
        return Licence(
            key, "non-commercial" if "NC" in terms else "all", key.startswith("CC-BY"), "SA" in terms, "ND" in terms
        )
    for pattern, (use, attribution, share_alike) in _FAMILIES:
        if re.fullmatch(pattern, key):
            return Licence(key, use, attribution, share_alike)
    return Licence(key, "unspecified", True, False)
