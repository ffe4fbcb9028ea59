"""A recipe's ``map``: which fields of a source's records make a canonical row, where no known shape does."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ingest.dialogues import ROLES
from ingest.shapes import INSTRUCTION_FIELDS, Record, Row, Schema, take_identifier

_NEEDED: dict[Schema, tuple[str, ...]] = {
    "text": ("text",),
    "instruction": ("instruction", "output"),
    "messages": ("messages", "role", "content"),
}
_MISSING = object()


class MapRule(BaseModel):
    """Field paths (``a.b`` goes into objects) for the files that match ``files``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: str = "*"
    canonical: Schema = Field(alias="schema")
    id: str | None = None
    text: str | None = None
    instruction: str | None = None
    input: str | None = None
    output: str | None = None
    messages: str | None = None
    role: str | None = None
    content: str | None = None
    roles: dict[str, Literal["system", "user", "assistant", "tool"]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_what_its_schema_needs(self) -> Self:
        for name in _NEEDED[self.canonical]:
            if getattr(self, name) is None:
                raise ValueError(f"a map to the schema {self.canonical} needs {name!r}")
        return self

    def matches(self, label: str) -> bool:
        """Whether this rule is for the file called ``label`` (its path below the source, or its name)."""
        return fnmatchcase(label, self.files) or fnmatchcase(label.rsplit("/", 1)[-1], self.files)

    def convert(self, record: Record) -> Row | None:
        """The row that ``record`` makes, None when a needed field is absent or not text."""
        identifier = take_identifier({"id": _value(record, self.id)} if self.id else record)
        if self.canonical == "messages":
            return self._messages(record, identifier)
        names = ("text",) if self.canonical == "text" else INSTRUCTION_FIELDS
        texts: list[str] = []
        used: list[str] = []
        for name in names:
            path = getattr(self, name)
            value = _as_text(_value(record, path)) if path else ""
            if value is None and name == "input":
                value = ""
            if value is None:
                return None
            texts.append(value)
            used += [path] if path else []
        return Row(identifier, texts, self._rest(record, used, identifier))

    def _messages(self, record: Record, identifier: str | None) -> Row | None:
        turns = _value(record, self.messages or "")
        if not isinstance(turns, list) or not turns:
            return None
        known = ROLES | dict(self.roles)
        roles: list[str] = []
        contents: list[str] = []
        for turn in turns:
            role = _value(turn, self.role or "")
            content = _as_text(_value(turn, self.content or ""))
            canonical = known.get(role) if isinstance(role, str) else None
            if canonical is None or content is None:
                return None
            roles.append(canonical)
            contents.append(content)
        return Row(identifier, contents, self._rest(record, [self.messages or ""], identifier), roles)

    def _rest(self, record: Record, used: list[str], identifier: str | None) -> Record:
        paths = used + ([self.id or "id"] if identifier is not None else [])
        rest = record
        for path in paths:
            rest = _without(rest, path.split("."))
        return rest


def _value(record: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(record, dict) or name not in record:
            return _MISSING
        record = record[name]
    return record


def _without(record: Any, names: list[str]) -> Any:
    if not isinstance(record, dict) or names[0] not in record:
        return record
    rest = {key: value for key, value in record.items() if key != names[0]}
    if len(names) > 1:
        inner = _without(record[names[0]], names[1:])
        if inner:
            rest[names[0]] = inner
    return rest


def _as_text(value: Any) -> str | None:
    """A string, or a list of strings as lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return None
