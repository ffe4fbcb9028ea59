"""Hedging: when a request has not been answered after a while, a second one is sent, and the first answer counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from catalog.client.body import Body
from openshelf.errors import OpenshelfError

Attempt = Callable[[], Body]


class NoAnswer(OpenshelfError):
    """Nothing was heard of any request in time."""

    def __init__(self, within_s: float) -> None:
        super().__init__("no_answer", f"no source answered within {within_s:.1f} s")


class Race:
    """Attempts, each in a thread of its own, of which the first that succeeds wins; later answers are given up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answered: list[tuple[int, Body | OpenshelfError]] = []
        self._started = 0
        self._over = False

    def start(self, attempt: Attempt) -> None:
        """Begin an attempt."""
        number = self._started
        self._started += 1
        thread = threading.Thread(target=self._run, args=(number, attempt), name=f"ask-{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads are to be had
            self._run(number, attempt)

    def _run(self, number: int, attempt: Attempt) -> None:
        answer: Body | OpenshelfError
        try:
            answer = attempt()
        except OpenshelfError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 (whoever waits for the race must hear of it)
            answer = OpenshelfError("fetch_failed", f"the request failed in an unforeseen way: {type(error).__name__}")
        with self._changed:
            if not self._over:
                self._answered.append((number, answer))
                self._changed.notify_all()
                return
        if isinstance(answer, Body):
            answer.close()

    def wait(self, within_s: float) -> tuple[int, Body] | None:
        """The number of the attempt that won and its body; None when all have failed or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._won() is not None or len(self._answered) == self._started, within_s)
            return self._won()

    def _won(self) -> tuple[int, Body] | None:
        return next(((number, answer) for number, answer in self._answered if isinstance(answer, Body)), None)

    def errors(self) -> Sequence[tuple[int, OpenshelfError]]:
        """Which attempts failed, and how."""
        with self._changed:
            return [(number, answer) for number, answer in self._answered if isinstance(answer, OpenshelfError)]

    @property
    def undecided(self) -> bool:
        """Whether attempts are still on their way."""
        with self._changed:
            return len(self._answered) < self._started

    def end(self, kept: Body | None) -> None:
        """Give up every answer but ``kept``, those that are still to come too."""
        with self._changed:
            self._over = True
            others = [answer for _, answer in self._answered if isinstance(answer, Body) and answer is not kept]
        for body in others:
            body.close()
