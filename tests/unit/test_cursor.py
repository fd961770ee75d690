"""Cursors: opaque positions that can be kept for ever, and that nothing else passes for."""

from __future__ import annotations

import base64
import string
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alcove import InvalidRequest
from alcove.core import cursor

POSITIONS = st.integers(0, 2**63 - 1)


@given(POSITIONS)
def test_a_cursor_stands_for_the_position_it_was_made_from(position: int) -> None:
    assert cursor.decode(cursor.encode(position)) == position


@given(POSITIONS)
def test_a_cursor_fits_into_a_url_as_it_is(position: int) -> None:
    assert set(cursor.encode(position)) <= set(string.ascii_letters + string.digits + "-_")


def test_a_cursor_kept_from_the_first_release_still_stands_for_its_position() -> None:
    assert cursor.decode("AQAAAAAAAAAFgRj0Yg") == 5


@given(POSITIONS, st.data())
def test_a_cursor_with_one_character_changed_is_refused(position: int, data: st.DataObject) -> None:
    text = cursor.encode(position)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(string.ascii_letters + string.digits + "-_+/=. "))
    altered = text[:place] + other + text[place + 1 :]
    if altered != text:
        with pytest.raises(InvalidRequest):
            cursor.decode(altered)


@given(POSITIONS, st.integers(1, 17))
def test_a_cursor_cut_short_or_lengthened_is_refused(position: int, length: int) -> None:
    text = cursor.encode(position)
    for altered in (text[:length], text + text[:length], text + "=", text + "==", text + "A", text + "\n"):
        with pytest.raises(InvalidRequest):
            cursor.decode(altered)


@given(st.text(max_size=24) | st.binary(max_size=16) | st.none() | st.integers() | st.booleans())
def test_what_was_never_a_cursor_is_refused(other: object) -> None:
    with pytest.raises(InvalidRequest):
        cursor.decode(other)


@pytest.mark.parametrize("position", [2**63, 2**64 - 1])
def test_a_position_that_no_store_can_reach_is_refused(position: int) -> None:
    body = b"\1" + position.to_bytes(8, "big")
    forged = base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4, "big")).decode().rstrip("=")
    with pytest.raises(InvalidRequest):
        cursor.decode(forged)


def test_a_refusal_names_the_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        cursor.decode("yesterday")
    assert caught.value.field == "after_cursor"
    with pytest.raises(InvalidRequest) as caught:
        cursor.decode("", "Last-Event-ID")
    assert caught.value.field == "Last-Event-ID"
