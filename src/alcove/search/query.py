"""Parses queries: their words, words with related meanings, and the time they ask about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from alcove.core.cache import Cache
from alcove.search.dates import TimeSpan, asks_for_newest, find_span
from alcove.search.embedders import Matrix
from alcove.search.vectors import Int16Matrix
from alcove.search.words import ENGLISH, query_words, stems, words

MAX_DATED = 2000
"""Characters of a query in which dates are looked for."""
MIN_LIKENESS = 0.3
"""The likeness from which a word is related."""
MAX_RELATED = 48
MAX_CACHED_WORDS = 20_000
"""Words whose related terms are cached: they depend on the language only, not on anybody's memories."""

RelatedTerms = tuple[tuple[str, float], ...]
"""The terms of related words with their likeness, the most alike first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedQuery:
    """A query that is parsed once and ranked in any number of scopes."""

    terms: Mapping[str, RelatedTerms]
    """The terms of its words, each with the terms of related words."""
    words: frozenset[str]
    """All its words, which may be names of speakers."""
    vector: Matrix | None
    spellings: Mapping[str, str] = field(default_factory=dict)
    """The word of each term."""
    tokens: Matrix | None = None
    """A row for each of its tokens."""
    span: TimeSpan | None = None
    """The time it asks about."""
    asks_for_newest: bool = False
    text: str = ""
    degraded: str | None = None
    """Why it finds less than it could."""

    @classmethod
    def of(
        cls,
        text: str,
        vector: Matrix | None = None,
        *,
        tokens: Matrix | None = None,
        lexicon: Lexicon | None = None,
        now: float | None = None,
    ) -> ParsedQuery:
        """Parses a text that has this vector and these tokens, if any.

        Relative dates are counted from `now`, in seconds since 1970.
        """
        every_word = words(text)
        content, language = query_words(every_word)
        terms: dict[str, RelatedTerms] = {}
        spellings: dict[str, str] = {}
        related = lexicon.related(content) if lexicon else [()] * len(content)
        for own, word, its_related in zip(stems(content, language), content, related, strict=True):
            terms.setdefault(own, tuple(pair for pair in its_related if pair[0] != own))
            spellings.setdefault(own, word)
        start = text[:MAX_DATED]
        return cls(
            terms=terms,
            spellings=spellings,
            words=frozenset(every_word),
            vector=vector,
            tokens=tokens,
            span=find_span(start, now),
            asks_for_newest=asks_for_newest(start),
            text=text,
        )

    def forms(self, languages: Iterable[str]) -> dict[str, list[str]]:
        """For each term, the terms of its word in English and in other languages, the term itself first."""
        spellings = [self.spellings.get(own, own) for own in self.terms]
        by_word = zip(*(stems(spellings, language) for language in (ENGLISH, *languages)), strict=True)
        return {own: [own, *({*forms} - {own})] for own, forms in zip(self.terms, by_word, strict=True)}


class Lexicon:
    """Finds words with related meanings in a language model's table of words.

    Every transformer begins with a vector for each piece of its vocabulary. Related words have similar
    vectors there, so that a query for *kids* also finds *children* by keyword.
    """

    def __init__(self, vocabulary: Mapping[str, int], table: Matrix) -> None:
        self._words = sorted(word for word in vocabulary if len(word) > 2 and word.isalpha())
        vectors = np.asarray(table[[vocabulary[word] for word in self._words]], dtype=np.float32)
        # All words lean the same way in such tables; without their mean, likeness is about meaning.
        vectors -= vectors.mean(axis=0)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        self._vectors = Int16Matrix.of(vectors)
        self._rows = {word: row for row, word in enumerate(self._words)}
        self._cache: Cache[str, RelatedTerms] = Cache(max_entries=MAX_CACHED_WORDS)

    def related(self, words: Sequence[str]) -> list[RelatedTerms]:
        """The terms of related words for each word."""
        related = {word: self._cache.get(word) for word in words if word in self._rows}
        if unknown := [word for word, terms in related.items() if terms is None]:
            likeness = (self._vectors @ self._vectors[[self._rows[word] for word in unknown]].T).T
            for word, row in zip(unknown, likeness, strict=True):
                related[word] = terms = self._most_alike(row, self._rows[word])
                self._cache.put(word, terms)
        return [related.get(word) or () for word in words]

    def _most_alike(self, likeness: Matrix, own_row: int) -> RelatedTerms:
        rows = np.flatnonzero(likeness >= MIN_LIKENESS)
        rows = rows[np.argsort(-likeness[rows], kind="stable")][: MAX_RELATED + 1]
        rows = rows[rows != own_row]
        terms: dict[str, float] = {}
        for related_term, value in zip(
            stems([self._words[row] for row in rows]), likeness[rows].tolist(), strict=True
        ):
            terms.setdefault(related_term, value)
        return tuple(terms.items())
