"""Licences: SPDX expressions with their class, the strictest-source rule, evidence, and licence texts."""

from compliance.licences.classes import Licence, Use
from compliance.licences.evidence import Evidence
from compliance.licences.expression import LicenceError, parse
from compliance.licences.recognition import recognise
from compliance.licences.strictness import strictest, too_lax

__all__ = ["Evidence", "Licence", "LicenceError", "Use", "parse", "recognise", "strictest", "too_lax"]
