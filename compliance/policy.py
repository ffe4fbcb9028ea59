"""What is done with findings: a policy, and the two that are built in."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import rfc8785

from openshelf.errors import OpenshelfError

Action = Literal["replace", "mask", "keep", "drop_document", "reject"]
"""``replace``: a numbered placeholder; ``mask``: the outer characters stay; ``keep``: nothing; ``drop_document``: the
document is left out; ``reject``: the document is a reject of the run."""

ACTIONS: tuple[Action, ...] = get_args(Action)

# Named here and not taken from ``compliance.detect``: a catalog reads policies without Hyperscan.
POLICY_ENTITIES = ("resident_id", "mobile", "email", "bank_card", "uscc", "ipv4", "plate")

DEFAULT_MIN_SCORE = 0.5


class PolicyError(OpenshelfError):
    """A policy cannot be found, read, or understood."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__("bad_policy", message, hint)


@dataclass(frozen=True, slots=True)
class Policy:
    """Which findings get which action. Findings below ``min_score`` are kept (and reported) whatever the entity."""

    name: str
    actions: Mapping[str, Action]
    default: Action = "keep"
    min_score: float = DEFAULT_MIN_SCORE
    min_scores: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Thresholds of single entities, where they differ."""

    @classmethod
    def load(cls, name_or_path: str | Path) -> Policy:
        """The built-in policy of that name, or the YAML file at that path. Raises :class:`PolicyError`."""
        built_in = BUILT_IN.get(str(name_or_path))
        if built_in is not None:
            return built_in
        path = Path(name_or_path)
        if not path.is_file():
            raise PolicyError(
                f"There is no policy {str(name_or_path)!r}",
                f"Give a YAML file or one of: {', '.join(sorted(BUILT_IN))}.",
            )
        import yaml  # not needed by a catalog, which only uses the built-in policies

        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise PolicyError(f"{path} is not a YAML file", str(error).splitlines()[-1].strip()) from error
        return cls.from_document(document, default_name=path.stem)

    @classmethod
    def from_document(cls, document: object, default_name: str = "policy") -> Policy:
        """Read ``{name, default, min_score, entities: {mobile: replace, email: {action: mask, min_score: 0.8}}}``."""
        if not isinstance(document, dict):
            raise PolicyError("A policy is a mapping with the keys name, default, min_score and entities")
        _refuse_unknown(document, ("name", "default", "min_score", "entities"), "key")
        entities = document.get("entities", {})
        if not isinstance(entities, dict):
            raise PolicyError("'entities' maps entity names to actions")
        _refuse_unknown(entities, POLICY_ENTITIES, "entity")
        actions: dict[str, Action] = {}
        min_scores: dict[str, float] = {}
        for entity, rule in entities.items():
            if isinstance(rule, dict):
                _refuse_unknown(rule, ("action", "min_score"), f"key of {entity}")
                if "min_score" in rule:
                    min_scores[entity] = _score(rule["min_score"], entity)
                rule = rule.get("action", document.get("default", "keep"))
            actions[entity] = _action(rule, entity)
        return cls(
            str(document.get("name", default_name)),
            MappingProxyType(actions),
            _action(document.get("default", "keep"), "default"),
            _score(document.get("min_score", DEFAULT_MIN_SCORE), "min_score"),
            MappingProxyType(min_scores),
        )

    def to_document(self) -> dict[str, Any]:
        """The policy as :meth:`from_document` reads it."""
        entities: dict[str, Any] = {}
        for entity, action in self.actions.items():
            own = self.min_scores.get(entity)
            entities[entity] = action if own is None else {"action": action, "min_score": own}
        return {"name": self.name, "default": self.default, "min_score": self.min_score, "entities": entities}

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of the canonical JSON of the policy."""
        return hashlib.sha256(rfc8785.dumps(self.to_document())).hexdigest()

    def action(self, entity: str) -> Action:
        """What is done with a finding of ``entity`` that reaches the threshold."""
        return self.actions.get(entity, self.default)

    def threshold(self, entity: str) -> float:
        """The score from which :meth:`action` applies."""
        return self.min_scores.get(entity, self.min_score)

    def decide(self, entity: str, score: float) -> Action:
        """What is done with a finding of this entity and score (scores are compared to four digits)."""
        return self.action(entity) if round(score, 4) >= round(self.threshold(entity), 4) else "keep"


def _refuse_unknown(given: Mapping[Any, Any], known: tuple[str, ...], what: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
            raise PolicyError(f"The policy has an unknown {what}: {name!r}", hint)


def _action(value: object, where: str) -> Action:
    if value not in ACTIONS:
        raise PolicyError(f"{value!r} is not an action ({where})", f"Known: {', '.join(ACTIONS)}.")
    return value


def _score(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise PolicyError(f"The score of {where} must be a number from 0 to 1")
    return float(value)


_REPLACE: Action = "replace"

BUILT_IN: Mapping[str, Policy] = MappingProxyType(
    {
        "standard": Policy("standard", MappingProxyType(dict.fromkeys(POLICY_ENTITIES, _REPLACE))),
        "report-only": Policy("report-only", MappingProxyType({})),
    }
)
"""``standard`` replaces every entity from a score of 0.5; ``report-only`` keeps all and only reports."""
