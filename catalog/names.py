"""Names of collections, releases, tags and files, and the rules they follow."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from openshelf.errors import OpenshelfError, UsageError

KINDS = {"datasets": "dataset", "models": "model", "images": "image", "code": "code", "templates": "template"}
"""Folder under ``/public`` → kind."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_REASON_CODE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
REASON_CODE_FORM = (
    "a short code of lower-case letters, digits, '_', '-' and '.', e.g. personal_data, licence, court_order, takedown"
)
MAX_COMPONENT_BYTES = 180
MAX_PATH_BYTES = 900
RESERVED_PATHS = frozenset({"release.json", "release.json.sig"})
"""Files that mounts and ``pull`` add beside a release's own; no row may have these names."""

_UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters (Cc), line and paragraph separators, and bidirectional controls."""

_PLAIN_PART = r"[A-Za-z0-9_-](?:[A-Za-z0-9_.-]{0,178}[A-Za-z0-9_-])?"
_PLAIN = re.compile(f"{_PLAIN_PART}(?:/{_PLAIN_PART})*")
"""Paths that need no closer look: millions of rows pass here in one match each."""


class InvalidPath(OpenshelfError):
    """A file's path may not stand in a release."""

    def __init__(self, path: str, reason: str) -> None:
        shown = ascii(path if len(path) <= 120 else path[:117] + "...")
        super().__init__("invalid_path", f"The path {shown} {reason}", "Rename the file and send it again.")


@dataclass(frozen=True, slots=True, order=True)
class Collection:
    """``folder/namespace/name``, e.g. ``datasets/belle/chat``."""

    folder: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.folder}/{self.namespace}/{self.name}"

    @property
    def kind(self) -> str:
        """The kind in the singular, e.g. ``dataset``."""
        return KINDS[self.folder]


@dataclass(frozen=True, slots=True, order=True)
class ReleaseRef:
    """A release by name: ``datasets/belle/chat@1.0``."""

    collection: Collection
    version: str

    def __str__(self) -> str:
        return f"{self.collection}@{self.version}"


def is_name(text: str) -> bool:
    """Whether ``text`` may name a namespace, collection, version or tag."""
    return _NAME.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Whether ``text`` is a SHA-256 in 64 lower-case hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def is_reason_code(text: str) -> bool:
    """Whether ``text`` may be the code of a withdrawal's reason (:data:`REASON_CODE_FORM`)."""
    return _REASON_CODE.fullmatch(text) is not None


def parse_collection(text: str) -> Collection:
    """The collection named ``kind-folder/namespace/name``; :class:`UsageError` when it is not one."""
    parts = text.split("/")
    if len(parts) != 3 or parts[0] not in KINDS or not is_name(parts[1]) or not is_name(parts[2]):
        raise UsageError(
            "bad_collection",
            f"{text!r} is not a collection",
            f"Write KIND/NAMESPACE/NAME with KIND one of {', '.join(KINDS)} and names of letters, digits, '.', '_', '-'"
            " (64 at most), e.g. datasets/belle/chat.",
        )
    return Collection(*parts)


def parse_release(text: str) -> ReleaseRef:
    """The release named ``kind-folder/namespace/name@version``; :class:`UsageError` when it is not one."""
    collection, at, version = text.partition("@")
    if not at or not is_name(version):
        raise UsageError(
            "bad_release",
            f"{text!r} is not a release",
            "Write COLLECTION@VERSION, e.g. datasets/belle/chat@1.0.",
        )
    return ReleaseRef(parse_collection(collection), version)


def check_path(path: str) -> None:
    """Raise :class:`InvalidPath` unless ``path`` is relative, NFC UTF-8, ``/``-separated and safe to show.

    Refused: absolute paths, ``.`` and ``..``, empty components, backslashes, control and bidirectional characters,
    leading or trailing spaces, trailing dots, components over 180 bytes, paths over 900 bytes, lone surrogates,
    and the names that mounts add themselves.
    """
    if len(path) <= MAX_PATH_BYTES and _PLAIN.fullmatch(path) and path not in RESERVED_PATHS:
        return
    try:
        raw = path.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidPath(path, "is not valid UTF-8") from None
    if not path:
        raise InvalidPath(path, "is empty")
    if path.startswith("/"):
        raise InvalidPath(path, "is absolute")
    if len(raw) > MAX_PATH_BYTES:
        raise InvalidPath(path, f"is longer than {MAX_PATH_BYTES} bytes")
    if path in RESERVED_PATHS:
        raise InvalidPath(path, "is reserved for the release's own signed record")
    if not unicodedata.is_normalized("NFC", path):
        raise InvalidPath(path, "is not in Unicode normal form NFC")
    if "\\" in path:
        raise InvalidPath(path, "holds a backslash")
    if _UNSHOWABLE.search(path):
        raise InvalidPath(path, "holds a control or bidirectional character")
    for part in path.split("/"):
        if part == "":
            raise InvalidPath(path, "has an empty component")
        if part in (".", ".."):
            raise InvalidPath(path, f"has a component {part!r}")
        if part != part.strip(" ") or part.endswith("."):
            raise InvalidPath(path, "has a component that begins or ends with a space or ends with a dot")
        if len(part.encode("utf-8")) > MAX_COMPONENT_BYTES:
            raise InvalidPath(path, f"has a component over {MAX_COMPONENT_BYTES} bytes")


def check_paths(paths: Iterable[str]) -> None:
    """Check each path, and that no two collide without regard to case nor a file with a folder."""
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        check_path(path)
        folded = path.casefold()
        other = seen.setdefault(folded, path)
        if other != path or folded in folders:
            raise InvalidPath(path, f"collides with {folders.get(folded, other)!a}")
        parent = path
        while (cut := parent.rfind("/")) > 0:
            parent = parent[:cut]
            known = folders.get(parent.casefold())
            if known == parent:
                break
            if known is not None:
                raise InvalidPath(path, f"has a folder that collides with {known!a}")
            folders[parent.casefold()] = parent
    for folded, folder in folders.items():
        if folded in seen:
            raise InvalidPath(seen[folded], f"collides with the folder {folder!a}")
