"""LICENSE files of real projects and the official texts of SPDX."""

from __future__ import annotations

from pathlib import Path

import pytest

from compliance.licences import recognise
from tests.support.shared_data import shared

RECOGNISED = [
    "0BSD", "AGPL-3.0-only", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "C-UDA-1.0", "CC0-1.0",
    "CDLA-Permissive-1.0",
    "CDLA-Permissive-2.0", "CDLA-Sharing-1.0", "GPL-2.0-only", "GPL-3.0-only", "ISC", "LGPL-2.1-only", "LGPL-3.0-only",
    "MIT", "MPL-2.0", "ODC-By-1.0", "ODbL-1.0", "PDDL-1.0", "Unlicense", "WTFPL",
    *(
        f"CC-{terms}-{version}"
        for terms in ("BY", "BY-SA", "BY-NC", "BY-ND", "BY-NC-SA", "BY-NC-ND")
        for version in ("1.0", "2.0", "2.5", "3.0", "4.0")
    ),
]  # fmt: skip


def official(spdx: str) -> str:
    return shared("spdx-license-xml", "test", "simpleTestForGenerator", f"{spdx}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("spdx", RECOGNISED)
def test_the_official_text_is_recognised(spdx: str) -> None:
    assert recognise(official(spdx)) == spdx


def test_no_other_official_text_is_taken_for_one_of_them() -> None:
    folder = shared("spdx-license-xml", "test", "simpleTestForGenerator")
    names = sorted(path.stem for path in folder.glob("*.txt"))
    assert len(names) > 800
    for name in names:
        got = recognise(official(name))
        # The same text has several names: GPL-3.0, GPL-3.0-or-later, depreciate_GPL-3.0+ …
        base = name.removeprefix("depreciate_").removesuffix("-or-later").removesuffix("+").removesuffix("-only")
        if name == "MPL-2.0-no-copyleft-exception":
            base = "MPL-2.0"
        assert got in (None, name, base, f"{base}-only"), name


LICENSEE = {
    "agpl-3.0_markdown/LICENSE.md": "AGPL-3.0-only",
    "apache-2.0_markdown/LICENSE.md": "Apache-2.0",
    "bom/LICENSE": "MIT",
    "bsd-2-author/LICENSE": "BSD-2-Clause",
    "bsd-3-authorowner/LICENSE": "BSD-3-Clause",
    "bsd-3-multilinecopyright/LICENSE.txt": "BSD-3-Clause",
    "cc-by-4.0_markdown/LICENSE.md": "CC-BY-4.0",
    "cc-by-nc-sa/LICENSE": "CC-BY-NC-SA-4.0",
    "cc-by-sa-4.0_markdown/LICENSE.md": "CC-BY-SA-4.0",
    "cc0-1.0_markdown/LICENSE.md": "CC0-1.0",
    "crlf-license/LICENSE": "GPL-3.0-only",
    "gpl-2.0_markdown/LICENSE.md": "GPL-2.0-only",
    "lgpl-2.1_markdown/LICENSE.md": "LGPL-2.1-only",
    "mit_markdown/LICENSE.md": "MIT",
    "mpl-2.0_markdown/LICENSE.md": "MPL-2.0",
    "unlicense_markdown/LICENSE.md": "Unlicense",
    "pixar-modified-apache/LICENSE.txt": None,
    "wrk-modified-apache/LICENSE": None,
    "fcpl-modified-mpl/LICENSE": None,
    "vim/LICENSE": None,
    "epl-1.0_markdown/LICENSE.md": None,
}


@pytest.mark.parametrize(("name", "spdx"), LICENSEE.items())
def test_license_files_of_projects_are_recognised(name: str, spdx: str | None) -> None:
    folder = shared("licensee", "spec", "fixtures")
    path = folder / name
    if not path.exists():
        path = next(entry for entry in Path(path.parent).iterdir() if entry.stem.upper().startswith("LICEN"))
    assert recognise(path.read_text(encoding="utf-8", errors="replace")) == spdx


def test_a_text_with_an_added_condition_is_another_licence() -> None:
    mit = official("MIT")
    assert recognise(mit + "\nThe Software shall be used for Good, not Evil.\n") is None
    assert recognise(mit + "\n" + "You may not train a model on the Software without a fee. " * 5) is None
    assert recognise("") is None
    assert recognise("MIT") is None
    assert recognise("版权所有，保留一切权利。") is None
    assert recognise("x " * 200_000) is None
