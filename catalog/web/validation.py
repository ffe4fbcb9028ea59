"""What is wrong with a request's fields, in the words of those who use the commands. No value is ever repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_PLACES = frozenset({"body", "query", "path", "header"})
_LABELS = {
    "created": "date",
    "licence_expression": "licence",
    "q": "query",
    "sha256": "digest",
    "attachment": "review object's name",
}
"""Fields whose names are not what people call them."""


def _limit(context: Mapping[str, Any], name: str) -> str:
    return str(context.get(name, "?"))


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "is missing",
    "extra_forbidden": lambda _: "is not known to this catalog",
    "json_invalid": lambda _: "is not JSON",
    "string_type": lambda _: "must be text",
    "string_unicode": lambda _: "must be valid Unicode",
    "string_too_short": lambda _: "must not be empty",
    "string_too_long": lambda context: f"is over {_limit(context, 'max_length')} characters",
    "string_pattern_mismatch": lambda context: f"must have the form {_limit(context, 'pattern')}",
    "too_long": lambda context: f"has over {_limit(context, 'max_length')} entries",
    "literal_error": lambda context: f"must be {_limit(context, 'expected')}",
    "int_type": lambda _: "must be a whole number",
    "int_parsing": lambda _: "must be a whole number",
    "float_parsing": lambda _: "must be a number",
    "greater_than_equal": lambda context: f"must be at least {_limit(context, 'ge')}",
    "less_than_equal": lambda context: f"must be at most {_limit(context, 'le')}",
    "less_than": lambda context: f"must be below {_limit(context, 'lt')}",
    "list_type": lambda _: "must be a list",
    "dict_type": lambda _: "must be an object",
    "model_attributes_type": lambda _: "must be a JSON object",
    "value_error": lambda context: str(context.get("error", "is not valid")),
}


def explained(error: Mapping[str, Any]) -> str:
    """The second half of a sentence about the field of one of pydantic's errors."""
    words = _WORDS.get(str(error["type"]))
    return words(error.get("ctx") or {}) if words else "is not valid"


def sentence(error: Mapping[str, Any]) -> str:
    """The whole sentence."""
    if error["type"] == "json_invalid":
        return "The request's body is not JSON"
    parts = [part for part in error["loc"] if part not in _PLACES]
    if not parts:
        return f"The request's {error['loc'][0]} {explained(error)}"
    label = ", ".join(_LABELS.get(part, part.replace("_", " ")) for part in parts if isinstance(part, str))
    entry = f"Entry {parts[-1] + 1} of the" if isinstance(parts[-1], int) else "The"
    return f"{entry} {label} {explained(error)}"
