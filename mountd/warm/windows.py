"""Bandwidth by time of day, as an operator writes it: ``08:00-20:00=200M,1G``.

Parts are separated by commas. ``HH:MM-HH:MM=RATE`` holds from its first minute up to its last, which is not part of it,
in the node's local time; it may pass midnight, and ``24:00`` may end it. A part without times is the rate for all other
times; without one these have no limit. Where windows overlap, the first that is written counts. A rate is a size as
everywhere (``200M`` is 200 MiB) a second; ``0`` means that nothing is fetched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from openshelf.errors import UsageError
from openshelf.units import parse_size

_TIMES = re.compile(r"(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)")
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class Window:
    """A rate in bytes a second from minute ``start`` of the day up to minute ``stop``; past midnight if it is lower."""

    start: int
    stop: int
    rate: int

    def holds(self, minute: int) -> bool:
        """Whether the window covers this minute of the day (0 to 1439)."""
        if self.start < self.stop:
            return self.start <= minute < self.stop
        return minute >= self.start or minute < self.stop


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Windows in the order in which they count, and the rate for other times (None: no limit)."""

    windows: tuple[Window, ...] = ()
    otherwise: int | None = None


def parse(text: str) -> Bandwidth:
    """What ``text`` means; empty is no limit. UsageError names the part that is wrong."""
    windows: list[Window] = []
    otherwise: int | None = None
    if not text.strip():
        return Bandwidth()
    for part in (each.strip() for each in text.split(",")):
        times, equals, rate = part.rpartition("=")
        if equals:
            windows.append(_window(part, times.strip(), rate))
        elif otherwise is not None:
            raise _bad(part, "Give one rate without times.")
        else:
            otherwise = _rate(part, part)
    return Bandwidth(tuple(windows), otherwise)


def rate_at(bandwidth: Bandwidth | str, when: datetime) -> int | None:
    """Most bytes a second at ``when`` (local time if it has no zone): None without a limit, 0 while paused."""
    parsed = parse(bandwidth) if isinstance(bandwidth, str) else bandwidth
    local = when if when.tzinfo is None else when.astimezone()
    minute = local.hour * 60 + local.minute
    return next((window.rate for window in parsed.windows if window.holds(minute)), parsed.otherwise)


def _window(part: str, times: str, rate: str) -> Window:
    match = _TIMES.fullmatch(times)
    if match is None:
        raise _bad(part, "Write times like 08:00-20:00.")
    begin_hour, begin_minute, end_hour, end_minute = map(int, match.groups())
    start, stop = begin_hour * 60 + begin_minute, end_hour * 60 + end_minute
    if begin_minute > 59 or end_minute > 59 or start >= _DAY_MINUTES or stop > _DAY_MINUTES:
        raise _bad(part, "Times go from 00:00 to 24:00.")
    if start == stop % _DAY_MINUTES and stop != _DAY_MINUTES:
        raise _bad(part, "A window begins and ends at different times; a rate for the whole day has no times.")
    return Window(start, stop, _rate(part, rate))


def _rate(part: str, text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise _bad(part, "Write a rate like 200M; 0 means paused.") from error


def _bad(part: str, hint: str) -> UsageError:
    return UsageError("bad_bandwidth", f"The bandwidth has a wrong part, {part!r}", hint)
