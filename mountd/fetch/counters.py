"""What was counted on the way."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable


class Counters:
    """Named running totals. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Add to one total."""
        with self._lock:
            self._values[name] += amount

    def add_all(self, amounts: Iterable[tuple[str, int]]) -> None:
        """Add to several totals at once."""
        with self._lock:
            for name, amount in amounts:
                self._values[name] += amount

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._values[name]

    def items(self) -> tuple[tuple[str, int], ...]:
        """All totals by name, sorted."""
        with self._lock:
            return tuple(sorted(self._values.items()))
