"""What ranking reads: memories and questions as terms, and words of like meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof

import numpy as np

from alcove.search.dates import DAY, Span, recent, span
from alcove.search.embedders import Matrix
from alcove.search.words import asks, question_words, speaker, term, term_counts, words

MAX_TIMED = 2000
"""Characters of a question that are looked at for a date."""
SHORT = 40
"""Characters of a field that can be read as a date."""
MIN_LIKENESS = 0.3
"""How like a word must be to be related."""
MAX_RELATED = 48
REMEMBERED = 20_000
"""Words whose related ones are kept: they depend on the language only, never on anybody's memories."""

LABEL, SPEAKER = "label", "speaker"
Term = str | tuple[str, str]
"""What is counted: a term of a text; or `LABEL` and a term of a label, `SPEAKER` and a word of a name."""
Related = tuple[tuple[str, float], ...]
"""Words like another one and how like they are, nearest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What a store knows of a memory that is indexed, and what its texts say, read when it is made."""

    id: Hashable
    namespace: Hashable
    sequence: int
    """The order of writing; neighbours are next to each other in it, within one namespace."""
    fields: Mapping[str, str]
    """The `index` texts by name."""
    vectors: Mapping[str, Matrix] = field(default_factory=dict)
    """By field, a row for each window of its text; none while the item is not embedded."""
    at: float | None = None
    """When it was written, in seconds since 1970; or the day that a short field tells instead."""
    terms: Mapping[str, Counter[str]] = field(init=False)
    """By field, how often each term is in it."""
    speaker: str | None = field(init=False)
    asks: bool = field(init=False)
    """Whether its longest text ends as a question."""

    def __post_init__(self) -> None:
        longest = max(self.fields.values(), key=len, default="")
        terms = {name: term_counts(text) for name, text in self.fields.items()}
        read = {"terms": terms, "speaker": speaker(longest), "asks": asks(longest), "at": self._moment()}
        for name, value in read.items():
            object.__setattr__(self, name, value)

    def _moment(self) -> float | None:
        """A field such as `date` or `when` is short and has a day in it."""
        texts = (text for text in self.fields.values() if len(text) <= SHORT and any(map(str.isdigit, text)))
        days = (found.start for found in map(span, texts) if found and found.end - found.start <= DAY)
        return next(days, self.at)

    def document(self, labels: Collection[str]) -> Mapping[Term, int]:
        """How often it holds each term; fields that are labels, and who says it, are told from the rest."""
        found: dict[Term, int] = {(SPEAKER, word): 1 for word in (self.speaker or "").split()}
        for name, terms in self.terms.items():
            for each, count in terms.items():
                key = (LABEL, each) if name in labels else each
                found[key] = found.get(key, 0) + count
        return found

    @property
    def dimensions(self) -> int:
        """Of its vectors; 0 while it has none."""
        return next((rows.shape[1] for rows in self.vectors.values()), 0)

    @property
    def bytes(self) -> int:
        """About how much memory it takes in a corpus, its vectors twice: by themselves and in the matrix."""
        texts = sum(map(getsizeof, self.fields.values()))
        terms = sum(map(len, self.terms.values()))
        vectors = sum(rows.nbytes for rows in self.vectors.values())
        return 1000 + 250 * len(self.terms) + texts + 60 * terms + 9 * vectors // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Read once, ranked in any number of subtrees."""

    words: Mapping[str, Related]
    """Its words as terms, each with the terms of words like it."""
    said: frozenset[str]
    """Every word of it, for names."""
    vector: Matrix | None
    span: Span | None = None
    """The time it speaks of."""
    recent: bool = False
    """Whether it asks for what is newest."""
    degraded: str | None = None
    """Why it finds less than it could, for who asked."""

    @classmethod
    def of(
        cls,
        text: str,
        vector: Matrix | None = None,
        *,
        lexicon: Lexicon | None = None,
        now: float | None = None,
    ) -> Question:
        """A question as it is asked at a moment, `now`, in seconds since 1970, from which it counts back.

        `vector` is its embedding, and `lexicon` knows words like its own; both may be missing.
        """
        asked = question_words(text)
        found: dict[str, Related] = {}
        related = lexicon.related(asked) if lexicon else [()] * len(asked)
        for word, like in zip(asked, related, strict=True):
            terms: dict[str, float] = {}
            for other, likeness in like:
                terms.setdefault(term(other), likeness)
            terms.pop(term(word), None)
            found.setdefault(term(word), tuple(terms.items()))
        said, start = frozenset(words(text)), text[:MAX_TIMED]
        return cls(words=found, said=said, vector=vector, span=span(start, now), recent=recent(start))


class Lexicon:
    """Words of like meaning, by a language model's own table of words.

    Every transformer begins with a vector for each piece of its vocabulary. Related words lie near one
    another there, so a question about *kids* can find *children* by keyword, at no cost when memories are
    indexed.
    """

    def __init__(self, vocabulary: Mapping[str, int], table: Matrix) -> None:
        self._words = sorted(word for word in vocabulary if len(word) > 2 and word.isalpha())
        vectors = np.asarray(table[[vocabulary[word] for word in self._words]], dtype=np.float32)
        # All words lean the same way in such tables; without their mean, likeness is about meaning.
        vectors -= vectors.mean(axis=0)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        self._vectors = vectors
        self._rows = {word: row for row, word in enumerate(self._words)}
        self._remembered: dict[str, Related] = {}

    def related(self, words: Sequence[str]) -> list[Related]:
        """For each word, the words like it and how like they are, nearest first."""
        known = {word: self._remembered.get(word) for word in words if word in self._rows}
        if asked := [word for word, like in known.items() if like is None]:
            likeness = self._vectors[[self._rows[word] for word in asked]] @ self._vectors.T
            if len(self._remembered) + len(asked) > REMEMBERED:
                self._remembered.clear()
            for word, row in zip(asked, likeness, strict=True):
                known[word] = self._remembered[word] = self._nearest(row, self._rows[word])
        return [known.get(word) or () for word in words]

    def _nearest(self, likeness: Matrix, own: int) -> Related:
        rows = np.flatnonzero(likeness >= MIN_LIKENESS)
        rows = rows[np.argsort(-likeness[rows], kind="stable")][: MAX_RELATED + 1]
        return tuple((self._words[row], float(likeness[row])) for row in rows if row != own)
