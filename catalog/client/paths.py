"""The catalog's HTTP paths."""

from __future__ import annotations

from urllib.parse import quote

from catalog.names import Collection, ReleaseRef


def collection_path(collection: Collection) -> str:
    """The path of a collection."""
    return f"/v1/collections/{collection}"


def release_path(ref: ReleaseRef, *rest: str) -> str:
    """The path of a release (or of a tag, where it is read), and of something below it."""
    below = "".join("/" + quote(part, safe="") for part in rest)
    return f"{collection_path(ref.collection)}/releases/{ref.version}{below}"


def tag_path(collection: Collection, tag: str) -> str:
    """The path of a tag."""
    return f"{collection_path(collection)}/tags/{tag}"
