"""The ways in which dialogues are published, each read into roles and contents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

ROLES = {
    "user": "user", "human": "user", "usr": "user", "prompter": "user", "问": "user",
    "assistant": "assistant", "gpt": "assistant", "sys": "assistant", "bot": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "bard": "assistant", "model": "assistant", "ai": "assistant", "答": "assistant",
    "system": "system", "developer": "system",
    "tool": "tool", "function": "tool", "observation": "tool", "function_call": "assistant",
}  # fmt: skip
"""What publishers call the speakers → the canonical role. (In CrossWOZ ``sys`` is the wizard who answers.)"""

_LISTS = ("messages", "conversations", "conversation")


@dataclass(slots=True)
class Dialogue:
    """A dialogue's turns. ``consumed`` are the record's fields that it was read from; ``extras`` holds, for each turn,
    what else the source says about it, and is empty when no turn has anything.
    """

    roles: list[str]
    contents: list[str]
    consumed: tuple[str, ...]
    extras: list[dict[str, Any]] = field(default_factory=list)


def _content(value: Any) -> str | None:
    """A turn's content: a string, nothing (a tool call), or OpenAI's list of text parts."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        return "\n".join(part["text"] for part in value)
    return None


def turns(record: dict[str, Any]) -> Dialogue | None:
    """ShareGPT (``from``, ``value``), OpenAI (``role``, ``content``) and BELLE's ``conversations``."""
    for key in _LISTS:
        value = record.get(key)
        if isinstance(value, list) and value:
            return _turns(key, value)
    return None


def _turns(key: str, value: list[Any]) -> Dialogue | None:
    found = Dialogue([], [], (key,))
    extras: list[dict[str, Any]] = []
    for turn in value:
        if not isinstance(turn, dict):
            return None
        who, what = ("from", "value") if "from" in turn else ("role", "content")
        name = turn.get(who)
        role = ROLES.get(name.strip().lower()) if isinstance(name, str) else None
        content = _content(turn.get(what))
        if role is None or content is None or what not in turn:
            return None
        found.roles.append(role)
        found.contents.append(content)
        extras.append({name: item for name, item in turn.items() if name not in (who, what)})
    if any(extras):
        found.extras = extras
    return found


def crosswoz(record: dict[str, Any]) -> Dialogue | None:
    """CrossWOZ: ``messages`` of ``usr`` and ``sys``, with dialogue acts and states."""
    value = record.get("messages")
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return None
    return _turns("messages", value) if value[0].get("role") in ("usr", "sys") else None


def kdconv(record: dict[str, Any]) -> Dialogue | None:
    """KdConv: ``messages`` of ``message`` and perhaps ``attrs``; the speakers alternate, the user begins."""
    value = record.get("messages")
    if not isinstance(value, list) or not value:
        return None
    found = Dialogue([], [], ("messages",))
    extras: list[dict[str, Any]] = []
    for number, turn in enumerate(value):
        if not isinstance(turn, dict) or not isinstance(turn.get("message"), str):
            return None
        found.roles.append("assistant" if number % 2 else "user")
        found.contents.append(turn["message"])
        extras.append({name: item for name, item in turn.items() if name != "message"})
    if any(extras):
        found.extras = extras
    return found


_SPEAKER = re.compile(r"(?:^|\n)[ \t]*(Human|Assistant)[ \t]*[:：][ \t]*")


def human_assistant(record: dict[str, Any]) -> Dialogue | None:
    r"""BELLE's dialogues in one string: ``Human: …\nAssistant: …``, the last answer in ``output`` or ``target``."""
    for prompt, answer in (("instruction", "output"), ("input", "target")):
        asked, answered = record.get(prompt), record.get(answer)
        if isinstance(asked, str) and isinstance(answered, str) and _SPEAKER.match(asked.lstrip()):
            consumed = (
                (prompt, answer, "input") if prompt == "instruction" and not record.get("input") else (prompt, answer)
            )
            parts = _SPEAKER.split(asked.lstrip())[1:]
            roles = ["user" if name == "Human" else "assistant" for name in parts[::2]]
            contents = [text.strip() for text in parts[1::2]]
            if roles[-1] == "assistant" and not contents[-1]:
                roles.pop()
                contents.pop()
            return Dialogue([*roles, "assistant"], [*contents, answered], consumed)
    return None


_MOSS_PLAIN = re.compile(r"\[(Human|MOSS)\][:：]\s*(.*?)\s*<eo[ha]>", re.DOTALL)
_MOSS_MARK = re.compile(r"^\s*<\|[A-Za-z ]+\|>[:：]\s*|\s*<eo[a-z]>\s*$")


def moss(record: dict[str, Any]) -> Dialogue | None:
    """MOSS: ``chat`` of numbered turns (version 003), or ``plain_text`` with its marks (version 002)."""
    chat, plain = record.get("chat"), record.get("plain_text")
    found = Dialogue([], [], ("chat", "meta_instruction"))
    if isinstance(chat, dict) and chat:
        if isinstance(record.get("meta_instruction"), str):
            found.roles.append("system")
            found.contents.append(record["meta_instruction"])
        extras: list[dict[str, Any]] = [{} for _ in found.roles]
        for name in sorted(chat, key=lambda name: (len(name), name)):
            turn = chat[name]
            if not isinstance(turn, dict) or not all(isinstance(turn.get(who), str) for who in ("Human", "MOSS")):
                return None
            found.roles += ["user", "assistant"]
            found.contents += [_MOSS_MARK.sub("", turn[who]) for who in ("Human", "MOSS")]
            extras += [{}, {key: item for key, item in turn.items() if key not in ("Human", "MOSS")}]
        if any(extras):
            found.extras = extras
        return found
    if isinstance(plain, str):
        spoken = _MOSS_PLAIN.findall(plain)
        found.consumed = ("plain_text",)
        found.roles = ["user" if who == "Human" else "assistant" for who, _ in spoken]
        found.contents = [said for _, said in spoken]
        return found if spoken else None
    return None
