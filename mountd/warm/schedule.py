"""When a job begins: ``20:00`` or an ISO date and time, by the node's wall clock, whatever the clock does meanwhile."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from openshelf.errors import UsageError

_TIME = re.compile(r"(\d{1,2}):(\d\d)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DAY_S = 25 * 3600.0
"""A time of day is never further away, also on the day on which clocks are put back."""


def begins_at(text: str, now: datetime) -> datetime:
    """When ``text`` means: the next such time of day, or that date and time (local without a zone), after ``now``.

    UsageError when it is neither, or past.
    """
    now = now.astimezone()
    match = _TIME.fullmatch(text.strip())
    if match is not None:
        hour, minute = int(match.group(1)), int(match.group(2))
        if hour < 24 and minute < 60:
            return _next(hour, minute, now)
    else:
        try:
            when = datetime.fromisoformat(text.strip()).astimezone()
        except (ValueError, OverflowError):
            when = None
        if when is not None and when < now:
            raise UsageError("time_past", f"{text!r} is past", "Give a time to come, or leave --at away to begin now.")
        if when is not None:
            return when
    raise UsageError("bad_time", f"{text!r} is not a time", "Write 20:00, or a date and time like 2026-12-01T20:00.")


def due_s(text: str, due: float, now: datetime) -> float:
    """When a job ordered for ``text`` begins, in seconds since 1970, if ``due`` was worked out before: the clock may
    have been put back since, and a time of day is then nearer than it seemed."""
    if _TIME.fullmatch(text.strip()) and due - now.timestamp() > _DAY_S:
        return begins_at(text, now).timestamp()
    return due


def parse_duration(text: str) -> float:
    """Seconds meant by ``90s``, ``10m``, ``2h``, ``1d`` or a bare number of seconds. UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match.group(1)) <= 0:
        raise UsageError("bad_duration", f"{text!r} is not a duration", "Write it like 90s, 10m or 2h.")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def _next(hour: int, minute: int, now: datetime) -> datetime:
    """The next time that local clocks show this."""
    plain = now.replace(tzinfo=None, hour=hour, minute=minute, second=0, microsecond=0)
    for days in (0, 1):
        when = (plain + timedelta(days=days)).astimezone()
        if when > now:
            return when
    return (plain + timedelta(days=2)).astimezone()
