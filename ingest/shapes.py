"""Record shapes: recognising what a file's records are, and turning them into the three canonical schemas.

A file decides its shape from its first records; the recipe's ``map`` overrules it. A shape takes what it understands
of a record and leaves the rest to ``meta``, so that nothing a source says is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ingest import dialogues

Schema = Literal["text", "instruction", "messages"]
Record = dict[str, Any]


@dataclass(slots=True)
class Row:
    """One canonical row before normalisation.

    ``texts`` are the text of ``text``, the three fields of ``instruction``, or the contents of ``messages``, whose
    roles are in ``roles``. ``identifier`` is the source's own, None when it has none.
    """

    identifier: str | None
    texts: list[str]
    meta: Record
    roles: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape by name: the schema it leads to and how a record is converted (None: not of this shape)."""

    name: str
    schema: Schema
    convert: Callable[[Record], Row | None] = field(compare=False)


INSTRUCTION_FIELDS = ("instruction", "input", "output")


def take_identifier(record: Record) -> str | None:
    """The record's own ``id`` as a string, exact for integers of any length; None without a usable one."""
    value = record.get("id")
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def rest_of(record: Record, *consumed: str) -> Record:
    """What of ``record`` becomes ``meta``: all fields but the consumed ones; a ``meta`` object is unfolded."""
    rest = dict(record)
    for key in consumed:
        rest.pop(key, None)
    if "id" in rest and take_identifier(record) is not None:
        del rest["id"]
    inner = rest.get("meta")
    if isinstance(inner, dict):
        del rest["meta"]
        if not rest:
            return inner
        if not rest.keys() & inner.keys():
            return {**inner, **rest}
        rest["meta"] = inner
    return rest


def _text(record: Record) -> Row | None:
    for key in ("text", "content"):
        value = record.get(key)
        if isinstance(value, str):
            return Row(take_identifier(record), [value], rest_of(record, key))
    return None


def _verses(value: Any, depth: int = 0) -> list[str] | None:
    """The lines of a poem: strings, or sections that have a heading and lines of their own."""
    if depth > _DEEPEST_SECTION:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        lines: list[str] = []
        for item in value:
            inner = _verses(item, depth + 1)
            if inner is None:
                return None
            lines += inner
        return lines
    if isinstance(value, dict):
        for key in _VERSE_KEYS:
            inner = _verses(value.get(key), depth + 1) if isinstance(value.get(key), list) else None
            if inner is not None:
                heads = [value[name] for name in _SECTION_HEADS if isinstance(value.get(name), str)]
                return [head for head in heads if head] + inner
    return None


_VERSE_KEYS = ("paragraphs", "content", "para")
_DEEPEST_SECTION = 8
_SECTION_HEADS = ("type", "title", "chapter", "subchapter", "author")


def _poem(record: Record) -> Row | None:
    for key in _VERSE_KEYS:
        value = record.get(key)
        if isinstance(value, list):
            lines = _verses(value)
            return None if lines is None else Row(take_identifier(record), ["\n".join(lines)], rest_of(record, key))
    return None


def _instruction(record: Record) -> Row | None:
    """Alpaca and BELLE: instruction, output and perhaps input; BELLE's 0.5M set calls them input and target."""
    instruction, output = record.get("instruction"), record.get("output")
    extra = record.get("input")
    if isinstance(instruction, str) and isinstance(output, str) and (extra is None or isinstance(extra, str)):
        return Row(take_identifier(record), [instruction, extra or "", output], rest_of(record, *INSTRUCTION_FIELDS))
    target = record.get("target")
    if isinstance(extra, str) and isinstance(target, str) and instruction is None:
        return Row(take_identifier(record), [extra, "", target], rest_of(record, "input", "target"))
    return None


def _spoken(read: Callable[[Record], dialogues.Dialogue | None]) -> Callable[[Record], Row | None]:
    """A converter from a reader of dialogues."""

    def convert(record: Record) -> Row | None:
        found = read(record)
        if found is None:
            return None
        meta = rest_of(record, *found.consumed)
        if found.extras:
            meta[found.consumed[0]] = found.extras
        return Row(take_identifier(record), found.contents, meta, found.roles)

    return convert


SHAPES: tuple[Shape, ...] = (
    Shape("crosswoz", "messages", _spoken(dialogues.crosswoz)),
    Shape("kdconv", "messages", _spoken(dialogues.kdconv)),
    Shape("messages", "messages", _spoken(dialogues.turns)),
    Shape("moss", "messages", _spoken(dialogues.moss)),
    Shape("belle-dialogue", "messages", _spoken(dialogues.human_assistant)),
    Shape("instruction", "instruction", _instruction),
    Shape("poem", "text", _poem),
    Shape("text", "text", _text),
)
"""In order of preference: of two shapes that fit a record equally, the earlier is meant."""

BY_NAME = {shape.name: shape for shape in SHAPES}


def recognise(records: Sequence[Any]) -> Shape | None:
    """The shape that most of ``records`` have, None when none has any."""
    fits = {
        shape.name: sum(isinstance(record, dict) and shape.convert(record) is not None for record in records)
        for shape in SHAPES
    }
    best = max(SHAPES, key=lambda shape: fits[shape.name])
    return best if fits[best.name] else None
