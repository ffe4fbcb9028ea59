"""SPDX licence expressions (SPDX 2.3, annex D), read with license-expression."""

from __future__ import annotations

import difflib
import re
from functools import cache
from typing import Any

from license_expression import ExpressionError, ExpressionParseError, get_spdx_licensing

from compliance.licences.classes import Licence, classify
from openshelf.errors import UsageError

_LICENCE_REF = re.compile(r"(?:DocumentRef-[A-Za-z0-9.\-]+:)?LicenseRef-[A-Za-z0-9.\-]+")
_PUNCTUATION = re.compile(r"[^a-z0-9.]+")


class LicenceError(UsageError):
    """An expression is empty, malformed, or names a licence that SPDX does not know."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__("bad_licence", message, hint)


@cache
def _licensing() -> Any:
    return get_spdx_licensing()


@cache
def _ids_by_plain_spelling() -> dict[str, str]:
    return {_plain(key): key for key in _licensing().known_symbols if not key.startswith("LicenseRef-")}


def _plain(name: str) -> str:
    return _PUNCTUATION.sub("-", name.lower()).strip("-")


def _nearest(name: str) -> str:
    """The SPDX identifier most like ``name``, or an empty string."""
    plain, known = _plain(name), _ids_by_plain_spelling()
    if plain in known:
        return known[plain]
    near = difflib.get_close_matches(plain, known, 1, 0.55)
    return known[near[0]] if near else ""


def parse(expression: str) -> Licence:
    """``expression`` normalised, with its class. Identifiers may be in any case; ``LicenseRef-…`` is allowed.

    ``AND`` takes the stricter part of each class, ``OR`` the laxer alternative, ``WITH`` the licence's own class.
    Raises :class:`LicenceError`, which names the nearest identifier that exists.
    """
    text = expression.strip()
    if not text:
        raise LicenceError("The licence is empty", "Give an SPDX expression such as CC-BY-4.0 or LicenseRef-my-terms.")
    licensing = _licensing()
    try:
        tree = licensing.parse(text, validate=False)
    except (ExpressionError, ExpressionParseError) as error:
        near = _nearest(text)
        hint = f"Did you mean {near}?" if near else "Write it like MIT, or CC-BY-4.0 AND (MIT OR Apache-2.0)."
        raise LicenceError(f"{text!r} is not an SPDX expression", hint) from error
    for key in licensing.unknown_license_keys(tree):
        if not _LICENCE_REF.fullmatch(key):
            near = _nearest(key)
            hint = f"Did you mean {near}?" if near else "See spdx.org/licenses, or name your own terms LicenseRef-…."
            raise LicenceError(f"{key!r} is not an SPDX licence identifier", hint)
    return _classified(tree)


def _classified(tree: Any) -> Licence:
    expression = str(tree)
    if isinstance(tree, _licensing().AND):
        return _merged(expression, [_classified(part) for part in tree.args])
    if isinstance(tree, _licensing().OR):
        laxest = min((_classified(part) for part in tree.args), key=lambda licence: licence.strictness)
        return _with_expression(laxest, expression)
    if hasattr(tree, "exception_symbol"):
        _check_with(tree)
        return _with_expression(classify(tree.license_symbol.key), expression)
    if getattr(tree, "is_exception", False):
        raise LicenceError(
            f"{expression!r} is an exception, not a licence", f"Write it like GPL-2.0-only WITH {expression}."
        )
    return classify(expression)


def _check_with(tree: Any) -> None:
    if tree.license_symbol.is_exception or not tree.exception_symbol.is_exception:
        raise LicenceError(f"{str(tree)!r} does not name a licence WITH an exception", "Use AND between two licences.")


def _with_expression(licence: Licence, expression: str) -> Licence:
    return Licence(expression, licence.use, licence.attribution, licence.share_alike, licence.no_derivatives)


def _merged(expression: str, parts: list[Licence]) -> Licence:
    return Licence(
        expression,
        max(parts, key=lambda part: part.strictness[0]).use,
        any(part.attribution for part in parts),
        any(part.share_alike for part in parts),
        any(part.no_derivatives for part in parts),
    )
