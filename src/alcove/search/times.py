"""Dates in questions and labels: *in May 2023*, *last week*, *three days ago*, *most recently*."""

from __future__ import annotations

import re
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
DAYS = {"day": 1.0, "week": 7.0, "month": 30.44, "year": 365.25}

_MONTH = "|".join(f"{month}|{month[:3]}" for month in MONTHS) + "|sept"
_YEAR = r"(?:19|20)\d\d"
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\b\.?(?:,? ({_YEAR}))?")
_MONTH_FIRST = re.compile(rf"\b({_MONTH})\b\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? ({_YEAR}))?")
_MONTH_YEAR = re.compile(rf"\b({_MONTH})\b\.?,? (?:of )?({_YEAR})\b")
_ISO = re.compile(rf"\b({_YEAR})-(\d\d)(?:-(\d\d))?")
_IN_MONTH = re.compile(rf"\b(?:in|during|last|since|of) ({'|'.join(MONTHS)})\b")
_IN_YEAR = re.compile(rf"\b({_YEAR})\b")
_AGO = re.compile(rf"\b(\d+|{'|'.join(NUMBERS)}) (day|week|month|year)s? ago\b")
_PAST = re.compile(rf"\b(?:past|last) (\d+|{'|'.join(NUMBERS)}) (day|week|month|year)s\b")
_LAST = re.compile(r"\b(last|this|past) (week|weekend|month|year)\b")
_LAST_DAY = re.compile(rf"\b(?:last|on) ({'|'.join(WEEKDAYS)})\b")
_RECENT = re.compile(
    r"\b(recent(ly)?|latest|newest|current(ly)?|nowadays|these days|lately|last time|right now|"
    r"at the moment|up to date)\b"
)


class Span(NamedTuple):
    """A stretch of time in seconds since 1970, its end not in it."""

    start: float
    end: float


def span(text: str, now: float | None = None) -> Span | None:
    """The time a text speaks of, relative words taken from `now`; None if it names none."""
    text = text.casefold()
    return _named(text, now) or (_relative(text, now) if now is not None else None)


def recent(text: str) -> bool:
    """Whether a question asks for what is newest."""
    return _RECENT.search(text.casefold()) is not None


def _named(text: str, now: float | None) -> Span | None:
    for pattern, places in ((_DAY_FIRST, (3, 2, 1)), (_MONTH_FIRST, (3, 1, 2)), (_ISO, (1, 2, 3))):
        if match := pattern.search(text):
            year, month, day = (match[place] for place in places)
            return _stretch(year, month, day, now)
    if match := _MONTH_YEAR.search(text):
        return _stretch(match[2], match[1], None, now)
    if match := _IN_MONTH.search(text):
        return _stretch(None, match[1], None, now)
    if match := _IN_YEAR.search(text):
        return _stretch(match[1], None, None, now)
    return None


def _stretch(year: str | None, month: str | None, day: str | None, now: float | None) -> Span | None:
    """A year, a month or a day; without a year, the last one before now."""
    number = None
    if month:
        number = int(month) if month.isdigit() else 1 + [m[:3] for m in MONTHS].index(month[:3])
    if year is None and now is None:
        return None
    today = datetime.fromtimestamp(now, UTC) if now is not None else None
    try:
        start = datetime(int(year) if year else today.year, number or 1, int(day or 1), tzinfo=UTC)  # type: ignore[union-attr]
        if year is None and today is not None and start > today:
            start = start.replace(year=start.year - 1)
        if day:
            end = start + timedelta(days=1)
        elif number:
            end = (start + timedelta(days=32)).replace(day=1)
        else:
            end = start.replace(year=start.year + 1)
    except (ValueError, OverflowError):
        return None
    return Span(start.timestamp(), end.timestamp())


def _relative(text: str, now: float) -> Span | None:
    day, midnight = DAY, now - now % DAY
    if "day before yesterday" in text:
        return Span(midnight - 2 * day, midnight - day)
    if "yesterday" in text or "last night" in text:
        return Span(midnight - day, midnight)
    if "today" in text or "this morning" in text:
        return Span(midnight, midnight + day)
    if match := _AGO.search(text):
        length = DAYS[match[2]] * day
        middle = now - _number(match[1]) * length
        return Span(middle - length / 2, middle + length / 2)
    if match := _PAST.search(text):
        return Span(now - _number(match[1]) * DAYS[match[2]] * day, now)
    if match := _LAST.search(text):
        length = DAYS.get(match[2], 7.0) * day
        return Span(now - length, now) if match[1] != "last" else Span(now - 2 * length, now)
    if match := _LAST_DAY.search(text):
        today = datetime.fromtimestamp(now, UTC).weekday()
        back = (today - WEEKDAYS.index(match[1]) - 1) % 7 + 1
        return Span(midnight - back * day, midnight - (back - 1) * day)
    return None


def _number(word: str) -> int:
    return min(int(word), 10_000) if word.isdigit() else NUMBERS[word]
