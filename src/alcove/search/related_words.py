"""Words of like meaning, read from a language model's own table of words.

Every transformer begins with a vector for each piece of its vocabulary. Related words lie near one another
there, so a question about *kids* can find *children* by keyword, at no cost when memories are indexed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from alcove.search.embedders import Matrix

Related = tuple[tuple[str, float], ...]

MIN_LIKENESS = 0.3
MAX_RELATED = 48
REMEMBERED = 20_000
"""Answers kept: they depend on the language only, never on anybody's memories."""


class Lexicon:
    """A vocabulary and its vectors; answers with the words nearest to a word."""

    def __init__(self, vocabulary: Mapping[str, int], table: Matrix) -> None:
        whole = sorted(word for word in vocabulary if len(word) > 2 and word.isalpha())
        vectors = np.asarray(table[[vocabulary[word] for word in whole]], dtype=np.float32)
        # All words lean the same way in such tables; without their mean, likeness is about meaning.
        vectors -= vectors.mean(axis=0)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        self._words, self._vectors = whole, vectors
        self._rows = {word: row for row, word in enumerate(whole)}
        self._remembered: OrderedDict[str, Related] = OrderedDict()
        self._lock = threading.Lock()

    def related(self, words: Sequence[str]) -> list[Related]:
        """For each word, the words like it and how like they are, nearest first."""
        with self._lock:
            known = {word: self._remembered[word] for word in words if word in self._remembered}
        asked = [word for word in dict.fromkeys(words) if word not in known and word in self._rows]
        if asked:
            likeness = self._vectors[[self._rows[word] for word in asked]] @ self._vectors.T
            for word, row in zip(asked, likeness, strict=True):
                known[word] = self._nearest(row, self._rows[word])
            with self._lock:
                self._remembered.update((word, known[word]) for word in asked)
                while len(self._remembered) > REMEMBERED:
                    self._remembered.popitem(last=False)
        return [known.get(word, ()) for word in words]

    def _nearest(self, likeness: Matrix, own: int) -> Related:
        rows = np.flatnonzero(likeness >= MIN_LIKENESS)
        rows = rows[np.argsort(-likeness[rows], kind="stable")][: MAX_RELATED + 1]
        return tuple((self._words[row], float(likeness[row])) for row in rows if row != own)
