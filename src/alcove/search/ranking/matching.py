"""Where the words of a question are: looked up once a search, for ranking and for how relevant hits are."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.search.corpus.postings import PostingList, Postings, Rows
from alcove.search.text.terms import LABEL, ParsedQuery

RELATED = 5
"""Words like one of the question's that stand in for it."""


class Match(NamedTuple):
    """Which rows hold one of a question's words, and how often."""

    texts: list[PostingList]
    """In their texts: as the question's language counts it, and as others that are there do."""
    labels: list[PostingList]
    """The same for their labels."""
    related: list[tuple[PostingList, float]]
    """Words like it, and how like each is, the likest first."""

    @property
    def held(self) -> float:
        """How many documents hold the word itself, at least."""
        return max(each.held for each in (*self.texts, *self.labels))

    @property
    def rows(self) -> Rows:
        """Those that hold the word itself, each once and in order."""
        some = [each.rows for each in (*self.texts, *self.labels) if len(each.rows)]
        if not some:
            return np.zeros(0, dtype=np.int32)
        return some[0] if len(some) == 1 else np.unique(np.concatenate(some))


def matches(question: ParsedQuery, postings: Postings) -> list[Match]:
    """Where each of a question's words is."""
    forms, found = question.forms(postings.languages), []
    for word, related in question.words.items():
        there = ((held, like) for other, like in related if len((held := postings.held(other)).rows))
        found.append(
            Match(
                [postings.held(form) for form in forms[word]],
                [postings.held((LABEL, form)) for form in forms[word]],
                [*islice(there, RELATED)],
            )
        )
    return found


def coverage(
    question: ParsedQuery, postings: Postings, known: list[Match] | None = None
) -> NDArray[np.float64]:
    """For each row the share of the question's words that it holds, from 0 to 1.

    A rare word counts more. A word like one of the question's counts as much as it is like it.
    `known` is where the words are, if that was looked up before.
    """
    total, weights = np.zeros(len(postings.lengths)), 0.0
    for match in matches(question, postings) if known is None else known:
        own = match.rows
        rarity = postings.rarity(max(len(own), match.held))
        held = np.zeros_like(total)
        for other, like in reversed(match.related):
            held[other.rows] = like
        held[own] = 1
        held *= rarity
        total += held
        weights += rarity
    return total / weights if weights else total
