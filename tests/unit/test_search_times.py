"""Dates in questions: named ones, relative ones, and texts that only look like dates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from alcove.search.dates import asks_for_newest, find_span

NOW = datetime(2026, 3, 18, 15, 30, tzinfo=UTC)  # a Wednesday


def days(start: str, count: int) -> tuple[float, float]:
    first = datetime.fromisoformat(start).replace(tzinfo=UTC)
    return first.timestamp(), (first + timedelta(days=count)).timestamp()


@pytest.mark.parametrize(
    ("text", "start", "count"),
    [
        ("What happened on 25 May 2023?", "2023-05-25", 1),
        ("1:56 pm on 8 May, 2023", "2023-05-08", 1),
        ("the 3rd of June 2024", "2024-06-03", 1),
        ("on May 8th, 2023", "2023-05-08", 1),
        ("Sept 9, 2021", "2021-09-09", 1),
        ("since 2024-02-29T10:00", "2024-02-29", 1),
        ("in 2024-02", "2024-02-01", 29),
        ("in December 2023", "2023-12-01", 31),
        ("during May", "2025-05-01", 31),
        ("in February", "2026-02-01", 28),
        ("back in 2023", "2023-01-01", 365),
        ("what did I say yesterday", "2026-03-17", 1),
        ("the day before yesterday", "2026-03-16", 1),
        ("today", "2026-03-18", 1),
        ("last Friday", "2026-03-13", 1),
        ("on Wednesday", "2026-03-11", 1),
    ],
)
def test_a_date_is_a_span(text: str, start: str, count: int) -> None:
    assert find_span(text, NOW.timestamp()) == days(start, count)


def test_so_long_ago_is_a_span_around_it() -> None:
    found = find_span("three weeks ago", NOW.timestamp())
    assert found
    assert found.start < (NOW - timedelta(weeks=3)).timestamp() < found.end
    past = find_span("in the past two months", NOW.timestamp())
    assert past
    assert past.end == NOW.timestamp()


@pytest.mark.parametrize(
    "text", ["", "may I ask", "31 February 2023", "2023-13-45", "room 2023b", "march on", "99999 years ago"]
)
def test_what_is_no_date_is_none(text: str) -> None:
    found = find_span(text, NOW.timestamp())
    assert found is None or found.start < 0


def test_relative_words_need_to_know_when_now_is() -> None:
    assert find_span("yesterday") is None
    assert find_span("in May") is None
    assert find_span("in May 2020") is not None


def test_what_is_newest_is_asked_for_in_words() -> None:
    assert asks_for_newest("What is her latest job?")
    assert asks_for_newest("Where does he currently live?")
    assert not asks_for_newest("Where did he live?")
