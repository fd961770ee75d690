"""Texts of any language as words, words as stems; and what a text shows of itself."""

from __future__ import annotations

import re
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from alcove.core.text import normalize, normalized_pieces

if TYPE_CHECKING:
    from Stemmer import Stemmer

LONGEST_WORD = 64
"""Letters; what is longer is no word of any language, and is taken as it is."""
MOST_GROWTH = 4
"""One character can stand for eighteen; a text of nothing else is read as far as any other."""
MAX_QUERY_TERMS = 64
"""A question of 100 kB is answered by its most frequent words."""
ENGLISH = "english"
"""What a text is taken to be in that shows no other language."""

_WORD = re.compile(r"\w+")
_SEAM = re.compile(
    "[A-Z0-9_](?:(?<=[a-z][A-Z])|(?=[A-Z][a-z])|(?<=_)|(?<=[A-Za-z][0-9])|(?<=[0-9])(?=[A-Za-z]))"
)
"""Where a name from a program has a part behind another: `maxRetries`, `HTTPError`, `max_retries`, `B217`."""
_PART = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NUMBER = re.compile(r"(?<![0-9])[0-9]++(?:[.,:][0-9]++)++")
"""`2.14.4`, `12,000` or `15:30`, of which each part alone says little.

It looks at each digit once: a search that began anew at every digit of a long run would take its square.
"""
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:([.,])[0-9]{3})(?:\1[0-9]{3})*")
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HANGUL = "\uac00-\ud7af"
_UNSPACED = re.compile(f"([{_HAN}\u3040-\u30ff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+|[{_HANGUL}]+)")
"""Scripts in which words are not separated by spaces, or carry their grammar at their end, as in Korean."""
_ONE_HAN = re.compile(f"[{_HAN}]")
_SPEAKER = re.compile(r"\s*([^\W\d_][\w .'-]{0,38}?)\s*:\s")
_ASKS = re.compile(r"[?？]\W*$")
_ACCENTS = re.compile("[\u0300-\u036f]")
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ı": "i"})
"""Letters of Latin alphabets that have no accent to lose."""
_BEYOND_LATIN = "\u0370"
_BY_SCRIPT = (
    ("\u0370", "\u03ff", "greek"),
    ("\u0400", "\u052f", "russian"),
    ("\u0530", "\u058f", "armenian"),
    ("\u0600", "\u06ff", "arabic"),
    ("\u0900", "\u097f", "hindi"),
    ("\u0b80", "\u0bff", "tamil"),
)
"""The stemmer for words of a script; languages that share one share their stems, too."""
STOP_WORDS = {
    language: frozenset(common.split())
    for language, common in tomllib.loads(
        (files("alcove.search.text") / "stop_words.toml").read_text(encoding="utf-8")
    ).items()
}
"""By language, words that are there for their grammar."""
_OF_OTHER_SCRIPTS = STOP_WORDS.pop("other_scripts")
_SPOKEN_IN = {
    word: [name for name, common in STOP_WORDS.items() if word in common]
    for word in frozenset().union(*STOP_WORDS.values())
    if len(word) > 1
}
"""By function word of more than one letter, the languages that have it."""


def words(text: str) -> list[str]:
    """The words in lower case.

    A name such as `maxRetries` also gives its parts and `12,000` also the number; what is written without
    spaces gives pairs of characters, and each Han character by itself.
    """
    normal = text if text.isascii() else _normal(text)
    found: list[str] = []
    if _SEAM.search(normal):
        for word in _WORD.findall(normal):
            found.append(word.casefold())
            found.extend(_parts(word))
    else:
        found = _WORD.findall(normal.casefold())
    found.extend(_numbers(normal))
    return found if normal.isascii() else [*_spaced(found)]


def _normal(text: str) -> str:
    """A text in characters that look alike in one form, as far as it may grow by that."""
    found, room = [], MOST_GROWTH * len(text)
    for piece in normalized_pieces("NFKC", text):
        found.append(piece[:room])
        room -= len(found[-1])
        if room <= 0:
            break
    return "".join(found)


def _parts(word: str) -> Iterator[str]:
    """What a name consists of, if it is more than one part."""
    if len(word) <= LONGEST_WORD and word.isascii() and _SEAM.search(word):
        yield from (part.casefold() for part in _PART.findall(word) if len(part) > 1 or part.isdigit())


def _numbers(text: str) -> Iterator[str]:
    """Numbers of several parts as a whole, without what separates thousands."""
    for number in _NUMBER.findall(text):
        yield re.sub("[.,]", "", number) if _THOUSANDS.fullmatch(number) else number


def _spaced(found: Iterable[str]) -> Iterator[str]:
    """Words, with those of scripts without spaces in pieces."""
    for word in found:
        if word.isascii():
            yield word
            continue
        for n, run in enumerate(_UNSPACED.split(word)):
            if n % 2:  # every second part is what the pattern matched
                yield from (run[m : m + 2] for m in range(len(run) - 1))
                yield from (run,) if len(run) == 1 else _ONE_HAN.findall(run)
            elif run:
                yield run


def language(found: Iterable[str]) -> str:
    """The language of words in Latin letters: the one of whose function words they hold most.

    Without a letter that English does not have, a single one is no proof: names in programs look alike.
    """
    every = {*found}
    counts: dict[str, int] = {}
    for word in every & _SPOKEN_IN.keys():
        for name in _SPOKEN_IN[word]:
            counts[name] = counts.get(name, 0) + 1
    accented: list[str] = []
    if not all(map(str.isascii, every)):
        accented = [word for word in every if not word.isascii() and word[0] < _BEYOND_LATIN]
    for word in accented:
        for name in _SPOKEN_IN.get(folded(word), ()):
            counts[name] = counts.get(name, 0) + 1
    best = max(counts, key=counts.__getitem__, default=ENGLISH)
    most = counts.get(best, 0)
    return ENGLISH if most == counts.get(ENGLISH) or (most == 1 and not accented) else best


def term_counts(text: str) -> dict[str, int]:
    """How often each term is in a text, without function words."""
    found = words(text)
    its = language(found)
    return Counter(stems(telling(found, its), its))


def question_words(found: Sequence[str]) -> tuple[list[str], str]:
    """Those of a question's words that tell something, each once, or all if none does; and its language."""
    counts = Counter(found)
    its = language(counts)
    asked = telling(counts, its) or [*counts]
    if len(asked) > MAX_QUERY_TERMS:
        chosen = {*sorted(asked, key=lambda word: -counts[word])[:MAX_QUERY_TERMS]}
        asked = [word for word in asked if word in chosen]
    return asked, its


def telling(found: Iterable[str], language: str) -> list[str]:
    """The words of a text in a language that are not there for their grammar only."""
    common = STOP_WORDS[language]
    return [
        word
        for word in found
        if word not in common
        and (
            word.isascii()
            or (word not in _OF_OTHER_SCRIPTS if word[0] >= _BEYOND_LATIN else folded(word) not in common)
        )
    ]


_of_thread = threading.local()
"""Stemmers for each thread: one must not be used by two at once."""


def term(word: str, language: str = ENGLISH) -> str:
    """What a word of a text in a language is counted as: its stem, without accents."""
    return stems([word], language)[0]


def stems(found: Sequence[str], language: str = ENGLISH) -> list[str]:
    """The same for many words, which takes a third of the time for each.

    A stem is by the language of the word's script or, in Latin letters, of its text.
    """
    plain = _stemmer(language).stemWords([word if len(word) <= LONGEST_WORD else "" for word in found])
    return [
        (stem if 2 < len(word) <= LONGEST_WORD and word.isalpha() else word)
        if word.isascii()
        else _beyond_ascii(word, stem)
        for word, stem in zip(found, plain, strict=True)
    ]


def _beyond_ascii(word: str, stem: str) -> str:
    """The stem of a word with accents or of another script; `stem` is that in the language of its text."""
    if len(word) > LONGEST_WORD:
        return word
    if len(word) <= 2 or not word.isalpha():
        return folded(word)
    if word[0] < _BEYOND_LATIN:
        return folded(stem)
    of_script = next((name for first, last, name in _BY_SCRIPT if first <= word[0] <= last), None)
    return folded(_stemmer(of_script).stemWord(word)) if of_script else word


def _stemmer(language: str) -> Stemmer:
    known: dict[str, Stemmer] = _of_thread.__dict__
    if language not in known:
        import Stemmer  # noqa: PLC0415  for who searches or summarises

        # For English Porter's first stems: ranking was measured with them.
        known[language] = Stemmer.Stemmer("porter" if language == ENGLISH else language, 0)
    return known[language]


def folded(word: str) -> str:
    """A word without its accents."""
    if word.isascii():
        return word
    bare = _ACCENTS.sub("", normalize("NFD", word))
    return normalize("NFC", bare).translate(_LETTERS)


def speaker(text: str) -> str | None:
    """Who says it, where a text begins as transcripts do: `Name: …`."""
    start = text[:48]
    match = _SPEAKER.match(start) if ":" in start else None
    return match[1].casefold() if match else None


def asks(text: str) -> bool:
    """Whether a text ends as a question."""
    return _ASKS.search(text[-16:]) is not None
