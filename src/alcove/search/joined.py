"""Several corpora ranked as one: what everybody sees is held once, and what one user owns beside it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property

import numpy as np

from alcove.search.corpus import Corpus
from alcove.search.embedders import Matrix
from alcove.search.items import Columns
from alcove.search.postings import PostingList, Postings, Rows


class JoinedCorpus:
    """The rows of several corpora, one after the other, for the length of one search.

    Words are weighed by the statistics of all of them together. A namespace lies in one of them as a whole,
    so neighbours and occasions never reach from one into another; what is a label, and whether the order of
    writing means something, each decides for itself.
    """

    def __init__(self, corpora: Sequence[Corpus]) -> None:
        self._corpora = corpora
        self._ends = np.cumsum([len(each) for each in corpora])
        self._starts = self._ends - [len(each) for each in corpora]
        self.content = _JoinedPostings([each.content for each in corpora], self._starts)
        self.columns = Columns(*map(np.concatenate, zip(*(each.columns for each in corpora), strict=True)))
        self.substance = np.concatenate([each.substance for each in corpora])
        self.order_matters = any(each.order_matters for each in corpora)
        self.labels = _JoinedLabels(corpora, self._starts)
        self.vectors = _JoinedVectors(corpora, self._starts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def id(self, row: int) -> Hashable:
        """The id of the item at a row that is no hole."""
        part = int(np.searchsorted(self._ends, row, side="right"))
        return self._corpora[part].id(row - int(self._starts[part]))

    def neighbours(self, distance: int) -> Rows:
        """As `Corpus.neighbours`; none where the order of writing means nothing."""
        parts = []
        for corpus, start in zip(self._corpora, self._starts, strict=True):
            none = np.full(len(corpus), -1, dtype=np.int32)
            near = corpus.neighbours(distance) if corpus.order_matters else none
            parts.append(np.where(near < 0, near, near + np.int32(start)))
        return np.concatenate(parts)

    @cached_property
    def speakers(self) -> Mapping[str, Rows]:
        """Who says which rows."""
        found: dict[str, list[Rows]] = {}
        for corpus, start in zip(self._corpora, self._starts, strict=True):
            for name, rows in corpus.speakers.items():
                found.setdefault(name, []).append(rows + np.int32(start))
        return {name: np.concatenate(rows) for name, rows in found.items()}


class _JoinedLabels:
    """The labels of several corpora."""

    def __init__(self, corpora: Sequence[Corpus], starts: Rows) -> None:
        self._corpora = corpora
        self._starts = starts
        self.names = frozenset[str]().union(*(each.labels.names for each in corpora))
        self.postings = _JoinedPostings([each.labels.postings for each in corpora], starts)

    def best(self, name: str, values: Matrix) -> Matrix:
        """As `Labels.best`."""
        found = np.zeros(len(values), dtype=np.float32)
        for corpus, start in zip(self._corpora, self._starts, strict=True):
            if name in corpus.labels.names:
                rows = slice(int(start), int(start) + len(corpus))
                found[rows] = corpus.labels.best(name, values[rows])
        return found


class _JoinedVectors:
    """The vectors of several corpora; one that has none yet may have other dimensions."""

    def __init__(self, corpora: Sequence[Corpus], starts: Rows) -> None:
        self._corpora = corpora
        self._starts = starts
        self.dimensions = max(each.vectors.dimensions for each in corpora)
        self.matrix = max((each.vectors.matrix for each in corpora), key=len)

    def cosines(self, query: Matrix) -> Matrix:
        """As `Vectors.cosines`."""
        return np.concatenate([
            each.vectors.cosines(query) if each.vectors.dimensions == len(query)
            else np.full(len(each), np.nan, dtype=np.float32)
            for each in self._corpora
        ])  # fmt: skip

    def first(self, rows: Rows) -> Matrix:
        """As `Vectors.first`."""
        found = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        for corpus, start in zip(self._corpora, self._starts, strict=True):
            inside = (rows >= start) & (rows < start + len(corpus))
            if corpus.vectors.dimensions == self.dimensions and inside.any():
                found[inside] = corpus.vectors.first(rows[inside] - np.int32(start))
        return found


class _JoinedPostings(Postings):
    """Postings that are looked up in each part when they are asked for."""

    def __init__(self, parts: Sequence[Postings], starts: Rows) -> None:
        super().__init__(
            {},
            np.concatenate([part.lengths for part in parts]),
            sum(part.documents for part in parts),
            sum(part.total for part in parts),
            parts[0].settings,
        )
        self._parts = parts
        self._starts = starts

    def held(self, term: str) -> PostingList:
        rows, counts = zip(*(part.held(term) for part in self._parts), strict=True)
        moved = [each + np.int32(start) for each, start in zip(rows, self._starts, strict=True)]
        return np.concatenate(moved), np.concatenate(counts)

    def __contains__(self, term: object) -> bool:
        return any(term in part for part in self._parts)
