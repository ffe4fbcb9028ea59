"""``OPENSHELF_PROXIES``: which site caches stand before the catalog, written as CVMFS users know it.

``http://a:3128|http://b:3128;http://far:3128;DIRECT``: groups are separated by ``;`` and asked in their order, the
members of a group by ``|`` and share its load. ``DIRECT`` is the catalog itself, alone in the last group; without it
the node asks site caches only. Empty text is ``DIRECT``.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from openshelf.errors import UsageError

DIRECT = "DIRECT"


@dataclass(frozen=True, slots=True)
class Proxies:
    """Groups of site caches by address, and whether the catalog is asked after them."""

    groups: tuple[tuple[str, ...], ...] = ()
    direct: bool = True


def parse(text: str) -> Proxies:
    """What ``text`` means. UsageError names the part that is wrong."""
    if not text.strip():
        return Proxies()
    groups: list[tuple[str, ...]] = []
    direct = False
    for group in (each.strip() for each in text.split(";")):
        if direct:
            raise _bad(group, f"Nothing can come after {DIRECT}.")
        if group == DIRECT:
            direct = True
        else:
            groups.append(tuple(_address(each.strip()) for each in group.split("|")))
    return Proxies(tuple(groups), direct)


def _address(text: str) -> str:
    if text == DIRECT:
        raise _bad(text, f"{DIRECT} stands alone in the last group: http://a:3128;{DIRECT}")
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or parts.username or parts.query or parts.fragment or parts.path not in ("", "/"):
        # The text is not shown when it may hold a password.
        shown = "an address with a name or password" if "@" in text else text
        raise _bad(shown, "Write site caches like http://cache.example:3128.")
    return text.rstrip("/")


def _bad(part: str, hint: str) -> UsageError:
    return UsageError("bad_proxies", f"The site caches have a wrong part, {part!r}", hint)
