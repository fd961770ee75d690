"""Texts into terms: words of any script, stems, speakers, and questions of nothing but noise."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alcove.search import words as search_words
from alcove.search.corpus import Corpus, Item
from alcove.search.query import ParsedQuery
from alcove.search.relevance import find_matches
from alcove.search.words import (
    _NUMBER,
    MAX_QUERY_WORDS,
    detect_language,
    is_question,
    query_words,
    speaker,
    stems,
    term_counts,
    term_number,
    term_numbers,
    words,
)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("ponies", "poni"), ("caresses", "caress"), ("cats", "cat"), ("agreed", "agre"),
        ("motoring", "motor"), ("hopping", "hop"), ("falling", "fall"), ("filing", "file"),
        ("relational", "relat"), ("hopefulness", "hope"), ("adoption", "adopt"), ("sky", "sky"), ("is", "is"),
        ("control", "control"), ("rolls", "roll"), ("über", "uber"), ("2023", "2023"),
    ],
)  # fmt: skip
def test_words_are_stemmed_as_porter_wrote(word: str, expected: str) -> None:
    assert stems([word]) == [expected]


def test_words_are_found_in_any_script() -> None:
    assert words("Don't STOP: café №5") == ["don", "t", "stop", "café", "no5", "no", "5"]
    assert words("東京タワー met ไป") == ["東京", "京タ", "タワ", "ワー", "東", "京", "met", "ไป"]
    assert words("이름이 뭐") == ["이름", "름이", "뭐"]
    assert words("人") == ["人"]


def test_names_from_programs_are_found_by_their_parts_and_as_a_whole() -> None:
    assert words("fetchJson HTTPException max_retries B217 iPhone") == [
        "fetchjson", "fetch", "json", "httpexception", "http", "exception",
        "max_retries", "max", "retries", "b217", "217", "iphone", "phone",
    ]  # fmt: skip
    assert words("plain words, Capitals and ACRONYMS") == ["plain", "words", "capitals", "and", "acronyms"]


@given(text=st.text("0123456789.,:a ", max_size=40))
def test_a_number_of_several_parts_is_found_where_one_begins_at_any_digit(text: str) -> None:
    assert _NUMBER.findall(text) == re.findall(r"[0-9]+(?:[.,:][0-9]+)+", text)


@pytest.mark.parametrize("digits", ["7", "\uff17", "7\u00b2", "\u2460"])
def test_a_long_run_of_digits_is_one_word_and_read_once(digits: str) -> None:
    """A search that began anew at each digit would never come to an end here."""
    run = digits * (1_000_000 // len(digits))
    assert len(words(run)) == 1


def test_a_number_is_found_as_a_whole_however_its_thousands_are_written() -> None:
    assert "12000" in words("12,000 euros")
    assert "12000" in words("12.000 Euro")
    assert {"2.14.4", "15:30"} <= {*words("version 2.14.4 at 15:30")}
    assert words("12, 000") == ["12", "000"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The meeting was moved to Thursday", "english"),
        ("Meine Schwester wohnt in München", "german"),
        ("La réunion a été reportée à jeudi", "french"),
        ("Trabajo como enfermera en un hospital", "spanish"),
        ("Minha irmã mora em Lisboa", "portuguese"),
        ("Mia sorella abita a Roma con il suo cane", "italian"),
        ("Mijn zus woont in Utrecht met haar hond", "dutch"),
        ("export PATH=$HOME/.cargo/bin:$PATH", "english"),
        ("kubectl scale deployment/web -n production", "english"),
        ("", "english"),
    ],
)
def test_function_words_tell_the_language(text: str, expected: str) -> None:
    assert detect_language(words(text)) == expected


def test_words_are_stemmed_by_the_language_of_their_text_and_lose_their_accents() -> None:
    assert term_counts("Ich habe die Versicherungen gekündigt") == {"versicher": 1, "gekundigt": 1}
    assert term_counts("mes réunions") == {"reunion": 1}
    assert stems(["работаю"]) == stems(["работает"])
    assert stems(["reunion"], "french") == stems(["réunion"], "french")


def test_function_words_of_other_scripts_are_left_out() -> None:
    assert {"的", "妹"} & {*term_counts("我的妹妹")} == {"妹"}
    assert term_counts("кто он") == {}


def test_a_question_finds_its_words_in_texts_of_another_language() -> None:
    """A single word shows no language: it is looked for as each language that is there would count it."""
    question = ParsedQuery.of("Versicherungen")
    assert question.forms([]) == {"versicherungen": ["versicherungen"]}
    assert question.forms(["german"]) == {"versicherungen": ["versicherungen", "versicher"]}
    texts = ["Die Versicherung läuft im Oktober ab", "The insurance ends in October"]
    postings = Corpus.of(Item(n, (), n, {"t": text}) for n, text in enumerate(texts)).postings
    assert postings.languages == ["german"]
    (match,) = find_matches(question, postings)
    assert match.rows.tolist() == [0]


@pytest.mark.parametrize("noise", ["", "   ", '"*" -', "😀🎉", "()"])
def test_a_question_of_signs_has_no_words(noise: str) -> None:
    assert query_words(words(noise))[0] == []


def test_search_operators_are_plain_words() -> None:
    assert query_words(words('"cats" NEAR/3 dogs* -mice'))[0] == ["cats", "near", "3", "dogs", "mice"]


def test_a_question_of_stop_words_keeps_them() -> None:
    assert query_words(words("who is it"))[0] == ["who", "is", "it"]


def test_a_very_long_question_is_its_most_frequent_words() -> None:
    found, _ = query_words(words("tea " * 50 + " ".join(f"word{n}" for n in range(20_000))))
    assert len(found) == MAX_QUERY_WORDS
    assert found[0] == "tea"


def test_a_text_is_counted_by_stems_and_without_stop_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each can be switched off, as `bench/ablation.py` does to see what it is worth."""
    assert term_counts("the cats and the cat") == {"cat": 2}
    with monkeypatch.context() as off:
        off.setattr(search_words, "stems", lambda found, _: [*found])
        assert term_counts("the cats") == {"cats": 1}
    monkeypatch.setitem(search_words.STOP_WORDS, "english", frozenset())
    assert term_counts("the cats") == {"the": 1, "cat": 1}


def test_a_speaker_is_a_name_at_the_start() -> None:
    assert speaker("Caroline: hello") == "caroline"
    assert speaker("Mary Ann O'Neil: hello") == "mary ann o'neil"
    assert speaker("at 10:30 we met") is None
    assert speaker("https://example.org is a page") is None
    assert speaker("") is None


def test_a_text_asks_if_it_ends_so() -> None:
    assert is_question("And you?")
    assert is_question("And you? 😀")
    assert not is_question("Who knows? I do.")


def test_what_is_remembered_of_words_is_bounded_and_spells_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_words, "TERM_NUMBERS", {})
    monkeypatch.setattr(search_words, "MAX_CACHED_WORDS", 30)
    texts = ["the secret cats", "die geheime Katze und der Hund", " ".join(f"name{n}" for n in range(100))]
    for text in [*texts, *(f"word{n} more{n}" for n in range(50)), *texts]:
        found, its = term_numbers(text)
        expected = sum((Counter({term_number(each): n}) for each, n in term_counts(text).items()), Counter())
        assert (Counter(filter(None, found)), its) == (expected, detect_language(words(text)))
        every = [entry for known in search_words.TERM_NUMBERS.values() for entry in known.items()]
        assert len(every) <= 30
        assert all(type(part) is int for entry in every for part in entry)
