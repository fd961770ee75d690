"""Moments: RFC 3339 text read as instants, and nothing else read as one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alcove import InvalidRequest
from alcove.core.clock import SECOND, parse_moment, parse_rfc3339, system_clock, to_datetime

OFFSETS = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))
AWARE = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=OFFSETS)


@given(AWARE)
def test_the_text_of_a_time_names_the_moment_of_that_time(time: datetime) -> None:
    moment = parse_rfc3339(time.isoformat())
    assert moment is not None
    assert to_datetime(moment) == time
    assert parse_moment(time, "as_of") == parse_moment(time.isoformat(), "as_of") == moment


@given(AWARE, OFFSETS)
def test_an_offset_changes_the_text_and_not_the_moment(time: datetime, elsewhere: timezone) -> None:
    assert parse_rfc3339(time.isoformat()) == parse_rfc3339(time.astimezone(elsewhere).isoformat())


@given(AWARE, AWARE)
def test_moments_sort_as_the_times_do(one: datetime, other: datetime) -> None:
    earlier, later = sorted([one, other])
    first, second = parse_moment(earlier, "after"), parse_moment(later, "after")
    assert first is not None
    assert second is not None
    assert first <= second


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1970-01-01T00:00:00z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01 00:00:00Z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T18:30:00-05:30", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000),
        ("1970-01-01T00:00:00.1Z", 100_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
        ("2024-02-29T00:00:00Z", 1_709_164_800 * SECOND),
    ],
)
def test_an_rfc_3339_text_is_read_as_its_instant(text: str, moment: int) -> None:
    assert parse_rfc3339(text) == moment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026",
        "2026-01-02",
        "2026-01-02T03:04Z",
        "2026-01-02T03:04:05",
        "2026-01-02T03:04:05 Z",
        "2026-01-02T03:04:05,5Z",
        "2026-01-02T03:04:05.Z",
        "2026-01-02T03:04:05+01",
        "2026-01-02T03:04:05+0100",
        "2026-01-02T03:04:05+01:00:00",
        "2026-01-02T03:04:05Z\n",
        " 2026-01-02T03:04:05Z",
        "2026-01-02X03:04:05Z",
        "20260102T030405Z",
        "2026-W01-1T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-01-32T00:00:00Z",
        "2026-01-02T24:00:00Z",
        "2026-01-02T03:60:00Z",
        "2026-01-02T03:04:61Z",
        "2026-01-02T03:04:05+24:00",
        "2026-01-02T03:04:05+05:60",
        "2026-01-02T03:04:05-05:99",
        "0000-01-01T00:00:00Z",
        "-2026-01-02T03:04:05Z",
        "２０２６-01-02T03:04:05Z",
        "2026-01-02T03:04:05\0Z",
    ],
)
def test_what_is_no_rfc_3339_time_names_no_moment(text: str) -> None:
    assert parse_rfc3339(text) is None


@given(st.text())
def test_no_text_makes_the_parser_fail(text: str) -> None:
    moment = parse_rfc3339(text)
    assert moment is None or isinstance(moment, int)


def test_times_at_the_ends_of_the_calendar_are_moments_whatever_their_offset() -> None:
    for text in ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59"):
        assert isinstance(parse_rfc3339(text), int)


class _Undecided(tzinfo):
    """A zone that does not know its offset, which makes a datetime naive."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    "given",
    [
        datetime(2026, 1, 2),
        datetime(2026, 1, 2, tzinfo=_Undecided()),
        datetime(2026, 1, 2).date(),
        "2026-01-02",
        "yesterday",
        "",
        0,
        1_700_000_000.5,
        True,
        ["2026-01-02T03:04:05Z"],
        b"2026-01-02T03:04:05Z",
    ],
)
def test_a_moment_without_its_zone_or_of_another_type_is_refused_by_name(given: object) -> None:
    with pytest.raises(InvalidRequest, match="a time with its zone") as caught:
        parse_moment(given, "before")
    assert caught.value.field == "before"


def test_no_moment_stays_none() -> None:
    assert parse_moment(None, "as_of") is None


def test_the_system_clock_counts_microseconds_since_1970() -> None:
    assert abs(to_datetime(system_clock()) - datetime.now(UTC)) < timedelta(minutes=1)
