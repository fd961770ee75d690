"""Texts into terms: words of any script, stems, speakers, and questions of nothing but noise."""

from __future__ import annotations

import pytest

from alcove.search import words as terms
from alcove.search.words import MAX_QUERY_TERMS, asks, question_words, speaker, term, term_counts, words


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("ponies", "poni"), ("caresses", "caress"), ("cats", "cat"), ("agreed", "agre"),
        ("motoring", "motor"), ("hopping", "hop"), ("falling", "fall"), ("filing", "file"),
        ("relational", "relat"), ("hopefulness", "hope"), ("adoption", "adopt"), ("sky", "sky"), ("is", "is"),
        ("control", "control"), ("rolls", "roll"), ("über", "über"), ("2023", "2023"),
    ],
)  # fmt: skip
def test_words_are_stemmed_as_porter_wrote(word: str, expected: str) -> None:
    assert term(word) == expected


def test_words_are_found_in_any_script() -> None:
    assert words("Don't STOP: café №5") == ["don", "t", "stop", "café", "no5"]
    assert words("東京タワー met ไป") == ["東京", "京タ", "タワ", "ワー", "met", "ไป"]


@pytest.mark.parametrize("noise", ["", "   ", '"*" -', "😀🎉", "()"])
def test_a_question_of_signs_has_no_words(noise: str) -> None:
    assert question_words(noise) == []


def test_search_operators_are_plain_words() -> None:
    assert question_words('"cats" NEAR/3 dogs* -mice') == ["cats", "near", "3", "dogs", "mice"]


def test_a_question_of_stop_words_keeps_them() -> None:
    assert question_words("who is it") == ["who", "is", "it"]


def test_a_very_long_question_is_its_most_frequent_words() -> None:
    found = question_words("tea " * 50 + " ".join(f"word{n}" for n in range(20_000)))
    assert len(found) == MAX_QUERY_TERMS
    assert found[0] == "tea"


def test_a_text_is_counted_by_stems_and_without_stop_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each can be switched off, as `bench/ablation.py` does to see what it is worth."""
    assert term_counts("the cats and the cat") == {"cat": 2}
    with monkeypatch.context() as off:
        off.setattr(terms, "stem", lambda word: word)
        assert term_counts("the cats") == {"cats": 1}
    monkeypatch.setattr(terms, "STOP_WORDS", frozenset())
    assert term_counts("the cats") == {"the": 1, "cat": 1}


def test_a_speaker_is_a_name_at_the_start() -> None:
    assert speaker("Caroline: hello") == "caroline"
    assert speaker("Mary Ann O'Neil: hello") == "mary ann o'neil"
    assert speaker("at 10:30 we met") is None
    assert speaker("https://example.org is a page") is None
    assert speaker("") is None


def test_a_text_asks_if_it_ends_so() -> None:
    assert asks("And you?")
    assert asks("And you? 😀")
    assert not asks("Who knows? I do.")
