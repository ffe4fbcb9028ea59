"""Answers to LOOKUP made beforehand, for programs that look names up in the order in which they are listed.

Who has listed a folder and now wants every file's attributes asks for one name after the other. After a few in order,
the entries of the next ones are made by columns, which costs a tenth of making them one by one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from mountd.interfaces import Node, Tree
from mountd.kernel.attributes import heads
from mountd.kernel.listing import handed_out
from mountd.kernel.protocol import ENTRY_BYTES

IN_ORDER = 4
"""So many names one after the other, and the next ones are made."""
MOST = 512
LOOKS_FOR_S = 5.0
"""For so long, who looked names up one after the other is taken for one that will do so with what it lists."""
_KNOWN = 64


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
        self._looked: OrderedDict[int, float] = OrderedDict()

    def take(self, parent_id: int, name: bytes) -> bytes | None:
        """The entry of a name, if it was made."""
        folder, entries = self._ready
        return entries.pop(name, None) if folder == parent_id else None

    def looks(self, pid: int) -> bool:
        """Whether a thread that lists a folder now (``pid`` of its request) will probably look up all that it finds:
        it has just done so with another one. With the entries in the listing, it need not ask for each."""
        return time.monotonic() - self._looked.get(pid, -LOOKS_FOR_S) < LOOKS_FOR_S

    def note(self, parent_id: int, node: Node, pid: int) -> None:
        """The thread ``pid`` looked up a file whose entry had not been made."""
        self._in_order = self._in_order + 1 if self._last == (parent_id, node.nodeid - 1) else 0
        self._last = parent_id, node.nodeid
        if self._in_order < IN_ORDER:
            return
        self._looked[pid] = time.monotonic()
        self._looked.move_to_end(pid)
        if len(self._looked) > _KNOWN:
            self._looked.popitem(last=False)
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
