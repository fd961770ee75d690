"""Timestamps as whole microseconds since 1970 in UTC, durations, and a stopwatch."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from alcove.core.errors import InvalidRequest

Clock = Callable[[], int]

SECOND = 1_000_000
DAY = 86_400 * SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CALENDAR = [(end.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND for end in (datetime.min, datetime.max)]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


def system_clock() -> int:
    """The wall clock in microseconds."""
    return time.time_ns() // 1000


def to_datetime(moment: int) -> datetime:
    """The moment as an aware `datetime` in UTC."""
    return _EPOCH + timedelta(0, 0, moment)  # keyword arguments would cost twice as much as the sum


def parse_rfc3339(text: str) -> int | None:
    """Returns the moment of an RFC 3339 text; None if it is not valid."""
    if not _RFC3339.fullmatch(text):
        return None
    try:
        return (datetime.fromisoformat(text.upper()) - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        return None


def parse_duration(text: str, unit: str = "s") -> float | None:
    """Converts a text such as `90`, `90s`, `15m`, `1h` or `7d` into units; None if it is not a duration.

    `unit` is one of the letters; a number without a letter counts in this unit.
    """
    if not (match := _DURATION.fullmatch(text)):
        return None
    return float(match[1]) * _UNITS[match[2] or unit] / _UNITS[unit]


def parse_moment(value: object, field: str) -> int | None:
    """Returns the moment of an aware datetime or of RFC 3339 text; None stays None."""
    if value is None:
        return None
    if isinstance(value, datetime) and value.utcoffset() is not None:
        moment: int | None = (value - _EPOCH) // _MICROSECOND
    else:
        moment = parse_rfc3339(value) if isinstance(value, str) else None
    if moment is None or not _CALENDAR[0] <= moment <= _CALENDAR[1]:
        raise InvalidRequest(field, "a time with its zone: RFC 3339 text or an aware datetime")
    return moment


class Stopwatch:
    """Measures the stages of some work; a stage that is entered again adds to its time."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures a stage, whether it succeeds or fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - start

    def timings_ms(self) -> dict[str, float]:
        """The milliseconds of each stage."""
        return {name: round(seconds * 1000, 3) for name, seconds in self._seconds.items()}
