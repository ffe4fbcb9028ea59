"""``/.openshelf``: what the mount says of itself, ``status.json`` and ``releases.json``.

Neither changes under a node id. A status has an id of its own each second, and always the same size, since the kernel
may hold the size of another second's. The releases' id follows from their content.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from catalog.manifest import DEFAULT_MTIME_NS
from mountd import inodes
from mountd.interfaces import Invalidation, Node

OWN_FOLDER_ID = 64
STATUS_NAME = b"status.json"
RELEASES_NAME = b"releases.json"
MODE = 0o444
TTL_S = 1.0
_PLACES = 1 << 32
_STATUS_KEPT = 64
_STATUS_BYTES = 4096
_RELEASES_KEPT = 4

Json = Mapping[str, object]


class OwnFiles:
    """The files of ``/.openshelf``. ``status`` gives what the one says, ``releases`` the lines of the other.

    Thread-safe.
    """

    def __init__(self, status: Callable[[], Json], releases: Callable[[], Iterable[Json]]) -> None:
        self._status = status
        self._releases = releases
        self._lock = threading.Lock()
        self._status_nodes: dict[int, Node] = {}
        self._releases_nodes: dict[int, Node] = {}
        self._newest: Node | None = None
        self._changes = 0

    def changed(self) -> Invalidation:
        """The releases have changed: their file is made anew at the next look. The name that this concerns."""
        with self._lock:
            self._changes += 1
            self._newest = None
        return Invalidation(OWN_FOLDER_ID, RELEASES_NAME)

    def lookup(self, name: bytes) -> Node | None:
        """The file with this name."""
        if name == STATUS_NAME:
            return self._status_node()
        return self._releases_node() if name == RELEASES_NAME else None

    def children(self) -> list[tuple[bytes, Node]]:
        """Both files."""
        return [(RELEASES_NAME, self._releases_node()), (STATUS_NAME, self._status_node())]

    def node(self, nodeid: int) -> Node | None:
        """The file with this id; None for releases that are no longer known."""
        if not nodeid & inodes.MADE_BIT:
            return self._status_nodes.get(nodeid) or self._status_node(nodeid)
        newest = self._releases_nodes.get(nodeid) or self._releases_node()
        return newest if newest.nodeid == nodeid else None

    def place(self, nodeid: int) -> tuple[int, bytes]:
        """The folder's id and the name of the file with this id."""
        return OWN_FOLDER_ID, RELEASES_NAME if nodeid & inodes.MADE_BIT else STATUS_NAME

    def _status_node(self, nodeid: int | None = None) -> Node:
        content = json.dumps(dict(self._status()), ensure_ascii=False, indent=1).encode()
        content = content.ljust(_STATUS_BYTES - 1) + b"\n"
        chosen = nodeid or inodes.file_id(0, int(time.time()) % _PLACES)
        with self._lock:
            kept = self._status_nodes.get(chosen)
            if kept is None:
                kept = _file(chosen, content, time.time_ns())
                while len(self._status_nodes) >= _STATUS_KEPT:
                    del self._status_nodes[next(iter(self._status_nodes))]
                self._status_nodes[chosen] = kept
            return kept

    def _releases_node(self) -> Node:
        with self._lock:
            newest, changes = self._newest, self._changes
        if newest is not None:
            return newest
        lines = ",\n".join(json.dumps(dict(line), ensure_ascii=False) for line in self._releases())
        content = f'{{"releases": [\n{lines}\n]}}\n'.encode()
        number = int.from_bytes(hashlib.sha256(content).digest()[:4], "big")
        made = _file(inodes.made_id(0, number), content, DEFAULT_MTIME_NS)
        with self._lock:
            while len(self._releases_nodes) >= _RELEASES_KEPT:
                del self._releases_nodes[next(iter(self._releases_nodes))]
            self._releases_nodes[made.nodeid] = made
            if changes == self._changes:
                self._newest = made
        return made


def _file(nodeid: int, content: bytes, mtime_ns: int) -> Node:
    return Node(nodeid, nodeid, "file", MODE, len(content), mtime_ns, TTL_S, content=content)
