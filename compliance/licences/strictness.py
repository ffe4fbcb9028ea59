"""A release's licence may not be laxer than its strictest source."""

from __future__ import annotations

from collections.abc import Sequence

from compliance.licences.classes import USES, Licence
from compliance.licences.expression import parse


def strictest(sources: Sequence[Licence]) -> Licence:
    """The licence that satisfies all ``sources`` (at least one): their expressions joined with AND, without repeats."""
    expressions = sorted({source.expression for source in sources})
    if len(expressions) == 1:
        return parse(expressions[0])
    return parse(" AND ".join(f"({expression})" for expression in expressions))


def too_lax(release: Licence, sources: Sequence[Licence]) -> list[str]:
    """Why ``release`` promises more than ``sources`` allow: one sentence each, empty when it does not."""
    reasons: list[str] = []
    for source in sources:
        if USES.index(release.use) < USES.index(source.use):
            reasons.append(
                f"{release.expression} allows {release.use} use, but the source under {source.expression} "
                f"allows {source.use} use."
            )
        if source.attribution and not release.attribution:
            reasons.append(f"The source under {source.expression} asks for attribution, {release.expression} does not.")
        if source.share_alike and not release.share_alike:
            reasons.append(f"The source under {source.expression} is share-alike, {release.expression} is not.")
        if source.no_derivatives and not release.no_derivatives:
            reasons.append(
                f"The source under {source.expression} forbids changed copies, {release.expression} does not."
            )
    return reasons
