"""Recognizes dates in queries and labels: *in May 2023*, *last week*, *three days ago*, *most recently*."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
           "eight": 8, "nine": 9, "ten": 10, "couple of": 2, "few": 3}  # fmt: skip
DAY = 86_400.0
UNIT_DAYS = {"day": 1.0, "week": 7.0, "weekend": 7.0, "month": 30.44, "year": 365.25}

_MONTH = "(?P<month>" + "|".join(f"{month}|{month[:3]}" for month in MONTHS) + "|sept)"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_COUNT = rf"(\d+|{'|'.join(NUMBERS)})"
_DATES = [
    re.compile(pattern)
    for pattern in (
        rf"\b{_DAY}(?: of)? {_MONTH}\b\.?(?:,? {_YEAR})?",
        rf"\b{_MONTH}\b\.? {_DAY}\b(?:,? {_YEAR})?",
        rf"\b{_YEAR}-(?P<month>\d\d)(?:-(?P<day>\d\d))?",
        rf"\b{_MONTH}\b\.?,? (?:of )?{_YEAR}\b",
        rf"\b(?:in|during|last|since|of) (?P<month>{'|'.join(MONTHS)})\b",
        rf"\b{_YEAR}\b",
    )
]
"""The first pattern that matches decides."""
_DAY_OFFSETS = {"day before yesterday": -2, "yesterday": -1, "last night": -1, "today": 0, "this morning": 0}
_AGO = re.compile(rf"\b{_COUNT} (day|week|month|year)s? ago\b")
_PAST = re.compile(rf"\b(?:past|last) {_COUNT} (day|week|month|year)s\b")
_LAST = re.compile(r"\b(last|this|past) (week|weekend|month|year)\b")
_LAST_WEEKDAY = re.compile(rf"\b(?:last|on) ({'|'.join(WEEKDAYS)})\b")
_NEWEST = re.compile(
    r"\b(recent(ly)?|latest|newest|current(ly)?|nowadays|these days|lately|last time|right now|"
    r"at the moment|up to date)\b"
)


class TimeSpan(NamedTuple):
    """A stretch of time in seconds since 1970; `end` is exclusive."""

    start: float
    end: float


def find_span(text: str, now: float | None = None) -> TimeSpan | None:
    """The time that a text names, if any; relative dates need `now`."""
    text = text.casefold()
    match = next(filter(None, (pattern.search(text) for pattern in _DATES)), None)
    absolute = _absolute_span(match.groupdict(), now) if match else None
    return absolute or (_relative_span(text, now) if now is not None else None)


def asks_for_newest(text: str) -> bool:
    """Whether a query asks for the newest items."""
    return _NEWEST.search(text.casefold()) is not None


def _absolute_span(date: Mapping[str, str | None], now: float | None) -> TimeSpan | None:
    """A year, a month or a day; without a year, the last one before `now`."""
    year, month, day = (date.get(part) for part in ("year", "month", "day"))
    if year is None and now is None:
        return None
    number = None
    if month:
        number = int(month) if month.isdigit() else 1 + [m[:3] for m in MONTHS].index(month[:3])
    today = datetime.fromtimestamp(now or 0, UTC)
    try:
        start = datetime(int(year or today.year), number or 1, int(day or 1), tzinfo=UTC)
        if year is None and start > today:
            start = start.replace(year=start.year - 1)
        if day:
            end = start + timedelta(days=1)
        elif number:
            end = (start + timedelta(days=32)).replace(day=1)
        else:
            end = start.replace(year=start.year + 1)
    except (ValueError, OverflowError):
        return None
    return TimeSpan(start.timestamp(), end.timestamp())


def _relative_span(text: str, now: float) -> TimeSpan | None:
    midnight = now - now % DAY
    for words, offset in _DAY_OFFSETS.items():
        if words in text:
            return TimeSpan(midnight + offset * DAY, midnight + (offset + 1) * DAY)
    if match := _AGO.search(text):
        length = UNIT_DAYS[match[2]] * DAY
        middle = now - _count(match[1]) * length
        return TimeSpan(middle - length / 2, middle + length / 2)
    if match := _PAST.search(text):
        return TimeSpan(now - _count(match[1]) * UNIT_DAYS[match[2]] * DAY, now)
    if match := _LAST.search(text):
        length = UNIT_DAYS[match[2]] * DAY
        return TimeSpan(now - length, now) if match[1] != "last" else TimeSpan(now - 2 * length, now)
    if match := _LAST_WEEKDAY.search(text):
        today = datetime.fromtimestamp(now, UTC).weekday()
        days = (today - WEEKDAYS.index(match[1]) - 1) % 7 + 1
        return TimeSpan(midnight - days * DAY, midnight - (days - 1) * DAY)
    return None


def _count(word: str) -> int:
    return min(int(word), 10_000) if word.isdigit() else NUMBERS[word]
