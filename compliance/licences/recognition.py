"""Which licence a LICENSE file holds: telling phrases and the length of the text, after normalisation.

A short licence is recognised only when nothing of substance stands beside it: a MIT licence with an added condition is
another licence. The result is evidence for a reviewer, not a decision.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COPYRIGHT_LINE = re.compile(
    r"^\W*(?:(?:portions )?copyright\W*(?:\(c\)|©|\d|<|\[|by |yyyy|the )|\(c\)|©|all rights reserved).*$",
    re.IGNORECASE | re.MULTILINE,
)
_NOT_WORD = re.compile(r"[^a-z0-9]+")
_MARKUP = re.compile(r"<[^>]{1,200}>|\]\([^)]*\)|https?://\S+")
_LONGEST_LICENCE = 200_000


@dataclass(frozen=True, slots=True)
class _Text:
    """How a licence text is known: words that begin it (anywhere in the first 60), phrases in it, words in all."""

    spdx: str
    phrases: tuple[str, ...]
    words: tuple[int, int]
    beginning: str = ""
    without: tuple[str, ...] = ()


def _normalised(text: str) -> str:
    plain = _COPYRIGHT_LINE.sub(" ", _MARKUP.sub(" ", text)).lower()
    return _NOT_WORD.sub(" ", plain.replace("licence", "license").replace("’", "'")).strip()


_PERMISSIVE = (
    _Text(
        "MIT",
        (
            "permission is hereby granted free of charge to any person obtaining a copy",
            "to use copy modify merge publish distribute sublicense and or sell copies of the software",
            "the above copyright notice and this permission notice",
            "shall be included in all copies or substantial portions of the software",
            "the software is provided as is without warranty of any kind express or implied",
        ),
        (145, 185),
        without=("advertising", "non commercial", "noncommercial", "good not evil"),
    ),
    _Text(
        "ISC",
        (
            "permission to use copy modify and or distribute this software for any purpose with or without fee",
            "provided that the above copyright notice and this permission notice appear in all copies",
            "disclaims all warranties",
        ),
        (95, 130),
    ),
    _Text(
        "0BSD",
        (
            "permission to use copy modify and or distribute this software for any purpose with or without fee",
            "is hereby granted the software is provided as is",
        ),
        (75, 110),
    ),
    _Text(
        "BSD-3-Clause",
        (
            "redistribution and use in source and binary forms with or without modification are permitted",
            "redistributions in binary form must reproduce the above copyright notice",
            "may be used to endorse or promote products derived from this software without specific",
        ),
        (185, 250),
        without=("advertising materials", "nuclear", "patent", "clear bsd", "acknowledg", "military", "charge"),
    ),
    _Text(
        "BSD-2-Clause",
        (
            "redistribution and use in source and binary forms with or without modification are permitted",
            "redistributions in binary form must reproduce the above copyright notice",
            "this software is provided by the",
        ),
        (165, 200),
        without=(
            "endorse",
            "advertising",
            "patent",
            "views and conclusions",
            "first lines",
            "pkgconf",
            "netbsd",
            "acknowledg",
            "charge",
            "may not be",
        ),
    ),
    _Text(
        "Unlicense",
        (
            "this is free and unencumbered software released into the public domain",
            "anyone is free to copy modify publish use compile sell or distribute this software",
        ),
        (150, 225),
    ),
    _Text("WTFPL", ("you just do what the fuck you want to", "do what the fuck you want to public license"), (50, 110)),
    _Text(
        "Apache-2.0",
        (
            "apache license version 2 0 january 2004",
            "terms and conditions for use reproduction and distribution 1 definitions",
            "submission of contributions unless you explicitly state otherwise",
            "accepting warranty or additional liability while redistributing the work",
        ),
        (1350, 1800),
        without=("modified apache", "modified version of the apache", "commons clause"),
    ),
)

_COPYLEFT = (
    _Text(
        "MPL-2.0",
        (
            "mozilla public license version 2 0",
            "1 1 contributor",
            "10 4 distributing source code form that is incompatible",
        ),
        (2200, 2800),
        beginning="mozilla public license version 2 0",
    ),
    _Text(
        "GPL-2.0-only",
        ("gnu general public license", "version 2 june 1991", "0 this license applies to any program or other work"),
        (2300, 3200),
    ),
    _Text(
        "GPL-3.0-only",
        ("gnu general public license", "version 3 29 june 2007", "13 use with the gnu affero general public license"),
        (4700, 6000),
    ),
    _Text(
        "AGPL-3.0-only",
        ("gnu affero general public license", "version 3 19 november 2007", "13 remote network interaction"),
        (4700, 6000),
    ),
    _Text(
        "LGPL-2.1-only",
        (
            "gnu lesser general public license",
            "version 2 1 february 1999",
            "0 this license agreement applies to any software library",
        ),
        (3700, 4700),
    ),
    _Text(
        "LGPL-3.0-only",
        ("gnu lesser general public license", "version 3 29 june 2007", "0 additional definitions"),
        (900, 7300),
    ),
)

_DATA = (
    _Text(
        "CC0-1.0",
        ("statement of purpose", "copyright and related rights", "public license fallback"),
        (950, 1250),
        "cc0 1 0 universal",
    ),
    _Text(
        "PDDL-1.0",
        ("public domain dedication", "intended to allow you to freely share modify and use"),
        (1500, 3500),
        "pddl",
    ),
    _Text(
        "ODC-By-1.0", ("open data commons attribution license", "4 2 notices"), (2000, 4200), "odc attribution license"
    ),
    _Text(
        "ODbL-1.0",
        ("open database license", "4 6 access to derivative databases"),
        (2800, 5000),
        "open database license",
    ),
    _Text(
        "CDLA-Permissive-2.0",
        ("community data license agreement permissive version 2 0", "results"),
        (250, 800),
        "community data license agreement permissive",
    ),
    _Text(
        "CDLA-Permissive-1.0",
        ("community data license agreement permissive version 1 0", "section 1 definitions"),
        (1200, 2800),
        "community data license agreement permissive",
    ),
    _Text(
        "CDLA-Sharing-1.0",
        ("community data license agreement sharing version 1 0", "section 1 definitions"),
        (1200, 3000),
        "community data license agreement sharing",
    ),
    _Text(
        "C-UDA-1.0",
        ("computational use of data agreement", "results"),
        (400, 1300),
        "computational use of data agreement",
    ),
)

_COMMONS_TERMS = {
    "attribution": "BY",
    "attribution sharealike": "BY-SA",
    "attribution share alike": "BY-SA",
    "attribution noncommercial": "BY-NC",
    "attribution non commercial": "BY-NC",
    "attribution noncommercial sharealike": "BY-NC-SA",
    "attribution non commercial sharealike": "BY-NC-SA",
    "attribution noncommercial share alike": "BY-NC-SA",
    "attribution noderivatives": "BY-ND",
    "attribution noderivs": "BY-ND",
    "attribution no derivs": "BY-ND",
    "attribution noncommercial noderivatives": "BY-NC-ND",
    "attribution noncommercial noderivs": "BY-NC-ND",
    "attribution noncommercial no derivs": "BY-NC-ND",
    "attribution noderivs noncommercial": "BY-NC-ND",
}
_COMMONS_TITLE = re.compile(
    r"(?<!modified )\b(?P<terms>attribution(?: (?:non ?commercial|share ?alike|no ?deriv(?:ative)?s))*) "
    r"(?P<version>[1-4] [05])(?: (?P<port>international|unported|generic|[a-z]+))?(?: public license)?\b"
)
_COMMONS_BODY_BEFORE_4 = ("1 definitions", "is provided under the terms of this creative commons public license")
_COMMONS_BODY_4 = ("section 1 definitions", "section 3 license conditions", "section 8 interpretation")
_COMMONS_WORDS = (1300, 3600)
_GENERIC_PORTS = (None, "international", "unported", "generic", "creative", "license", "by", "public")


def _creative_commons(text: str, count: int) -> str | None:
    title = _COMMONS_TITLE.search(text[:600])
    if title is None or not _COMMONS_WORDS[0] <= count <= _COMMONS_WORDS[1]:
        return None
    terms = _COMMONS_TERMS.get(title["terms"])
    if terms is None or title["port"] not in _GENERIC_PORTS:
        return None
    body = _COMMONS_BODY_4 if title["version"] == "4 0" else _COMMONS_BODY_BEFORE_4
    if not all(phrase in text for phrase in body):
        return None
    return f"CC-{terms}-{title['version'].replace(' ', '.')}"


_TEXTS = (*_PERMISSIVE, *_COPYLEFT, *_DATA)


def recognise(text: str) -> str | None:
    """The SPDX identifier of the licence whose full text is ``text``, or None when it is none of the common ones.

    A bare GNU text does not say "or later", so that it counts as ``-only``.
    """
    if len(text) > _LONGEST_LICENCE:
        return None
    plain = _normalised(text)
    count = plain.count(" ") + 1
    start = " ".join(plain.split(" ", 60)[:60])
    for known in _TEXTS:
        if not known.words[0] <= count <= known.words[1] or known.beginning not in start:
            continue
        if all(phrase in plain for phrase in known.phrases) and not any(phrase in plain for phrase in known.without):
            return known.spdx
    return _creative_commons(plain, count)
