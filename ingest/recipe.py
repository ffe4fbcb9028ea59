"""The recipe: one YAML file that says what an ingest run does. Errors name the line."""

from __future__ import annotations

import datetime
import difflib
import hashlib
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from catalog.signing import canonical_json
from ingest.mapping import MapRule
from openshelf.errors import OpenshelfError, UsageError
from openshelf.units import MIB, parse_size

DEFAULT_DATE = datetime.date(2000, 1, 1)
DEFAULT_SPLIT = "train"
DEFAULT_SHARD = "256MiB"
_SMALLEST_SHARD_BYTES = 1 * MIB
_SPLIT_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class RecipeError(UsageError):
    """A recipe cannot be read or is not valid."""

    def __init__(self, path: Path, line: int | None, message: str, hint: str = "") -> None:
        place = f"{path}, line {line}" if line else str(path)
        super().__init__("bad_recipe", f"The recipe {place}: {message}", hint or "Correct it and run again.")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


Strings = Annotated[list[str], BeforeValidator(_listed)]


class Licence(BaseModel):
    """The licence block: an SPDX expression and what it rests on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    expression: str
    evidence: Strings = Field(default_factory=list)


class Recipe(BaseModel):
    """What a run does, apart from where its sources lie. All fields have defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str = ""
    summary: str = ""
    sources: Strings = Field(default_factory=list)
    source_urls: Strings = Field(default_factory=list)
    language: Strings = Field(default_factory=list)
    task: Strings = Field(default_factory=list)
    residency: Strings = Field(default_factory=list)
    licence: Annotated[
        Licence | None, BeforeValidator(lambda value: {"expression": value} if isinstance(value, str) else value)
    ] = None
    policy: str = "standard"
    date: datetime.date = DEFAULT_DATE
    map: Annotated[list[MapRule], BeforeValidator(_listed)] = Field(default_factory=list)
    splits: dict[str, Strings] = Field(default_factory=dict)
    shard_size: str = DEFAULT_SHARD

    @field_validator("splits")
    @classmethod
    def _split_names(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        for name in value:
            if not _SPLIT_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot name a split: use lower-case letters, digits and '_'")
        return value

    @field_validator("shard_size")
    @classmethod
    def _shard_size(cls, value: str) -> str:
        try:
            size = parse_size(value)
        except UsageError as error:
            raise ValueError(error.line()) from error
        if size < _SMALLEST_SHARD_BYTES:
            raise ValueError("a shard has at least 1MiB")
        return value

    @property
    def shard_bytes(self) -> int:
        """The most bytes of rows, before compression, that one shard holds."""
        return parse_size(self.shard_size)

    @property
    def created(self) -> str:
        """The release's date as RFC 3339."""
        return f"{self.date.isoformat()}T00:00:00Z"

    @property
    def mtime_ns(self) -> int:
        """The release's date as the modification time of its files."""
        moment = datetime.datetime.combine(self.date, datetime.time(), datetime.UTC)
        return int(moment.timestamp()) * 10**9

    def split_of(self, label: str) -> str:
        """The split that the file called ``label`` belongs to: the first whose pattern matches, else ``train``."""
        for name, patterns in self.splits.items():
            if any(fnmatchcase(label, one) or fnmatchcase(label.rsplit("/", 1)[-1], one) for one in patterns):
                return name
        return DEFAULT_SPLIT

    def rule_for(self, label: str) -> MapRule | None:
        """The first ``map`` rule for the file called ``label``."""
        return next((rule for rule in self.map if rule.matches(label)), None)

    def to_document(self) -> dict[str, Any]:
        """The recipe as plain JSON values, without the paths of its sources, which differ between machines."""
        return self.model_dump(mode="json", by_alias=True, exclude={"sources"})

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the canonical JSON of :meth:`to_document`."""
        return hashlib.sha256(canonical_json(self.to_document())).hexdigest()

    def to_yaml(self) -> str:
        """The recipe as YAML that :func:`load` reads; fields with their defaults are written out too."""
        return yaml.safe_dump(self.to_document(), allow_unicode=True, sort_keys=False)


def load(path: Path) -> Recipe:
    """The recipe at ``path``; :class:`RecipeError` names the line of what is wrong."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise RecipeError(path, None, f"cannot be read: {reason}") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "is not YAML"
        raise RecipeError(path, mark.line + 1 if mark else None, str(problem)) from error
    if document is None:
        return Recipe()
    if not isinstance(document, dict) or not isinstance(node, yaml.MappingNode):
        raise RecipeError(path, 1, "is not a mapping of settings")
    _refuse_repeated(path, node)
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = _plain(str(first["type"]), str(first["msg"]), first.get("ctx", {}))
        raise _explain(path, node, first["loc"], str(first["type"]), message) from error


_EXPECTED = (
    ("date", "must be a date such as 2026-05-31"),
    ("string", "must be text; put it in quotes"),
    ("list", "must be a list"),
    ("dict", "must be a mapping, a setting on each line"),
    ("model", "must be a mapping, a setting on each line"),
    ("missing", "is missing"),
)


def _plain(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """What a value must be, in words of YAML instead of Python."""
    if kind == "literal_error":
        return f"must be one of {context['expected']}"
    return next((text for name, text in _EXPECTED if kind.startswith(name)), message.removeprefix("Value error, "))


def _refuse_repeated(path: Path, node: yaml.Node) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise RecipeError(path, key.start_mark.line + 1, f"{key.value!r} stands twice")
            seen.add(key.value)
            _refuse_repeated(path, value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated(path, item)


def _explain(path: Path, node: yaml.Node, loc: tuple[int | str, ...], kind: str, message: str) -> OpenshelfError:
    """The error at ``loc``, with the line where that key or value stands."""
    line = node.start_mark.line + 1
    for step in loc:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(step)), None)
            if found is None:
                continue
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
    name = ".".join(str(step) for step in loc)
    if kind in ("extra_forbidden", "invalid_key"):
        known = sorted({*Recipe.model_fields, *MapRule.model_fields} - {"canonical"} | {"schema"})
        close = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known are {', '.join(Recipe.model_fields)}."
        return RecipeError(path, line, f"{name!r} is not a setting", hint)
    return RecipeError(path, line, f"{name}: {message}")
