"""Splits texts of any language into words, and words into terms: the stems by which texts are compared."""

from __future__ import annotations

import re
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from alcove.core.unicode import normalize, normalized_pieces

if TYPE_CHECKING:
    from Stemmer import Stemmer

MAX_WORD = 64
"""Characters; longer runs are no words of any language and are not stemmed."""
MAX_GROWTH = 4
"""How many times longer normalization may make a text: one character can expand to eighteen."""
MAX_QUERY_WORDS = 64
"""The most frequent words of a longer query are used."""
MAX_CACHED_WORDS = 50_000
"""Words in `TERM_NUMBERS`, about nine megabytes."""
ENGLISH = "english"
"""The language of texts in which no other language is detected."""

_WORD = re.compile(r"\w+")
_SEAM = re.compile(
    "[A-Z0-9_](?:(?<=[a-z][A-Z])|(?=[A-Z][a-z])|(?<=_)|(?<=[A-Za-z][0-9])|(?<=[0-9])(?=[A-Za-z]))"
)
"""Where another part of an identifier begins: `maxRetries`, `HTTPError`, `max_retries`, `B217`."""
_PART = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NUMBER = re.compile(r"(?<![0-9])[0-9]++(?:[.,:][0-9]++)++")
"""`2.14.4`, `12,000` or `15:30`. The possessive quantifiers and the lookbehind keep it linear in long runs of
digits."""
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:([.,])[0-9]{3})(?:\1[0-9]{3})*")
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HANGUL = "\uac00-\ud7af"
_UNSPACED = re.compile(f"([{_HAN}\u3040-\u30ff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+|[{_HANGUL}]+)")
"""Scripts that do not separate words by spaces, and Korean, whose words carry their grammar at the end."""
_ONE_HAN = re.compile(f"[{_HAN}]")
_SPEAKER = re.compile(r"\s*([^\W\d_][\w .'-]{0,38}?)\s*:\s")
_QUESTION_END = re.compile(r"[?？]\W*$")
_ACCENTS = re.compile("[\u0300-\u036f]")
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ı": "i"})
"""Latin letters that Unicode does not decompose into a letter and an accent."""
_BEYOND_LATIN = "\u0370"
_STEMMER_OF_SCRIPT = (
    ("\u0370", "\u03ff", "greek"),
    ("\u0400", "\u052f", "russian"),
    ("\u0530", "\u058f", "armenian"),
    ("\u0600", "\u06ff", "arabic"),
    ("\u0900", "\u097f", "hindi"),
    ("\u0b80", "\u0bff", "tamil"),
)
"""Languages that share a script share its stemmer."""
STOP_WORDS = {
    language: frozenset(stop_words.split())
    for language, stop_words in tomllib.loads(
        (files("alcove.search") / "stop_words.toml").read_text(encoding="utf-8")
    ).items()
}
"""Function words by language."""
_OTHER_STOP_WORDS = STOP_WORDS.pop("other_scripts")
_LANGUAGES_OF = {
    word: [language for language, stop_words in STOP_WORDS.items() if word in stop_words]
    for word in frozenset().union(*STOP_WORDS.values())
    if len(word) > 1
}
"""The languages of each function word of more than one letter."""

LABEL, SPEAKER, LANGUAGE = "label", "speaker", "language"
Term = str | tuple[str, str]
"""A term of a text; or `LABEL` with a term of a label, `SPEAKER` with a word of a speaker's name, `LANGUAGE`
with the language of a text that is not in English."""
TERM_NUMBERS: dict[str, dict[int, int]] = {}
"""By language, the term's number for recent words, 0 for function words.

The keys are hashes that differ in each process, so that nobody can read words of private texts from it."""


def words(text: str) -> list[str]:
    """The words of a text in lower case.

    Identifiers such as `maxRetries` are followed by their parts, and `12,000` by the number without comma.
    Scripts without spaces yield pairs of characters, and each Han character by itself.
    """
    normal = text if text.isascii() else _normalize(text)
    if _SEAM.search(normal):
        result = [
            part for word in _WORD.findall(normal) for part in (word.casefold(), *_identifier_parts(word))
        ]
    else:
        result = _WORD.findall(normal.casefold())
    for number in _NUMBER.findall(normal):
        result.append(re.sub("[.,]", "", number) if _THOUSANDS.fullmatch(number) else number)
    return result if normal.isascii() else [*_split_unspaced(result)]


def _normalize(text: str) -> str:
    """A text in NFKC, cut where it grows too much."""
    pieces, max_length = [], MAX_GROWTH * len(text)
    for piece in normalized_pieces("NFKC", text):
        pieces.append(piece[:max_length])
        max_length -= len(pieces[-1])
        if max_length <= 0:
            break
    return "".join(pieces)


def _identifier_parts(word: str) -> list[str]:
    if len(word) > MAX_WORD or not word.isascii() or not _SEAM.search(word):
        return []
    return [part.casefold() for part in _PART.findall(word) if len(part) > 1 or part.isdigit()]


def _split_unspaced(words: Iterable[str]) -> Iterator[str]:
    """Words, with runs of scripts without spaces split into pairs of characters."""
    for word in words:
        if word.isascii():
            yield word
            continue
        for n, run in enumerate(_UNSPACED.split(word)):
            if n % 2:  # every second part is a match of the pattern
                yield from (run[m : m + 2] for m in range(len(run) - 1))
                yield from (run,) if len(run) == 1 else _ONE_HAN.findall(run)
            elif run:
                yield run


def detect_language(words: Iterable[str]) -> str:
    """The language of words in Latin letters, by their function words.

    A single function word does not prove a language unless some word has accents: identifiers look alike.
    """
    unique = {*words}
    counts = Counter(language for word in unique & _LANGUAGES_OF.keys() for language in _LANGUAGES_OF[word])
    accented: list[str] = []
    if not all(map(str.isascii, unique)):
        accented = [word for word in unique if not word.isascii() and word[0] < _BEYOND_LATIN]
        for word in accented:
            counts.update(_LANGUAGES_OF.get(strip_accents(word), ()))
    best = max(counts, key=counts.__getitem__, default=ENGLISH)
    return ENGLISH if counts[best] == counts[ENGLISH] or (counts[best] == 1 and not accented) else best


def content_words(words: Iterable[str], language: str) -> list[str]:
    """The words that are not function words of their language."""
    stop_words = STOP_WORDS[language]
    return [
        word
        for word in words
        if word not in stop_words
        and (
            word.isascii()
            or (
                word not in _OTHER_STOP_WORDS
                if word[0] >= _BEYOND_LATIN
                else strip_accents(word) not in stop_words
            )
        )
    ]


def query_words(words: Sequence[str]) -> tuple[list[str], str]:
    """The content words of a query, each once, and its language. If it has only function words, these."""
    counts = Counter(words)
    language = detect_language(counts)
    content = content_words(counts, language) or [*counts]
    if len(content) > MAX_QUERY_WORDS:
        frequent = {*sorted(content, key=lambda word: -counts[word])[:MAX_QUERY_WORDS]}
        content = [word for word in content if word in frequent]
    return content, language


def term_counts(text: str) -> dict[str, int]:
    """How often a text contains each of its terms, without function words."""
    text_words = words(text)
    language = detect_language(text_words)
    return Counter(stems(content_words(text_words, language), language))


def term_numbers(text: str) -> tuple[list[int], str]:
    """The number of each word's term, 0 for function words; and the language of the text."""
    text_words = words(text)
    language = detect_language(text_words)
    cached = TERM_NUMBERS.setdefault(language, {})
    numbers = [*map(cached.get, map(hash, text_words))]
    if None in numbers:
        new = {word: 0 for word, number in zip(text_words, numbers, strict=True) if number is None}
        content = content_words(new, language)
        new.update(zip(content, map(term_number, stems(content, language)), strict=True))
        if len(new) + sum(map(len, [*TERM_NUMBERS.values()])) > MAX_CACHED_WORDS:
            TERM_NUMBERS.clear()
        elif TERM_NUMBERS.get(language) is cached:  # else another thread has cleared it
            cached.update(zip(map(hash, new), new.values(), strict=True))
        numbers = [
            new[word] if number is None else number for word, number in zip(text_words, numbers, strict=True)
        ]
    return numbers, language  # type: ignore[return-value]  # no None is left


def term_number(term: Term) -> int:
    """A number for a term in this process: a hash that is even for terms of texts and odd for the others."""
    return hash(term) & -2 if isinstance(term, str) else hash(term) | 1


def stems(words: Sequence[str], language: str = ENGLISH) -> list[str]:
    """The terms of many words, three times as fast as one by one.

    Latin words are stemmed by the language of their text, others by that of their script.
    """
    stemmed = _stemmer(language).stemWords([word if len(word) <= MAX_WORD else "" for word in words])
    return [
        (stem if 2 < len(word) <= MAX_WORD and word.isalpha() else word)
        if word.isascii()
        else _stem_beyond_ascii(word, stem)
        for word, stem in zip(words, stemmed, strict=True)
    ]


def _stem_beyond_ascii(word: str, stem: str) -> str:
    """The term of a word with accents or of another script; `stem` is by the language of its text."""
    if len(word) > MAX_WORD:
        return word
    if len(word) <= 2 or not word.isalpha():
        return strip_accents(word)
    if word[0] < _BEYOND_LATIN:
        return strip_accents(stem)
    script = next((name for first, last, name in _STEMMER_OF_SCRIPT if first <= word[0] <= last), None)
    return strip_accents(_stemmer(script).stemWord(word)) if script else word


_thread_stemmers = threading.local()
"""Stemmers by language; no two threads may use the same one."""


def _stemmer(language: str) -> Stemmer:
    stemmers: dict[str, Stemmer] = _thread_stemmers.__dict__
    if language not in stemmers:
        import Stemmer  # noqa: PLC0415  most commands do not need it

        # The original Porter stemmer for English: the ranking was tuned with it.
        stemmers[language] = Stemmer.Stemmer("porter" if language == ENGLISH else language, 0)
    return stemmers[language]


def strip_accents(word: str) -> str:
    """A word without its accents."""
    if word.isascii():
        return word
    return normalize("NFC", _ACCENTS.sub("", normalize("NFD", word))).translate(_LETTERS)


def speaker(text: str) -> str | None:
    """Who says a text that begins as in a transcript: `Name: …`."""
    start = text[:48]
    match = _SPEAKER.match(start) if ":" in start else None
    return match[1].casefold() if match else None


def is_question(text: str) -> bool:
    """Whether a text ends with a question mark."""
    return _QUESTION_END.search(text[-16:]) is not None
