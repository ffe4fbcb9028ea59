"""Answers to LOOKUP made beforehand, for programs that look names up in the order in which they are listed.

Who has listed a folder and now wants every file's attributes asks for one name after the other. After a few in order,
the entries of the next ones are made by columns, which costs a tenth of making them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mountd.interfaces import Node, Tree
from mountd.kernel.attributes import heads
from mountd.kernel.listing import handed_out
from mountd.kernel.protocol import ENTRY_BYTES

IN_ORDER = 4
"""So many names one after the other, and the next ones are made."""
MOST = 512


class Ahead:
    """The entries of one folder that are probably asked for next. ``siblings``: see :class:`Listings`.

    LOOKUPs are answered by one thread at a time; a thread that comes in between finds less, nothing wrong.
    """

    def __init__(self, tree: Tree, siblings: Callable[[], Mapping[int, int]]) -> None:
        self._tree = tree
        self._siblings = siblings
        self._ready: tuple[int, dict[bytes, bytes]] = (0, {})
        self._last = (0, 0)
        self._in_order = 0

    def take(self, parent_id: int, name: bytes) -> bytes | None:
        """The entry of a name, if it was made."""
        folder, entries = self._ready
        return entries.pop(name, None) if folder == parent_id else None

    def note(self, parent_id: int, node: Node) -> None:
        """A file was looked up whose entry had not been made."""
        self._in_order = self._in_order + 1 if self._last == (parent_id, node.nodeid - 1) else 0
        self._last = parent_id, node.nodeid
        if self._in_order < IN_ORDER:
            return
        run = self._tree.following(parent_id, node.nodeid, MOST)
        if run is None or not len(run):
            return
        made = heads(run, handed_out(run, self._siblings()), run.following, plus=True)[:, :ENTRY_BYTES].tobytes()
        text = run.text.data
        places = zip(run.starts.tolist(), run.lengths.tolist(), range(0, len(made), ENTRY_BYTES), strict=True)
        entries = {
            bytes(text[start : start + length]): made[place : place + ENTRY_BYTES] for start, length, place in places
        }
        self._ready = parent_id, entries
        self._last = parent_id, int(run.nodeids[-1])

    def forget(self) -> None:
        """Names have changed: what was made may not be so any more."""
        self._ready = 0, {}
