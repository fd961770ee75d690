"""Texts and questions into the words and terms that keyword search counts."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import Stemmer

from alcove.search.embedders import Matrix
from alcove.search.related_words import Lexicon
from alcove.search.times import Span, recent, span

LONGEST_WORD = 64
"""Letters; what is longer is no word of any language, and is taken as it is."""
MOST_GROWTH = 4
"""One character can stand for eighteen; a text of nothing else is read as far as any other."""
MAX_QUERY_TERMS = 64
"""A question of 100 kB is answered by its most frequent words."""
MAX_TIMED = 2000
"""Characters of a question that are looked at for a date."""

_WORD = re.compile(r"\w+")
_UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\u0e00-\u0e7f]+)")
"""Japanese, Chinese and Thai, which write words without spaces between them."""
_SPEAKER = re.compile(r"\s*([^\W\d_][\w .'-]{0,38}?)\s*:\s")
_ASKS = re.compile(r"[?？]\W*$")

_STOP_WORDS = (
    "a an the is are was were be been being am do does did done doing has have had having of to in on at for "
    "with and or by from as about into what when where who whom whose which how why s t it its that this "
    "these those there i you he she they we me him her them us my your his their our would could should will "
    "can may might must shall not no if then than so too very just also re ve ll d m don didn doesn isn wasn "
    "some any all"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())


def words(text: str) -> list[str]:
    """The words in lower case; scripts written without spaces give pairs of characters."""
    found: list[str] = []
    normal = unicodedata.normalize("NFKC", text).casefold()
    for word in _WORD.findall(normal[: MOST_GROWTH * len(text)]):
        if word.isascii():
            found.append(word)
            continue
        for n, run in enumerate(_UNSPACED.split(word)):
            if n % 2 and len(run) > 2:  # every second part is what the pattern matched
                found.extend(run[m : m + 2] for m in range(len(run) - 1))
            elif run:
                found.append(run)
    return found


@dataclass(frozen=True, slots=True)
class Reader:
    """How texts become terms; memories and questions are read alike."""

    stemming: bool = True
    stop_words: bool = True

    def counts(self, text: str) -> Counter[str]:
        """How often each term is in a text."""
        return Counter(self.term(word) for word in words(text) if not self._idle(word))

    def question(self, text: str) -> list[str]:
        """A question's words, each once; if it has nothing but stop words, those."""
        counts = Counter(words(text))
        telling = [word for word, _ in counts.most_common() if not self._idle(word)]
        chosen = set((telling or list(counts))[:MAX_QUERY_TERMS])
        return [word for word in counts if word in chosen]

    def term(self, word: str) -> str:
        return _stem(word) if self.stemming and len(word) <= LONGEST_WORD else word

    def _idle(self, word: str) -> bool:
        return self.stop_words and word in STOP_WORDS


class _Stemmers(threading.local):
    """A stemmer for each thread: one must not be used by two at once."""

    def __init__(self) -> None:
        self.stem = Stemmer.Stemmer("porter", 0).stemWord


_stemmers = _Stemmers()


@lru_cache(maxsize=50_000)  # of short words, so a few megabytes; equal terms are then one object
def _stem(word: str) -> str:
    """The stem of an English word; what is not plain English letters stays as it is."""
    return _stemmers.stem(word) if len(word) > 2 and word.isascii() and word.isalpha() else word


def speaker(text: str) -> str | None:
    """Who says it, where a text begins as transcripts do: `Name: …`."""
    match = _SPEAKER.match(text[:48])
    return match[1].casefold() if match else None


def asks(text: str) -> bool:
    """Whether a text ends as a question."""
    return _ASKS.search(text[-16:]) is not None


class Word(NamedTuple):
    """A word of a question as a term, and the terms of words like it, nearest first."""

    term: str
    related: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Read once, ranked in any number of subtrees."""

    text: str
    words: tuple[Word, ...]
    said: frozenset[str]
    """Every word of it, for names."""
    vector: Matrix | None
    span: Span | None = None
    """The time it speaks of."""
    recent: bool = False
    """Whether it asks for what is newest."""

    @classmethod
    def of(
        cls,
        text: str,
        vector: Matrix | None = None,
        *,
        lexicon: Lexicon | None = None,
        now: float | None = None,
        reader: Reader = Reader(),  # noqa: B008 - frozen
    ) -> Question:
        asked = reader.question(text)
        related = lexicon.related(asked) if lexicon else [()] * len(asked)
        found: dict[str, Word] = {}
        for word, like in zip(asked, related, strict=True):
            term = reader.term(word)
            terms: dict[str, float] = {}
            for other, likeness in like:
                terms.setdefault(reader.term(other), likeness)
            terms.pop(term, None)
            found.setdefault(term, Word(term, tuple(terms.items())))
        return cls(
            text=text,
            words=tuple(found.values()),
            said=frozenset(words(text)),
            vector=vector,
            span=span(text[:MAX_TIMED], now),
            recent=recent(text[:MAX_TIMED]),
        )
