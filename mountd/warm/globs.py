"""Which paths of a release ``--files`` names.

``*`` and ``?`` stop at ``/``, ``**`` does not, ``[…]`` is a set of characters (``[!…]`` its opposite). A pattern
without ``/`` is compared with the file's name in any folder, one with ``/`` with the whole path from the release on;
one that ends in ``/`` takes all that is below that folder.
"""

from __future__ import annotations

import re

from openshelf.errors import UsageError

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?[^/\[\]]+\]|\[|.", re.DOTALL)


def to_regex(glob: str) -> str:
    """A regular expression (RE2 and :mod:`re` alike) that is found in exactly the paths the glob names. UsageError."""
    if not glob.strip("/"):
        raise UsageError("bad_glob", f"The pattern {glob!r} names no file", "Write one like 'data/*.parquet'.")
    whole = glob.lstrip("/") + ("**" if glob.endswith("/") else "")
    anchor = "^" if "/" in glob.rstrip("/") or glob.endswith("/") else "(^|/)"
    return anchor + "".join(_piece(token, glob) for token in _TOKEN.findall(whole)) + "$"


def _piece(token: str, glob: str) -> str:
    match token:
        case "**/":
            return "(.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
        case "[":
            raise UsageError("bad_glob", f"The pattern {glob!r} has a '[' without its ']'", "Write [ as [[].")
    if len(token) > 1:
        opposite = token[1] == "!"
        characters = token[2 if opposite else 1 : -1].replace("\\", "\\\\").replace("^", "\\^")
        return f"[{'^' if opposite else ''}{characters}]"
    return re.escape(token)
