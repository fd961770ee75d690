"""Which memories answer a question best: words and meaning, and what stands around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.core.records import RankingSignal, SearchMode
from alcove.search.corpus.corpus import AnyCorpus, Mask
from alcove.search.corpus.postings import Rows
from alcove.search.embedders import Matrix
from alcove.search.ranking.matching import Match, matches
from alcove.search.text.dates import DAY, Span
from alcove.search.text.terms import SPEAKER, ParsedQuery

WORDS_NEAR = {-1: 0.6, -2: 0.35, -3: 0.15, 1: 0.4, 2: 0.25, 3: 0.1}
"""What a word counts that stands one, two or three items before, or after."""
MEANING_NEAR = {1: 0.25, -1: 0.25, 2: 0.1, -2: 0.1}
"""The same for likeness in meaning."""
OCCASION = 50
"""Items of a group that counts in full."""
FULL_MATCH = 0.7
"""The share of what all of the question's words would give, with which words are trusted in full."""
DISTRUST = 1.5
"""The power by which trust in words falls below that: a lone common word is no match."""
TURN = 16
"""Terms of a text that needs its neighbours to be understood; one three times as long hardly does."""
LOWEST = np.finfo(np.float32).min
"""Below every value but minus infinity."""
TOKEN_POOL = 100
"""The best items, of which the tokens are looked at."""


NO_SIGNALS: Mapping[str, RankingSignal] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How much each mechanism counts, beside 1 for the best keyword score; 0 turns it off."""

    meaning: float = 0.55
    """The cosine of the vectors, as seen from their middle."""
    related: float = 0.4
    """A word like one of the question's, if the question's own is not there."""
    windows: float = 1.2
    """Neighbours in the order of writing, where that order means something and texts are short."""
    company: float = 0.3
    """The best of the items with the same label: what was said on the same occasion."""
    labels: float = 0.12
    """The question's words in a label, such as a month in a date."""
    times: float = 0.5
    """Items of the time the question speaks of."""
    recency: float = 0.2
    """The newest items, if the question asks for them."""
    names: float = 0.12
    """What somebody said whom the question names."""
    substance: float = 0.14
    """Among short texts, those that tell something: a few words more, and no question back."""
    tokens: float = 0.5
    """The question's tokens one by one in the best of the texts, where those are short."""

    def without(self, mechanism: str) -> Ranking:
        return replace(self, **{mechanism: 0})


class Hit(NamedTuple):
    """An item that was found, and why: `signals`, if asked for."""

    id: Hashable
    score: float | None
    """max(0, cosine), None while the item is not embedded."""
    fused: float
    similarity: float | None = None
    """The cosine itself."""
    relevance: float | None = None
    """How likely it is to answer the question, from 0 to 1."""
    signals: Mapping[str, RankingSignal] = NO_SIGNALS


DEFAULT = Ranking()
Relevance = Callable[[Matrix, Rows | None, list[Match] | None], NDArray[np.float64]]
"""From the cosines of all rows, how likely some of them (or all) are to answer the question."""


def rank(
    corpus: AnyCorpus,
    question: ParsedQuery,
    *,
    limit: int,
    mask: Mask | None = None,
    mode: SearchMode = "hybrid",
    ranking: Ranking = DEFAULT,
    explain: bool = False,
    unranked: bool = False,
    relevance: Relevance | None = None,
    min_relevance: float = 0.0,
) -> list[Hit]:
    """The best items of those the mask lets pass, best first.

    `semantic` is the exact order by cosine, and `unranked` puts what has none at its end; `keyword` gives
    only items that hold a word of the question or one like it. `hybrid` without a question vector goes by
    words alone. `relevance` tells how likely rows are to answer the question; those that are less so than
    `least` are left out, which changes nothing else.
    """
    scorer = _Scorer(corpus, question, mask, ranking, relevance, min_relevance)
    return scorer.best(limit, mode, explain=explain, unranked=unranked)


class _Scorer:
    """One search: every signal over every row that passes."""

    def __init__(
        self,
        corpus: AnyCorpus,
        question: ParsedQuery,
        mask: Mask | None,
        ranking: Ranking,
        relevance: Relevance | None = None,
        min_relevance: float = 0.0,
    ) -> None:
        self._corpus, self._question, self._ranking = corpus, question, ranking
        self._relevance, self._min_relevance = relevance, min_relevance
        self._matches: list[Match] | None = None
        self._passing = corpus.columns.live if mask is None else corpus.columns.live & mask
        self._brevity = min(1.0, TURN / corpus.postings.average) ** 3
        self._windows = ranking.windows * self._brevity if corpus.order_matters else 0.0

    def best(self, limit: int, mode: SearchMode, *, explain: bool, unranked: bool = False) -> list[Hit]:
        cosines, centred = self._corpus.vectors.compared(self._question.vector, centred=mode == "hybrid")
        fitting = self._passing
        if self._relevance and self._min_relevance > 0:
            fitting = fitting & (self._relevance(cosines, None, None) >= self._min_relevance)
        if mode == "semantic":
            last = np.float32(-2 if unranked else -np.inf)  # no cosine is below -1
            known = np.where(np.isnan(cosines), last, cosines)
            order = best_rows(np.where(fitting, known, np.float32(-np.inf)), limit)
            return self._hits(order, cosines, cosines, {"meaning": cosines} if explain else {}, {})
        self._matches = matches(self._question, self._corpus.postings)
        words, full = self._words(self._matches)
        signals, trust = {"words": _scaled(words)}, 1.0
        if mode == "hybrid" and self._question.vector is not None:
            trust = _trust(words, full)
            signals["words"] *= np.float32(trust)
            signals["meaning"] = self._ranking.meaning * _scaled(self._meaning(centred))
        signals |= self._context(self._matches)
        first, *others = signals.values()
        fused = reduce(np.add, others, first)
        if self._ranking.company and self._corpus.groups:
            signals["company"] = self._company(fused)
            fused = fused + signals["company"]
        if mode == "hybrid" and (found := self._tokens(fused)) is not None:
            signals["tokens"] = found
            fused = fused + found
        allowed = fitting & self._holding(self._matches) if mode == "keyword" else fitting
        fused = np.where(allowed, fused, np.float32(-np.inf))
        order = best_rows(fused, limit)
        rules = self._rules(trust) if explain else {}
        return self._hits(order, fused, cosines, signals if explain else {}, rules)

    def _words(self, found: list[Match]) -> tuple[Matrix, float]:
        """BM25; each of the question's words counts once, as itself or a related word, at the best place.

        And what a text would get that holds them all.
        """
        postings, size, full = self._corpus.postings, len(self._corpus), 0.0
        # One column more than rows: neighbour -1, none, reads the last.
        scores = np.zeros((len(found), size + 1), dtype=np.float32)
        for score, match in zip(scores, found, strict=True):
            for each in match.texts:
                if len(each.rows):
                    score[each.rows] = np.maximum(score[each.rows], postings.weights(each))
            full += postings.rarity(max(each.held for each in match.texts))
            for each, like in match.related if self._ranking.related else ():
                weights = postings.weights(each)
                weights *= np.float32(self._ranking.related * like)
                score[each.rows] = np.maximum(score[each.rows], weights)
        best = scores[:, :size]
        best *= self._passing
        if self._windows:
            best = best.copy()
            for distance, weight in WORDS_NEAR.items():
                near = scores.take(self._corpus.neighbours[distance], axis=1)
                near *= np.float32(self._windows * weight)
                np.maximum(best, near, out=best)
        total: Matrix = best.sum(axis=0)
        return total * self._passing if self._windows else total, full

    def _holding(self, found: list[Match]) -> Mask:
        """Which rows hold one of the question's words, or one like it, and not only a neighbour of theirs."""
        holding = np.zeros(len(self._corpus), dtype=np.bool_)
        for match in found:
            holding[match.rows] = True
            for each, _ in match.related if self._ranking.related else ():
                holding[each.rows] = True
        return holding

    def _meaning(self, centred: Matrix) -> Matrix:
        """Likeness in meaning, with some of the neighbours'."""
        known = np.where(self._passing & ~np.isnan(centred), centred, np.float32(0))
        if not self._windows:
            return known
        found: Matrix = known.copy()
        padded = np.append(known, np.float32(0))  # -1, no neighbour, reads the last
        for distance, weight in MEANING_NEAR.items():
            found += np.float32(self._windows * weight) * padded[self._corpus.neighbours[distance]]
        return found

    def _context(self, matched: list[Match]) -> dict[str, Matrix]:
        """The signals that look at more than an item's words."""
        corpus, ranking = self._corpus, self._ranking
        found: dict[str, Matrix] = {}
        names = (corpus.postings.held((SPEAKER, word)).rows for word in self._question.said)
        if ranking.names and (said := [rows for rows in names if len(rows)]):
            found["names"] = np.zeros(len(corpus), dtype=np.float32)
            found["names"][np.concatenate(said)] = ranking.names
        if weight := ranking.substance * self._brevity:
            found["substance"] = np.float32(weight) * corpus.columns.substance
        if ranking.labels and corpus.groups:
            found["labels"] = np.zeros(len(corpus), dtype=np.float32)
            for each in (match.labels[0] for match in matched):
                found["labels"][each.rows] += ranking.labels * corpus.postings.weights(each, levelled=False)
        if ranking.times and self._question.span:
            found["times"] = np.float32(ranking.times) * _nearness(corpus.columns.at, self._question.span)
        if ranking.recency and self._question.recent:
            found["recency"] = np.float32(ranking.recency) * _newness(corpus.columns.at)
        return found

    def _company(self, fused: Matrix) -> Matrix:
        """The best of the items with the same label; less of it in a group of very many.

        What was said on one occasion belongs together; what is filed under one word often does not.
        """
        passing = np.where(self._passing, fused, np.float32(-np.inf))
        total = np.zeros_like(fused)
        for groups in self._corpus.groups.values():
            inside = groups >= 0
            members = groups[inside]
            sizes = np.bincount(members)
            highest = np.full(len(sizes), -np.inf, dtype=np.float32)
            np.maximum.at(highest, members, passing[inside])
            highest *= np.minimum(1, OCCASION / np.maximum(sizes, 1))
            share = np.float32(self._ranking.company / len(self._corpus.groups))
            total[inside] += np.where(self._passing[inside], highest[members], 0) * share
        return total

    def _tokens(self, fused: Matrix) -> Matrix | None:
        """Late interaction among the best rows so far; the others get no more than the last of these.

        None where fewer than half of those have tokens: for the rest nothing could be said.
        """
        asked, weight = self._question.tokens, self._ranking.tokens
        if asked is None or not weight:
            return None
        pool = best_rows(np.where(self._passing, fused, np.float32(-np.inf)), TOKEN_POOL)
        likeness = self._corpus.tokens.likeness(pool, asked)
        known = ~np.isnan(likeness)
        if 2 * np.count_nonzero(known) < len(pool) or not len(pool):
            return None
        average = likeness[known].mean()
        spread = max(float(likeness[known].max() - average), 1e-6)
        above = np.where(known, (likeness - average) / spread, 0) * weight
        found = np.full(len(fused), above.min(), dtype=np.float32)
        found[pool] = above
        return found

    def _rules(self, trust: float) -> dict[str, dict[str, float]]:
        """The numbers that followed from the texts and the question, by the signals that they decide on."""
        neighbours = self._brevity if self._windows else 0.0
        levelling = self._corpus.postings.levelling
        return {
            "words": {"levelling": levelling, "trust": trust, "neighbours": neighbours},
            "meaning": {"neighbours": neighbours},
            "substance": {"brevity": self._brevity},
        }

    def _hits(
        self,
        order: Rows,
        fused: Matrix,
        cosines: Matrix,
        signals: dict[str, Matrix],
        rules: dict[str, dict[str, float]],
    ) -> list[Hit]:
        told = {name: (values, values[self._passing]) for name, values in signals.items()}
        ids, found = self._corpus.columns.id[order].tolist(), fused[order].tolist()
        relevance: list[float | None] = [None] * len(order)
        if self._relevance:
            relevance = self._relevance(cosines, order, self._matches).tolist()
        every = zip(order, ids, found, cosines[order].tolist(), relevance, strict=True)
        return [
            Hit(
                id=id,
                score=None if math.isnan(cosine) else max(0.0, cosine),
                similarity=None if math.isnan(cosine) else cosine,
                fused=value,
                relevance=relevant,
                signals={
                    name: RankingSignal(
                        1 + int(np.count_nonzero(passing > values[row])),
                        float(values[row]),
                        rules.get(name, {}),
                    )
                    for name, (values, passing) in told.items()
                },
            )
            for row, id, value, cosine, relevant in every
        ]


def _trust(words: Matrix, full: float) -> float:
    """How far the best match by words is to be trusted, from 0 to 1; one of them all would give `full`."""
    best = float(words.max(initial=0))
    return min(1.0, best / (FULL_MATCH * full)) ** DISTRUST if full else 1.0


def _scaled(values: Matrix) -> Matrix:
    """With the best at 1, so that no signal outweighs another by its unit or by the size of the subtree."""
    top = float(values.max(initial=0))
    return values / np.float32(top) if top > 0 else values


def _nearness(at: NDArray[np.float64], span: Span) -> Matrix:
    """1 inside the span, less the farther outside in terms of its length; 0 where no time is known."""
    outside = np.maximum(np.maximum(span.start - at, at - span.end), 0)
    return np.nan_to_num(np.exp(-outside / max(span.end - span.start, 3 * DAY))).astype(np.float32)


def _newness(at: NDArray[np.float64]) -> Matrix:
    """From 0 for the oldest to 1 for the newest by rank, so that a long silence does not decide."""
    moments, place = np.unique(np.nan_to_num(at, nan=-np.inf), return_inverse=True)
    return (place / max(len(moments) - 1, 1)).astype(np.float32)


def best_rows(values: Matrix, limit: int) -> Rows:
    """The rows of the highest values, those of minus infinity left out; earlier rows first among equals."""
    if limit <= 0 or not len(values):
        return np.zeros(0, dtype=np.int32)
    place = max(len(values) - limit, 0)
    least = max(np.partition(values, place)[place], LOWEST)
    rows: Rows = (values >= least).nonzero()[0].astype(np.int32)
    order = np.argsort(-values[rows], kind="stable")[:limit]
    return rows[order]
