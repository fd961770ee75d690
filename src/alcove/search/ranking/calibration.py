"""How relevant a passage is to a question, from 0 to 1 and the same for every embedder.

What a cosine means depends on the model: two texts that have nothing to do with each other are at 0.04 for
one and at 0.46 for another. So a cosine is first placed between the model's own mean for such texts and its
mean for a question and the passage that answers it. To that is added how many of the question's words the
passage holds: the cosine alone takes what is of the same subject for an answer.

The sum becomes a probability, by a curve that was fitted once, to questions of which half have no answer
(`bench/knowledge`): at 0.7, a passage was about twice as likely to answer the question as not.
"""

from __future__ import annotations

import threading
import tomllib
from collections import OrderedDict
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alcove.search.corpus.corpus import AnyCorpus, Mask
from alcove.search.corpus.postings import Rows
from alcove.search.embedders import Embedder, Matrix, embed_query
from alcove.search.embedders.minilm import NAME
from alcove.search.ranking.matching import Match, coverage
from alcove.search.ranking.ranker import Hit, best_rows
from alcove.search.text.terms import ParsedQuery

Numbers = NDArray[np.float64]

WORDS = 0.5
"""What holding all of the question's words adds, where 1 lies between unrelated and answering."""
MIDDLE, STEEPNESS = 0.81, 6.0
"""The sum at which relevant and not are equally likely, and how fast that changes."""
LEAST_SPREAD = 0.05
"""Between unrelated and answering at least, for a model that can hardly tell them apart."""
DIGITS = 4
"""Of a score, so that what is compared with a threshold is what is reported."""
REMEMBERED = 16
"""Embedders whose calibration is kept."""


class Calibration(NamedTuple):
    """Where the cosines of one embedder lie."""

    unrelated: float
    """The mean cosine of a question and a passage that has nothing to do with it."""
    answering: float
    """The mean cosine of a question and the passage that answers it."""

    @classmethod
    def of(cls, embedder: Embedder) -> Calibration:
        """That of an embedder: known, or measured on first use and remembered by the embedder's name.

        Measuring embeds forty short texts. Where that raises `EmbedderUnavailable`, the next one
        to ask tries again.
        """
        name = embedder.name
        if name in SHIPPED:
            return SHIPPED[name]
        with _measuring:
            if name not in _measured:
                _measured[name] = cls.measured(embedder)
                while len(_measured) > REMEMBERED:
                    _measured.popitem(last=False)
            return _measured[name]

    @classmethod
    def measured(cls, embedder: Embedder) -> Calibration:
        """From the probes: questions, each with one passage that answers it and others that do not."""
        probes = tomllib.loads((files("alcove.search.ranking") / "probes.toml").read_text(encoding="utf-8"))[
            "probe"
        ]
        asked, texts = ([probe[part] for probe in probes] for part in ("question", "answer"))
        if hasattr(embedder, "embed_query"):  # it reads questions otherwise than texts
            questions = np.stack([embed_query(embedder, each) for each in asked])
            answers = embedder.embed(texts)
        else:
            questions, answers = np.split(embedder.embed([*asked, *texts]), 2)
        cosines, own = questions.astype(np.float64) @ answers.T, np.eye(len(probes), dtype=bool)
        return cls(float(cosines[~own].mean()), float(cosines[own].mean()))

    def scores(self, cosines: ArrayLike, covered: ArrayLike) -> Numbers:
        """How relevant passages are, from 0 to 1; NaN where a cosine is, which is above no threshold.

        `covered` is the share of the question's words that each passage holds (`coverage`). More of either
        never gives less. A passage that is the question itself gets 1.
        """
        spread = max(self.answering - self.unrelated, LEAST_SPREAD)
        near = (_within(cosines, -1) - self.unrelated) / spread
        whole = (1 - self.unrelated) / spread
        found = _probability(near + WORDS * _within(covered, 0)) / _probability(whole + WORDS)
        return found.round(DIGITS)


def _within(values: ArrayLike, least: float) -> Numbers:
    """Brought between a number and 1, as `np.clip` does in three times the time."""
    found: Numbers = np.minimum(np.maximum(np.asarray(values, dtype=np.float64), least), 1)
    return found


def _probability(total: Numbers | float) -> Numbers:
    probability: Numbers = 1 / (1 + np.exp(-STEEPNESS * (total - MIDDLE)))
    return probability


BY_WORDS = Calibration(unrelated=0.0, answering=1.0)
"""Where there is no cosine, the share of the question's words that a text holds stands for it, too."""
SHIPPED = {NAME: Calibration(unrelated=0.043, answering=0.618)}
"""As measured, for the embedded model: its first search waits for nothing."""
_measured: OrderedDict[str, Calibration] = OrderedDict()
"""By the embedder's name; nothing in it comes from anybody's texts."""
_measuring = threading.Lock()


class Relevance(NamedTuple):
    """How likely each item of a corpus is to answer a question, from 0 to 1.

    By meaning and words; by words alone where an item has no vectors, or there is no `calibration`.
    """

    corpus: AnyCorpus
    question: ParsedQuery
    calibration: Calibration | None

    def scores(self, cosines: Matrix, rows: Rows | None, known: list[Match] | None) -> Numbers:
        """That of some rows, or of all; `cosines` has one for every row, and `known` where the words are."""
        covered = coverage(self.question, self.corpus.postings, known)
        if rows is not None:
            cosines, covered = cosines[rows], covered[rows]
        if self.calibration is None:
            return BY_WORDS.scores(covered, covered)
        found, unknown = self.calibration.scores(cosines, covered), np.isnan(cosines)
        return np.where(unknown, BY_WORDS.scores(covered, covered), found) if unknown.any() else found


def most_relevant(
    corpus: AnyCorpus, question: ParsedQuery, calibration: Calibration, *, limit: int, mask: Mask
) -> list[Hit]:
    """The items of those the mask lets pass that most likely answer a question, best first."""
    cosines = corpus.vectors.cosines(question.vector)
    scores = calibration.scores(cosines, coverage(question, corpus.postings))
    passing = corpus.columns.live & mask & ~np.isnan(scores)
    return [
        Hit(
            id=corpus.columns.id[row],
            score=max(0.0, float(cosines[row])),
            fused=float(scores[row]),
            relevance=float(scores[row]),
        )
        for row in best_rows(np.where(passing, scores, -np.inf).astype(np.float32), limit).tolist()
    ]
