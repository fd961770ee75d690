"""What ranking reads: memories and questions as terms, and words of like meaning."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from alcove.search.corpus.int16_matrix import WholeNumbers
from alcove.search.embedders import Matrix
from alcove.search.text.dates import DAY, Span, recent, span
from alcove.search.text.words import (
    ENGLISH,
    language,
    question_words,
    speaker,
    stems,
    telling,
    term,
    term_counts,
    words,
)

MAX_TIMED = 2000
"""Characters of a question that are looked at for a date."""
SHORT = 40
"""Characters of a field that can be read as a date."""
MIN_LIKENESS = 0.3
"""How like a word must be to be related."""
MAX_RELATED = 48
REMEMBERED = 20_000
"""Words whose related ones are kept: they depend on the language only, never on anybody's memories."""

MOST_KNOWN = 50_000
"""Words that `KNOWN` holds: about nine megabytes."""
KNOWN: dict[str, dict[int, int]] = {}
"""By language, the number of the term of each word read lately, 0 for a function word.

Words are in it by their hash, which differs in each process: no word of anybody's text can be read from it.
"""

LABEL, SPEAKER, LANGUAGE = "label", "speaker", "language"
Term = str | tuple[str, str]
"""What is counted: a term of a text; or `LABEL` and a term of a label, `SPEAKER` and a word of a name,
`LANGUAGE` and that of a text which is not in English.
"""
Related = tuple[tuple[str, float], ...]
"""The terms of words like another one and how like they are, nearest first."""
WindowVectors: TypeAlias = "Matrix | Sequence[bytes]"
"""A row of 32-bit floats for each window of a text: a matrix, or the bytes of each row as they are kept."""
NO_VECTORS: Mapping[str, WindowVectors] = MappingProxyType({})
NO_TOKENS: Mapping[str, bytes] = MappingProxyType({})


class Item(NamedTuple):
    """A memory that is indexed, as ranking takes it."""

    id: Hashable
    namespace: Hashable
    sequence: int
    """The order of writing; neighbours are next to each other in it, within one namespace."""
    fields: Mapping[str, str]
    """The `index` texts by name."""
    vectors: Mapping[str, WindowVectors] = NO_VECTORS
    """By field, a row for each window of its text; none while the item is not embedded."""
    written_at: float | None = None
    """When it was written, in seconds since 1970."""
    tokens: Mapping[str, bytes] = NO_TOKENS
    """By field, what is kept of a short text's tokens."""
    numbers: Sequence[int] | None = None
    """Those of its terms, where they are known: see `documents`."""
    run: int = 0
    """Where some of a namespace are missing: those of one run lie beside each other, others do not."""

    @property
    def dimensions(self) -> int:
        """Of its vectors; 0 while it has none."""
        for rows in self.vectors.values():
            for row in rows:
                return memoryview(row).nbytes // 4
        return 0

    @property
    def place(self) -> Hashable:
        """Where its neighbours are."""
        return (self.namespace, self.run) if self.run else self.namespace

    @property
    def longest(self) -> str:
        """Its longest text, which shows who speaks and whether it asks something."""
        texts = self.fields.values()
        return next(iter(texts)) if len(texts) == 1 else max(texts, key=len, default="")


def number(term: Term) -> int:
    """A number that stands for a term, so far apart that no two are alike: even for a word of a text."""
    return hash(term) & -2 if isinstance(term, str) else hash(term) | 1


def term_numbers(text: str) -> tuple[list[int], str]:
    """The numbers of a text's terms, as often as it holds them, 0 for function words; and its language."""
    found = words(text)
    its = language(found)
    known = KNOWN.setdefault(its, {})
    numbers = [*map(known.get, map(hash, found))]
    if None in numbers:
        new = {word: 0 for word, own in zip(found, numbers, strict=True) if own is None}
        told = telling(new, its)
        new.update(zip(told, map(number, stems(told, its)), strict=True))
        if len(new) + sum(map(len, [*KNOWN.values()])) > MOST_KNOWN:
            KNOWN.clear()
        elif KNOWN.get(its) is known:  # else another thread has just let go of all
            known.update(zip(map(hash, new), new.values(), strict=True))
        numbers = [new[word] if own is None else own for word, own in zip(found, numbers, strict=True)]
    return numbers, its  # type: ignore[return-value]  # no None is left


def documents(items: Iterable[Item], labels: Collection[str]) -> Iterator[Sequence[int]]:
    """The numbers of each item's terms, as often as it holds them; 0 stands for none.

    Labels, and who says it, are told from the rest.
    """

    @cache
    def label(text: str) -> list[int]:
        return [number((LABEL, each)) for each, n in term_counts(text).items() for _ in range(n)]

    for item in items:
        if item.numbers is not None:
            yield item.numbers
            continue
        found: list[int] = []
        for name, text in item.fields.items():
            if name in labels:
                found += label(text)
                continue
            numbers, its = term_numbers(text)
            found += numbers
            if its != ENGLISH:
                found.append(number((LANGUAGE, its)))
        if name_of := speaker(item.longest):
            found += [number((SPEAKER, word)) for word in name_of.split()]
        yield found


def moments(items: Iterable[Item]) -> Iterator[float | None]:
    """When each item was written, or the day that a short field of it tells, such as `date` or `when`."""

    @cache
    def day(text: str) -> float | None:
        found = span(text) if any(map(str.isdigit, text)) else None
        return found.start if found and found.end - found.start <= DAY else None

    for item in items:
        days = (day(text) for text in item.fields.values() if len(text) <= SHORT)
        yield next((each for each in days if each is not None), item.written_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedQuery:
    """Read once, ranked in any number of subtrees."""

    words: Mapping[str, Related]
    """Its words as terms, each with the terms of words like it."""
    said: frozenset[str]
    """Every word of it, for names."""
    vector: Matrix | None
    spelled: Mapping[str, str] = field(default_factory=dict)
    """The word of each term, where that is another."""
    tokens: Matrix | None = None
    """A row for each of its tokens."""
    span: Span | None = None
    """The time it speaks of."""
    recent: bool = False
    """Whether it asks for what is newest."""
    text: str = ""
    """As it was asked, for a reranker."""
    degraded: str | None = None
    """Why it finds less than it could, for who asked."""

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
        """A question as it is asked at a moment, `now`, in seconds since 1970, from which it counts back.

        `vector` is its embedding, `tokens` what is kept of its tokens, and `lexicon` knows words like its
        own; each may be missing.
        """
        every = words(text)
        asked, its = question_words(every)
        found: dict[str, Related] = {}
        spelled: dict[str, str] = {}
        related = lexicon.related(asked) if lexicon else [()] * len(asked)
        for word, like in zip(asked, related, strict=True):
            own = term(word, its)
            found.setdefault(own, tuple(each for each in like if each[0] != own))
            spelled.setdefault(own, word)
        start = text[:MAX_TIMED]
        return cls(
            words=found,
            spelled=spelled,
            said=frozenset(every),
            vector=vector,
            tokens=tokens,
            span=span(start, now),
            recent=recent(start),
            text=text,
        )

    def forms(self, languages: Iterable[str]) -> dict[str, list[str]]:
        """By term, what its word is counted as in English and in texts of other languages, itself first."""
        spelled = [self.spelled.get(own, own) for own in self.words]
        every = zip(*(stems(spelled, name) for name in (ENGLISH, *languages)), strict=True)
        return {own: [own, *({*its} - {own})] for own, its in zip(self.words, every, strict=True)}


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
        self._vectors = WholeNumbers.of(vectors)
        self._rows = {word: row for row, word in enumerate(self._words)}
        self._remembered: dict[str, Related] = {}

    def related(self, words: Sequence[str]) -> list[Related]:
        """For each word, the terms of words like it and how like they are, nearest first."""
        known = {word: self._remembered.get(word) for word in words if word in self._rows}
        if asked := [word for word, like in known.items() if like is None]:
            likeness = (self._vectors @ self._vectors[[self._rows[word] for word in asked]].T).T
            if len(self._remembered) + len(asked) > REMEMBERED:
                self._remembered.clear()
            for word, row in zip(asked, likeness, strict=True):
                known[word] = self._remembered[word] = self._nearest(row, self._rows[word])
        return [known.get(word) or () for word in words]

    def _nearest(self, likeness: Matrix, own: int) -> Related:
        rows = np.flatnonzero(likeness >= MIN_LIKENESS)
        rows = rows[np.argsort(-likeness[rows], kind="stable")][: MAX_RELATED + 1]
        terms: dict[str, float] = {}
        rows = rows[rows != own]
        like = stems([self._words[row] for row in rows])
        for each, likest in zip(like, likeness[rows].tolist(), strict=True):
            terms.setdefault(each, likest)
        return tuple(terms.items())
