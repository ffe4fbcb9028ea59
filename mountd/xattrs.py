"""Extended attributes of files and releases: ``user.openshelf.{sha256,release,licence,cached}``."""

from __future__ import annotations

import errno

from mountd.interfaces import Node, Reader, Tree

PREFIX = "user.openshelf."
NAMES = ("sha256", "release", "licence", "cached")


def read_xattr(tree: Tree, reader: Reader, node: Node, name: str) -> str | None:
    """The value of the attribute with this full name, None when the node has none."""
    if node.release is None or not name.startswith(PREFIX):
        return None
    match name[len(PREFIX) :]:
        case "release":
            return str(node.release)
        case "licence":
            return tree.licence(node.release)
        case "sha256" if node.entry is not None:
            return node.entry.sha256.hex()
        case "cached" if node.entry is not None:
            cached = reader.cached_bytes(node)
            return "yes" if cached >= node.size else "partly" if cached else "no"
    return None


def absence(name: str) -> int:
    """The errno for an attribute that a node has not. Lists of access rules are not supported at all, so that whoever
    learns it of one file (``ls -l``) need not ask for the others."""
    return errno.EOPNOTSUPP if name.startswith("system.posix_acl_") else errno.ENODATA


def xattr_names(tree: Tree, reader: Reader, node: Node) -> list[str]:
    """The full names of the attributes that the node has."""
    names = [PREFIX + name for name in NAMES]
    return [name for name in names if read_xattr(tree, reader, node, name) is not None]
