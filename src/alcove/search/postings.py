"""Which items hold a term, and how often: the inverted index of one subtree, in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix

Rows = NDArray[np.int32]
_NONE = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32))


class Postings:
    """A snapshot: a change makes another one, which shares every list that did not change."""

    def __init__(
        self,
        lists: dict[str, tuple[Rows, Matrix]],
        lengths: Matrix,
        documents: int,
        total: float,
        settings: tuple[float, float],
    ) -> None:
        self._lists, self._lengths, self._documents, self._total = lists, lengths, documents, total
        self._settings = settings

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
        lists, more, total = dict(self._lists), [], self._total
        for row, document in removed.items():
            for term in document:
                rows, frequencies = lists[term]
                kept = rows != row
                lists[term] = (rows[kept], frequencies[kept])
                if not len(lists[term][0]):
                    del lists[term]
            total -= sum(document.values())
        for row, document in enumerate(added, len(self._lengths)):
            for term, count in document.items():
                rows, frequencies = lists.get(term, _NONE)
                lists[term] = (
                    np.append(rows, np.int32(row)),
                    np.append(frequencies, np.float32(count)),
                )
            more.append(float(sum(document.values())))
        total += sum(more)
        lengths = np.concatenate([self._lengths, np.array(more, dtype=np.float32)])
        documents = self._documents + len(more) - len(removed)
        return Postings(lists, lengths, documents, total, self._settings)

    def __contains__(self, term: object) -> bool:
        return term in self._lists

    def frequency(self, term: str) -> int:
        """How many rows hold a term."""
        return len(self._lists.get(term, _NONE)[0])

    @property
    def lengths(self) -> Matrix:
        """Terms in each row's text."""
        return self._lengths

    @cached_property
    def _norms(self) -> Matrix:
        """What a term's count in each row is weighed against: long texts need more of it."""
        k1, b = self._settings
        average = max(self._total / max(self._documents, 1), 1e-9)
        return (k1 * (1 - b + b * self._lengths / average)).astype(np.float32)

    def scores(self, term: str) -> tuple[Rows, Matrix]:
        """The rows that hold a term, and its BM25 weight in each."""
        found = self._lists.get(term)
        if found is None:
            return _NONE
        rows, counts = found
        rarity = math.log(1 + (self._documents - len(rows) + 0.5) / (len(rows) + 0.5))
        return rows, counts * np.float32(rarity * (self._settings[0] + 1)) / (counts + self._norms[rows])
