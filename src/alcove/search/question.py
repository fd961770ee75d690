"""A question as ranking takes it: its words, words like them, and its vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from alcove.search.embedders import Matrix
from alcove.search.related_words import Lexicon
from alcove.search.terms import Reader, words
from alcove.search.times import Span, recent, span

MAX_TIMED = 2000
"""Characters of a question that are looked at for a date."""


class Word(NamedTuple):
    """A word of a question as a term, and the terms of words like it, nearest first."""

    term: str
    kin: tuple[tuple[str, float], ...] = ()


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
        kin = lexicon.kin(asked) if lexicon else [()] * len(asked)
        found: dict[str, Word] = {}
        for word, like in zip(asked, kin, strict=True):
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
