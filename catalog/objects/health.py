"""Whether the object store answers, asked so seldom that anybody may ask."""

from __future__ import annotations

import threading
import time

import structlog

from catalog.objects.store import ObjectStore
from openshelf.errors import OpenshelfError

ASKED_EVERY_S = 5.0

log = structlog.get_logger("catalog.objects")


class StoreHealth:
    """The last answer of a store. One caller asks it again after :data:`ASKED_EVERY_S`; others get the last answer
    meanwhile, so that a store that hangs holds up one thread and not all."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._answers = True  # it was tried when it was opened
        self._asked = -ASKED_EVERY_S

    def answers(self, store: ObjectStore) -> bool:
        """Whether ``store`` answered when it was asked last."""
        if time.monotonic() - self._asked >= ASKED_EVERY_S and self._asking.acquire(blocking=False):
            try:
                self._ask(store)
            finally:
                self._asked = time.monotonic()
                self._asking.release()
        return self._answers

    def _ask(self, store: ObjectStore) -> None:
        before = self._answers
        try:
            store.check()
            self._answers = True
        except OpenshelfError as error:
            self._answers = False
            if before:
                log.error("store.does_not_answer", detail=error.message)
