"""Which items hold a term, and how often: the inverted index of one subtree, in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix

Rows = NDArray[np.int32]
PostingList = tuple[Rows, Matrix]
"""The rows that hold a term, and how often each does."""
LIST_BYTES = 300
"""About what a list takes beside its entries."""
_NONE: PostingList = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32))


class Postings:
    """A snapshot: a change makes another one, which shares every list that did not change."""

    def __init__(
        self,
        lists: dict[str, PostingList],
        lengths: Matrix,
        documents: int,
        total: float,
        settings: tuple[float, float],
    ) -> None:
        self._lists = lists
        self.lengths = lengths
        """Terms in each row's text."""
        self.documents = documents
        self.total = total
        """Terms in all of them."""
        self.settings = settings
        """BM25's k1 and b."""

    @classmethod
    def of(cls, documents: Iterable[Mapping[str, int]], *, k1: float, b: float) -> Postings:
        """From the term counts of each row; the whole index in one sort."""
        numbers: dict[str, int] = {}
        terms: list[int] = []
        counts: list[int] = []
        sizes: list[int] = []
        lengths: list[int] = []
        for document in documents:
            terms.extend([numbers.setdefault(term, len(numbers)) for term in document])
            counts.extend(document.values())
            sizes.append(len(document))
            lengths.append(sum(document.values()))
        rows = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        order = np.argsort(np.array(terms, dtype=np.int64), kind="stable")
        rows, frequencies = rows[order], np.array(counts, dtype=np.float32)[order]
        ends = np.cumsum(np.bincount(np.array(terms, dtype=np.int64), minlength=len(numbers)))
        lists, start = {}, 0
        for term, end in zip(numbers, ends.tolist(), strict=True):
            lists[term] = (rows[start:end], frequencies[start:end])
            start = end
        return cls(lists, np.array(lengths, dtype=np.float32), len(sizes), float(sum(lengths)), (k1, b))

    def changed(
        self, added: Iterable[Mapping[str, int]], removed: Mapping[int, Mapping[str, int]]
    ) -> Postings:
        """With documents at the rows after the last, and without those at the given rows."""
        lists, more, total = dict(self._lists), [], self.total
        for row, document in removed.items():
            for term in document:
                rows, frequencies = lists[term]
                kept = rows != row
                lists[term] = (rows[kept], frequencies[kept])
                if not len(lists[term][0]):
                    del lists[term]
            total -= sum(document.values())
        for row, document in enumerate(added, len(self.lengths)):
            for term, count in document.items():
                rows, frequencies = lists.get(term, _NONE)
                lists[term] = (
                    np.append(rows, np.int32(row)),
                    np.append(frequencies, np.float32(count)),
                )
            more.append(float(sum(document.values())))
        total += sum(more)
        lengths = np.concatenate([self.lengths, np.array(more, dtype=np.float32)])
        documents = self.documents + len(more) - len(removed)
        return Postings(lists, lengths, documents, total, self.settings)

    def __contains__(self, term: object) -> bool:
        return term in self._lists

    def frequency(self, term: str) -> int:
        """How many rows hold a term."""
        return len(self.held(term)[0])

    def held(self, term: str) -> PostingList:
        """The rows that hold a term, and how often each does."""
        return self._lists.get(term, _NONE)

    @property
    def bytes(self) -> int:
        """About how much memory the lists take, beside a dozen bytes for each term of each row."""
        return LIST_BYTES * len(self._lists)

    @cached_property
    def _norms(self) -> Matrix:
        """What a term's count in each row is weighed against: long texts need more of it."""
        k1, b = self.settings
        average = max(self.total / max(self.documents, 1), 1e-9)
        return (k1 * (1 - b + b * self.lengths / average)).astype(np.float32)

    def scores(self, term: str) -> tuple[Rows, Matrix]:
        """The rows that hold a term, and its BM25 weight in each."""
        rows, counts = self.held(term)
        if not len(rows):
            return _NONE
        rarity = math.log(1 + (self.documents - len(rows) + 0.5) / (len(rows) + 0.5))
        return rows, counts * np.float32(rarity * (self.settings[0] + 1)) / (counts + self._norms[rows])
