"""Unicode normalisation: what the standard says, in time that grows with the length of a text."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alcove.core import unicode
from alcove.core.unicode import MAX_MARKS, Form, normalize, normalized_pieces

FORMS: tuple[Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
MARKS = "\u0301\u0316\u0345\u0327\u05b0\u0f71\u0f73\u3099\uff9e\uff9f"
LETTERS = "aé e東ไक\u1100\u1161\u11a8가\ufdfaﾊŉ①🙂.\n\u09c7\u09be\u0e33"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unicode, "MAX_PIECE", 3)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("form", FORMS)
@given(given=st.lists(st.tuples(st.sampled_from(LETTERS) | st.characters(codec="utf-8"),
                                st.text(MARKS, max_size=MAX_MARKS // 3))))  # fmt: skip
def test_a_text_without_piles_of_marks_is_normalised_as_the_standard_says(
    form: Form, given: list[tuple[str, str]]
) -> None:
    spelled = "".join(letter + marks for letter, marks in given)
    if [*unicode._ends(spelled)] == [len(spelled)]:
        assert normalize(form, spelled) == unicodedata.normalize(form, spelled)


@pytest.mark.parametrize("form", FORMS)
def test_a_piece_may_end_before_any_character_that_is_taken_for_a_boundary(form: Form) -> None:
    before = ("a", "e\u0301", "\u1100", "가", "\u09c7", "\u3046")
    for boundary in filter(unicode._BOUNDARY.match, map(chr, range(0x10000))):
        for each in before:
            apart = unicodedata.normalize(form, each) + unicodedata.normalize(form, boundary)
            assert unicodedata.normalize(form, each + boundary) == apart, hex(ord(boundary))


def test_every_combining_mark_counts_as_one() -> None:
    for char in map(chr, range(0x110000)):
        if unicodedata.combining(unicodedata.normalize("NFKD", char)[0]):
            assert unicode._LONG_RUN.search(char.translate(unicode._HALFWIDTH_MARKS) * (MAX_MARKS + 1)), hex(
                ord(char)
            )


@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0345\u0327\u0301", "\uff9e\u0301", "\u0f71\u0f72"])
def test_no_pile_of_marks_is_put_into_order_at_once(marks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(form: Any, piece: str) -> str:
        lengths.append(len(piece))
        return piece

    monkeypatch.setattr(unicodedata, "normalize", counted)
    assert normalize("NFKC", "a" + marks * 10_000) == "a" + marks * 10_000
    assert max(lengths) <= MAX_MARKS + 1


def test_a_text_of_one_kind_is_normalised_in_pieces() -> None:
    """While one is normalised, no other thread runs."""
    pieces = [*normalized_pieces("NFKC", "\ufdfa" * 20_000)]
    assert max(map(len, pieces)) <= 18 * unicode.MAX_PIECE


def test_equal_spellings_of_a_text_stay_equal() -> None:
    chance = random.Random(7)
    for _ in range(100):
        marks = chance.sample("\u0301\u0316\u0327\u0345", 4)
        first, second = "e" + "".join(marks), "e" + "".join(chance.sample(marks, 4))
        if unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", second):
            assert normalize("NFC", first * 1000) == normalize("NFC", second * 1000)
