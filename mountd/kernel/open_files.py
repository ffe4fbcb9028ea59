"""What the data side may know of open files and do about them (:class:`mountd.interfaces.Kernel`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mountd.kernel.notify import Notifier
from mountd.kernel.opens import OpenTable


class KernelSide:
    """The table of open files, and the way to the kernel's pages of them."""

    def __init__(self, opens: OpenTable, notifier: Notifier) -> None:
        self._opens = opens
        self._notifier = notifier

    def open_files(self) -> Mapping[int, bool]:
        """Every open node id, and whether the kernel reads the file itself."""
        return self._opens.modes()

    def drop_pages(self, nodeids: Iterable[int]) -> None:
        """Queue files whose attributes and pages the kernel is to forget."""
        self._notifier.drop_pages(nodeids)
