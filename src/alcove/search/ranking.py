"""Ranks the texts of a corpus for a query: by words, by meaning, and by their context."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.core.records import RankingSignal, SearchMode
from alcove.search.corpus import AnyCorpus
from alcove.search.dates import DAY, TimeSpan
from alcove.search.embedders import Matrix
from alcove.search.postings import inverse_frequency
from alcove.search.query import ParsedQuery
from alcove.search.relevance import Calibration, Match, Relevance, coverage, find_matches
from alcove.search.vectors import Mask, Rows
from alcove.search.words import SPEAKER

WORD_NEIGHBOURS = {-1: 0.6, -2: 0.35, -3: 0.15, 1: 0.4, 2: 0.25, 3: 0.1}
"""How much a word counts that is this many items before or after."""
VECTOR_NEIGHBOURS = {1: 0.25, -1: 0.25, 2: 0.1, -2: 0.1}
"""The same for similar vectors."""
MAX_OCCASION = 50
"""Items of a group that counts in full."""
FULL_MATCH = 0.7
"""The share of the score of a text with all words of the query from which words are trusted in full."""
DISTRUST = 1.5
"""The exponent by which trust in words falls below that: a lone common word is no match."""
TURN_TERMS = 16
"""Terms of a text that needs its neighbours to be understood; one three times as long hardly does."""
MIN_FLOAT = np.finfo(np.float32).min
"""Below every value except minus infinity."""
TOKEN_POOL = 100
"""The best items so far, whose tokens are compared."""
NO_MATCH = np.float32(-np.inf)
"""The value of rows that are no hits."""
NO_SIGNALS: Mapping[str, RankingSignal] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingWeights:
    """How much each signal counts, compared with 1 for the best text by words; 0 turns a signal off."""

    similarity: float = 0.55
    """The cosine of the vectors as seen from their mean (the signal `meaning`)."""
    related_words: float = 0.4
    """A related word in place of a word of the query."""
    neighbours: float = 1.2
    """Neighbours in the order of writing, where that order matters and texts are short."""
    company: float = 0.3
    """The best of the items with the same label: what was said on the same occasion."""
    labels: float = 0.12
    """Words of the query in a label, such as a month in a date."""
    times: float = 0.5
    """Items of the time that the query asks about."""
    recency: float = 0.2
    """The newest items, if the query asks for them."""
    names: float = 0.12
    """Items whose speaker the query names."""
    substance: float = 0.14
    """Among short texts, those that say something: with a few more words, and no questions."""
    tokens: float = 0.5
    """The best matches of the query's tokens, where texts are short."""

    def without(self, signal: str) -> RankingWeights:
        return replace(self, **{signal: 0})


DEFAULT = RankingWeights()


class Hit(NamedTuple):
    """A result of a search; `signals` explain its rank, if the search was to explain."""

    id: Hashable
    score: float | None
    """max(0, cosine), None while the item is not embedded."""
    fused: float
    """The sum of all signals, by which hits are ordered."""
    similarity: float | None = None
    """The cosine."""
    relevance: float | None = None
    """How likely it answers the query, from 0 to 1."""
    signals: Mapping[str, RankingSignal] = NO_SIGNALS


def rank(
    corpus: AnyCorpus,
    query: ParsedQuery,
    *,
    limit: int,
    mask: Mask | None = None,
    mode: SearchMode = "hybrid",
    weights: RankingWeights = DEFAULT,
    explain: bool = False,
    unranked: bool = False,
    relevance: Relevance | None = None,
    min_relevance: float = 0.0,
) -> list[Hit]:
    """The best items of a mask, best first.

    `semantic` orders by cosine alone; with `unranked`, items without vectors come last. `keyword` finds only
    items that contain a word of the query or a related one. `hybrid` without a query vector ranks by words.
    Items below `min_relevance` are left out, which does not change the rank of others.
    """
    scorer = _Scorer(corpus, query, mask, weights)
    cosines, from_mean = corpus.vectors.compare(query.vector, centred=mode == "hybrid")
    hit_mask = scorer.passing
    if relevance and min_relevance > 0:
        hit_mask = hit_mask & (relevance.scores(cosines) >= min_relevance)
    matches: list[Match] | None = None
    if mode == "semantic":
        last = np.float32(-2 if unranked else -np.inf)  # no cosine is below -1
        fused, values = cosines, np.where(np.isnan(cosines), last, cosines)
        signals, rules = {"meaning": cosines}, dict[str, dict[str, float]]()
    else:
        matches = find_matches(query, corpus.postings)
        fused, signals, rules = scorer.fuse(matches, from_mean, mode)
        values = fused
        if mode == "keyword":
            hit_mask = hit_mask & scorer.contain_words(matches)
    rows = best_rows(np.where(hit_mask, values, NO_MATCH), limit)
    relevances = relevance.scores(cosines, rows, matches).tolist() if relevance else [None] * len(rows)
    ids = corpus.columns.id[rows].tolist()
    passing = {name: (column, column[scorer.passing]) for name, column in signals.items()} if explain else {}
    return [
        Hit(
            id=id,
            score=None if math.isnan(cosine) else max(0.0, cosine),
            similarity=None if math.isnan(cosine) else cosine,
            fused=value,
            relevance=row_relevance,
            signals={
                name: RankingSignal(
                    1 + int(np.count_nonzero(others > column[row])), float(column[row]), rules.get(name, {})
                )
                for name, (column, others) in passing.items()
            },
        )
        for row, id, value, cosine, row_relevance in zip(
            rows, ids, fused[rows].tolist(), cosines[rows].tolist(), relevances, strict=True
        )
    ]


def most_relevant(
    corpus: AnyCorpus, query: ParsedQuery, calibration: Calibration, *, limit: int, mask: Mask
) -> list[Hit]:
    """The items of a mask that have vectors, the most relevant first."""
    cosines, _ = corpus.vectors.compare(query.vector)
    scores = calibration.scores(cosines, coverage(query, corpus.postings))
    passing = corpus.columns.live & mask & ~np.isnan(scores)
    return [
        Hit(
            id=corpus.columns.id[row],
            score=max(0.0, float(cosines[row])),
            fused=float(scores[row]),
            relevance=float(scores[row]),
        )
        for row in best_rows(np.where(passing, scores, NO_MATCH).astype(np.float32), limit).tolist()
    ]


def best_rows(values: Matrix, limit: int) -> Rows:
    """The rows of the highest values, without minus infinity; of equal values, earlier rows first."""
    if limit <= 0 or not len(values):
        return np.zeros(0, dtype=np.int32)
    place = max(len(values) - limit, 0)
    lowest = max(np.partition(values, place)[place], MIN_FLOAT)
    rows: Rows = (values >= lowest).nonzero()[0].astype(np.int32)
    order = np.argsort(-values[rows], kind="stable")[:limit]
    return rows[order]


class _Scorer:
    """The signals of every row of a corpus for one query."""

    def __init__(
        self, corpus: AnyCorpus, query: ParsedQuery, mask: Mask | None, weights: RankingWeights
    ) -> None:
        self._corpus, self._query, self._weights = corpus, query, weights
        self.passing = corpus.columns.live if mask is None else corpus.columns.live & mask
        self._brevity = min(1.0, TURN_TERMS / corpus.postings.average_length) ** 3
        self._neighbours = weights.neighbours * self._brevity if corpus.order_matters else 0.0

    def fuse(
        self, matches: list[Match], from_mean: Matrix, mode: SearchMode
    ) -> tuple[Matrix, dict[str, Matrix], dict[str, dict[str, float]]]:
        """The sum of all signals, each signal, and the numbers that decided on some of them."""
        corpus, weights = self._corpus, self._weights
        words, full_match = self._words(matches)
        signals, trust = {"words": _scale(words)}, 1.0
        if mode == "hybrid" and self._query.vector is not None:
            if full_match:
                trust = min(1.0, float(words.max(initial=0)) / (FULL_MATCH * full_match)) ** DISTRUST
            signals["words"] *= np.float32(trust)
            signals["meaning"] = weights.similarity * _scale(self._similarity(from_mean))
        signals |= self._context(matches)
        first, *others = signals.values()
        fused = reduce(np.add, others, first)
        if weights.company and corpus.groups:
            signals["company"] = self._company(fused)
            fused = fused + signals["company"]
        if mode == "hybrid" and (tokens := self._tokens(fused)) is not None:
            signals["tokens"] = tokens
            fused = fused + tokens
        neighbours = self._brevity if self._neighbours else 0.0
        rules = {
            "words": {"levelling": corpus.postings.levelling, "trust": trust, "neighbours": neighbours},
            "meaning": {"neighbours": neighbours},
            "substance": {"brevity": self._brevity},
        }
        return fused, signals, rules

    def _words(self, matches: list[Match]) -> tuple[Matrix, float]:
        """BM25 by the best form of each word, its related words or its neighbours'; and about the score of a
        text with all words."""
        postings, row_count, full_match = self._corpus.postings, len(self._corpus), 0.0
        # One column more than rows: neighbour -1, for none, reads the last column.
        scores = np.zeros((len(matches), row_count + 1), dtype=np.float32)
        for score, match in zip(scores, matches, strict=True):
            for form in match.texts:
                if len(form.rows):
                    score[form.rows] = np.maximum(score[form.rows], postings.weights(form))
            document_count = max(form.document_count for form in match.texts)
            full_match += inverse_frequency(document_count, postings.document_count)
            for related, likeness in match.related if self._weights.related_words else ():
                values = postings.weights(related)
                values *= np.float32(self._weights.related_words * likeness)
                score[related.rows] = np.maximum(score[related.rows], values)
        best = scores[:, :row_count]
        best *= self.passing
        if not self._neighbours:
            return best.sum(axis=0), full_match
        best = best.copy()
        for distance, weight in WORD_NEIGHBOURS.items():
            near = scores.take(self._corpus.neighbours[distance], axis=1)
            near *= np.float32(self._neighbours * weight)
            np.maximum(best, near, out=best)
        return best.sum(axis=0) * self.passing, full_match

    def contain_words(self, matches: list[Match]) -> Mask:
        """Which rows contain a word of the query or a related one; those of neighbours do not count."""
        mask = np.zeros(len(self._corpus), dtype=np.bool_)
        for match in matches:
            mask[match.rows] = True
            for related, _ in match.related if self._weights.related_words else ():
                mask[related.rows] = True
        return mask

    def _similarity(self, from_mean: Matrix) -> Matrix:
        """The similarity of each row's vectors, with a part of its neighbours'."""
        own = np.where(self.passing & ~np.isnan(from_mean), from_mean, np.float32(0))
        if not self._neighbours:
            return own
        total: Matrix = own.copy()
        padded = np.append(own, np.float32(0))  # neighbour -1, for none, reads the last
        for distance, weight in VECTOR_NEIGHBOURS.items():
            total += np.float32(self._neighbours * weight) * padded[self._corpus.neighbours[distance]]
        return total

    def _context(self, matches: list[Match]) -> dict[str, Matrix]:
        """The signals beyond a text's words and vectors."""
        corpus, query, weights = self._corpus, self._query, self._weights
        signals: dict[str, Matrix] = {}
        speakers = (corpus.postings.find((SPEAKER, word)).rows for word in query.words)
        if weights.names and (turns := [rows for rows in speakers if len(rows)]):
            signals["names"] = np.zeros(len(corpus), dtype=np.float32)
            signals["names"][np.concatenate(turns)] = weights.names
        if weight := weights.substance * self._brevity:
            signals["substance"] = np.float32(weight) * corpus.columns.substance
        if weights.labels and corpus.groups:
            signals["labels"] = np.zeros(len(corpus), dtype=np.float32)
            for postings in (match.labels[0] for match in matches):
                values = corpus.postings.weights(postings, is_label=True)
                signals["labels"][postings.rows] += weights.labels * values
        if weights.times and query.span:
            signals["times"] = np.float32(weights.times) * _nearness(corpus.columns.time, query.span)
        if weights.recency and query.asks_for_newest:
            signals["recency"] = np.float32(weights.recency) * _newness(corpus.columns.time)
        return signals

    def _company(self, fused: Matrix) -> Matrix:
        """The best of the items with the same label; less in a very large group.

        Texts of one occasion belong together; texts that share a common label often do not.
        """
        passing = np.where(self.passing, fused, NO_MATCH)
        total = np.zeros_like(fused)
        for groups in self._corpus.groups.values():
            has_group = groups >= 0
            members = groups[has_group]
            sizes = np.bincount(members)
            highest = np.full(len(sizes), -np.inf, dtype=np.float32)
            np.maximum.at(highest, members, passing[has_group])
            highest *= np.minimum(1, MAX_OCCASION / np.maximum(sizes, 1))
            share = np.float32(self._weights.company / len(self._corpus.groups))
            total[has_group] += np.where(self.passing[has_group], highest[members], 0) * share
        return total

    def _tokens(self, fused: Matrix) -> Matrix | None:
        """Late interaction with the best rows so far; all others get the lowest value of these.

        None if fewer than half of them have tokens: it could not compare the others.
        """
        query_tokens, weight = self._query.tokens, self._weights.tokens
        if query_tokens is None or not weight:
            return None
        pool = best_rows(np.where(self.passing, fused, NO_MATCH), TOKEN_POOL)
        similarity = self._corpus.tokens.compare(pool, query_tokens)
        has_tokens = ~np.isnan(similarity)
        if 2 * np.count_nonzero(has_tokens) < len(pool) or not len(pool):
            return None
        average = similarity[has_tokens].mean()
        spread = max(float(similarity[has_tokens].max() - average), 1e-6)
        values = np.where(has_tokens, (similarity - average) / spread, 0) * weight
        signal = np.full(len(fused), values.min(), dtype=np.float32)
        signal[pool] = values
        return signal


def _scale(values: Matrix) -> Matrix:
    """Values with the best at 1, so that no signal outweighs another by its unit or by the corpus's size."""
    top = float(values.max(initial=0))
    return values / np.float32(top) if top > 0 else values


def _nearness(times: NDArray[np.float64], span: TimeSpan) -> Matrix:
    """1 inside the span, and less the farther outside compared with its length; 0 for an unknown time."""
    outside = np.maximum(np.maximum(span.start - times, times - span.end), 0)
    return np.nan_to_num(np.exp(-outside / max(span.end - span.start, 3 * DAY))).astype(np.float32)


def _newness(times: NDArray[np.float64]) -> Matrix:
    """From 0 for the oldest to 1 for the newest, by rank, so that a long pause does not count."""
    moments, places = np.unique(np.nan_to_num(times, nan=-np.inf), return_inverse=True)
    return (places / max(len(moments) - 1, 1)).astype(np.float32)
