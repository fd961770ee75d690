"""Which texts of a value it is found by."""

from __future__ import annotations

import pytest

from alcove.core.validation import MAX_PATH_LENGTH, extract_texts

VALUE = {
    "title": "Tea",
    "cups": 3,
    "hot": True,
    "none": None,
    "blank": " \n",
    "tags": ["sweet", "", "hot", 7],
    "made": {"by": {"name": "Ann"}, "in": "Rome"},
    "turns": [{"who": "Ann", "said": ["hello", "there"]}, {"said": "hi"}, "aside"],
}


def test_every_text_of_a_value_is_found_by_its_path() -> None:
    assert extract_texts(VALUE) == {
        "title": "Tea",
        "tags": "sweet\nhot",
        "made.by.name": "Ann",
        "made.in": "Rome",
        "turns.who": "Ann",
        "turns.said": "hello\nthere\nhi",
        "turns": "aside",
    }
    assert extract_texts({"n": 1, "l": [], "o": {}}) == {}


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["title"], ["title"]),
        (["made"], ["made.by.name", "made.in"]),
        (["made.by"], ["made.by.name"]),
        (["made.by", "made"], ["made.by.name", "made.in"]),
        (["made", "made.by", "made"], ["made.by.name", "made.in"]),
        (["turns.said", "tags"], ["tags", "turns.said"]),
        (["mad", "made.by.name.first", "title.x", "cups", "none", "absent", "tags.0"], []),
        ([], []),
    ],
)
def test_a_path_names_a_text_or_all_below_it(paths: list[str], found: list[str]) -> None:
    every = extract_texts(VALUE)
    assert extract_texts(VALUE, paths) == {path: every[path] for path in found}


def test_names_with_dots_meet_what_lies_at_the_same_path() -> None:
    assert extract_texts({"a.b": "one", "a": {"b": "two"}}) == {"a.b": "one\ntwo"}


def test_a_path_is_not_spelled_on_beyond_what_a_field_can_be_called() -> None:
    wide = {str(n): "text" for n in range(1000)}
    (path,) = extract_texts({"n" * 500_000: {"m": wide}})
    assert len(path) == 500_000 > MAX_PATH_LENGTH
