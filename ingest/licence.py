"""The release's licence: stated, or recognised in a LICENSE file beside the sources, with what it rests on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compliance.licences import Evidence, Licence, parse, recognise, too_lax
from ingest.recipe import Recipe
from openshelf.units import MIB

_NAMES = ("license", "licence", "copying")
_LARGEST_BYTES = 1 * MIB


@dataclass(frozen=True, slots=True)
class ReleaseLicence:
    """``licence`` is None while none is known. ``text`` are the bytes of the release's ``LICENSE`` file.

    ``warnings`` say where the stated licence promises more than the file found beside the sources.
    """

    licence: Licence | None
    evidence: tuple[Evidence, ...]
    text: bytes | None
    warnings: tuple[str, ...]
    by_folder: Mapping[Path, str] = field(default_factory=dict)
    """What the licence file of a folder was recognised as."""

    def of_source(self, path: Path) -> str:
        """The expression for one source file: of the nearest recognised licence file above it, else the release's."""
        for folder in path.resolve().parents:
            if folder in self.by_folder:
                return self.by_folder[folder]
        return self.licence.expression if self.licence else ""


def find_files(sources: Sequence[Path]) -> list[Path]:
    """LICENSE files in the source folders and beside the sources, in the order of the sources."""
    found: dict[Path, None] = {}
    for source in sources:
        home = source.resolve()
        for folder in (home, home.parent) if home.is_dir() else (home.parent,):
            for path in sorted(folder.iterdir()):
                stem = path.name.lower().split(".")[0]
                if stem in _NAMES and path.is_file() and path.stat().st_size <= _LARGEST_BYTES:
                    found[path] = None
    return list(found)


def decide(recipe: Recipe, sources: Sequence[Path]) -> ReleaseLicence:
    """The licence of a release made of ``sources`` by ``recipe``.

    Raises :class:`compliance.licences.LicenceError`, naming the nearest identifier, for an expression that is not SPDX.
    """
    stated = parse(recipe.licence.expression) if recipe.licence else None
    evidence: list[Evidence] = []
    texts: list[bytes] = []
    read: list[Licence] = []
    by_folder: dict[Path, str] = {}
    for path in find_files(sources):
        data = path.read_bytes()
        recognised = recognise(data.decode("utf-8", "replace")) or ""
        evidence.append(Evidence(file=path.name, sha256=hashlib.sha256(data).hexdigest(), recognised=recognised))
        texts.append(data)
        if recognised:
            read.append(parse(recognised))
            by_folder.setdefault(path.parent, recognised)
    if recipe.licence and stated:
        digest = hashlib.sha256(recipe.to_yaml().encode()).hexdigest()
        evidence.append(Evidence(file="recipe.yaml", sha256=digest, note=f"the recipe states {stated.expression}"))
        evidence += [Evidence(url=url) for url in recipe.licence.evidence]
    evidence += [Evidence(url=url) for url in recipe.source_urls]
    licence = stated or (read[0] if read else None)
    if licence is None:
        return ReleaseLicence(None, tuple(evidence), texts[0] if texts else None, ())
    text = texts[0] if texts else _statement(licence, evidence)
    return ReleaseLicence(licence, tuple(evidence), text, tuple(too_lax(licence, read)), by_folder)


def _statement(licence: Licence, evidence: Sequence[Evidence]) -> bytes:
    """What ``LICENSE`` says when no licence text came with the sources."""
    lines = [f"SPDX-License-Identifier: {licence.expression}", ""]
    lines += ["This dataset is distributed under the licence named above.", "本数据集按上述许可发布。", ""]
    lines += ["Evidence / 依据:"]
    lines += [f"- {item.url or f'{item.file}: {item.note}'}" for item in evidence]
    return ("\n".join(lines) + "\n").encode()
