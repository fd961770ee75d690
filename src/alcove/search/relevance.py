"""How relevant a text is to a query, from 0 to 1 on the same scale for every embedder.

What a cosine means depends on the model: two unrelated texts have 0.04 with one and 0.46 with another. So a
cosine is first placed between the model's mean for unrelated texts and its mean for a question and the text
that answers it. To that is added the share of the query's words that the text contains, because the cosine
alone mistakes a text about the same subject for an answer.

A curve that was fitted once, to questions of which half have no answer (`bench/knowledge`), turns the sum
into a probability. At 0.7, a text was about twice as likely to answer the question as not.
"""

from __future__ import annotations

import threading
import tomllib
from importlib.resources import files
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alcove.core.cache import Cache
from alcove.search.embedders import Embedder, Matrix, embed_query
from alcove.search.embedders.minilm import NAME
from alcove.search.postings import PostingList, Postings, inverse_frequency
from alcove.search.query import ParsedQuery
from alcove.search.vectors import Rows
from alcove.search.words import LABEL

Numbers = NDArray[np.float64]

MAX_RELATED = 5
"""Related words that are searched for each word of a query."""
WORDS_WEIGHT = 0.5
"""What containing all words of the query adds, if 1 is the distance between unrelated and answering."""
MIDPOINT, STEEPNESS = 0.81, 6.0
"""The sum with a probability of one half, and how steeply the curve rises there."""
MIN_SPREAD = 0.05
"""The least distance between unrelated and answering, for models that can hardly tell them apart."""
DIGITS = 4
"""Scores are rounded to these digits, so that they are compared as they are reported."""
_NO_ROWS = np.zeros(0, dtype=np.int32)
MAX_CALIBRATIONS = 16
"""Embedders whose calibration is cached."""


class Match(NamedTuple):
    """The rows that contain one of a query's words, and how often."""

    texts: list[PostingList]
    """In texts: the word's term in the query's language, and in the languages of the texts."""
    labels: list[PostingList]
    """The same in labels."""
    related: list[tuple[PostingList, float]]
    """The terms of related words with their likeness, the most alike first."""
    rows: Rows
    """The rows that contain the word itself, each once and in order."""


def find_matches(query: ParsedQuery, postings: Postings) -> list[Match]:
    """Looks up each word of a query."""
    forms, matches = query.forms(postings.languages), []
    for term, related in query.terms.items():
        texts = [postings.find(form) for form in forms[term]]
        labels = [postings.find((LABEL, form)) for form in forms[term]]
        lists = ((postings.find(other), likeness) for other, likeness in related)
        frequent = [*islice((pair for pair in lists if len(pair[0].rows)), MAX_RELATED)]
        parts = [each.rows for each in (*texts, *labels) if len(each.rows)] or [_NO_ROWS]
        rows = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
        matches.append(Match(texts, labels, frequent, rows))
    return matches


def coverage(query: ParsedQuery, postings: Postings, matches: list[Match] | None = None) -> Numbers:
    """The share of the query's words that each row contains, from 0 to 1.

    A rare word counts more; a related word counts as much as it is alike. `matches` are those of the query,
    if they were looked up before.
    """
    total, total_weight = np.zeros(len(postings.lengths)), 0.0
    for match in find_matches(query, postings) if matches is None else matches:
        rows = match.rows
        counts = (each.document_count for each in (*match.texts, *match.labels))
        rarity = inverse_frequency(max(len(rows), *counts), postings.document_count)
        share = np.zeros_like(total)
        for related, likeness in reversed(match.related):
            share[related.rows] = likeness
        share[rows] = 1
        share *= rarity
        total += share
        total_weight += rarity
    return total / total_weight if total_weight else total


class Calibration(NamedTuple):
    """The range of one embedder's cosines."""

    unrelated: float
    """The mean cosine of a question and a text that has nothing to do with it."""
    answering: float
    """The mean cosine of a question and the text that answers it."""

    @classmethod
    def of(cls, embedder: Embedder) -> Calibration:
        """The calibration of an embedder, measured by embedding forty short texts when it is first used.

        Raises whatever the embedder raises; then the next call measures again.
        """
        if embedder.name in BUILT_IN:
            return BUILT_IN[embedder.name]
        with _lock:
            calibration = _measured.get(embedder.name)
            if calibration is None:
                calibration = cls.measure(embedder)
                _measured.put(embedder.name, calibration)
            return calibration

    @classmethod
    def measure(cls, embedder: Embedder) -> Calibration:
        """Embeds probes: questions, each with one text that answers it."""
        probes = tomllib.loads((files("alcove.search") / "probes.toml").read_text(encoding="utf-8"))["probe"]
        questions, texts = ([probe[part] for probe in probes] for part in ("question", "answer"))
        if hasattr(embedder, "embed_query"):  # embeds queries in another way than texts
            query_rows = np.stack([embed_query(embedder, question) for question in questions])
            text_rows = embedder.embed(texts)
        else:
            query_rows, text_rows = np.split(embedder.embed([*questions, *texts]), 2)
        cosines, is_answer = query_rows.astype(np.float64) @ text_rows.T, np.eye(len(probes), dtype=bool)
        return cls(float(cosines[~is_answer].mean()), float(cosines[is_answer].mean()))

    def scores(self, cosines: ArrayLike, covered: ArrayLike) -> Numbers:
        """How relevant texts are, from 0 to 1; NaN, which is above no threshold, where a cosine is NaN.

        `covered` is the `coverage` of each text. The score never falls when one of them rises. A text that is
        equal to the query gets 1.
        """
        spread = max(self.answering - self.unrelated, MIN_SPREAD)
        # np.clip takes three times as long.
        cosines = np.minimum(np.maximum(np.asarray(cosines, dtype=np.float64), -1), 1)
        covered = np.minimum(np.maximum(np.asarray(covered, dtype=np.float64), 0), 1)
        near, best = (cosines - self.unrelated) / spread, (1 - self.unrelated) / spread
        probability, highest = (
            1 / (1 + np.exp(-STEEPNESS * (total - MIDPOINT)))
            for total in (near + WORDS_WEIGHT * covered, best + WORDS_WEIGHT)
        )
        scores: Numbers = probability / highest
        return scores.round(DIGITS)


BY_WORDS = Calibration(unrelated=0.0, answering=1.0)
"""Used with the coverage in place of a cosine, where there is none."""
BUILT_IN = {NAME: Calibration(unrelated=0.043, answering=0.618)}
"""As measured, so that the first search with the built-in model does not wait."""
_measured: Cache[str, Calibration] = Cache(max_entries=MAX_CALIBRATIONS)
"""By the embedder's name, which alone decides: nothing in it comes from anybody's texts."""
_lock = threading.Lock()


class Relevance(NamedTuple):
    """Scores rows for a query by their cosines and words, or by words alone where there is no cosine."""

    query: ParsedQuery
    postings: Postings
    calibration: Calibration | None
    """None if the query has no vector."""

    def scores(
        self, cosines: Matrix, rows: Rows | None = None, matches: list[Match] | None = None
    ) -> Numbers:
        """The scores of some rows, or of all. `cosines` are those of all rows."""
        covered = coverage(self.query, self.postings, matches)
        if rows is not None:
            cosines, covered = cosines[rows], covered[rows]
        if self.calibration is None:
            return BY_WORDS.scores(covered, covered)
        scores, is_unknown = self.calibration.scores(cosines, covered), np.isnan(cosines)
        return np.where(is_unknown, BY_WORDS.scores(covered, covered), scores) if is_unknown.any() else scores
