"""Which rows hold a term, and how often: the inverted index of one subtree, in memory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.terms import Term

Rows = NDArray[np.int32]
PostingList = tuple[Rows, Matrix]
"""The rows that hold a term, and how often each does."""
K1, B = 0.9, 0.4
"""BM25's usual settings for passages."""
LIST_BYTES = 300
"""About what a list takes beside its entries."""
_NONE: PostingList = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32))


class Postings:
    """A snapshot: a change makes another one, which shares every list that did not change.

    `lengths` has the number of terms in each row's text, 0 where a row was removed, and `documents` says
    how many rows were not.
    """

    def __init__(self, lists: dict[Term, PostingList], lengths: Matrix, documents: int) -> None:
        self._lists, self.lengths, self.documents = lists, lengths, documents

    @classmethod
    def of(cls, documents: Iterable[Mapping[Term, int]]) -> Postings:
        """From the term counts of each row."""
        found: defaultdict[Term, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        lengths = []
        for row, document in enumerate(documents):
            for term, count in document.items():
                rows, counts = found[term]
                rows.append(row)
                counts.append(count)
            lengths.append(sum(count for term, count in document.items() if isinstance(term, str)))
        lists = {
            term: (np.array(rows, dtype=np.int32), np.array(counts, dtype=np.float32))
            for term, (rows, counts) in found.items()
        }
        return cls(lists, np.array(lengths, dtype=np.float32), len(lengths))

    def changed(
        self, added: Iterable[Mapping[Term, int]], removed: Mapping[int, Mapping[Term, int]]
    ) -> Postings:
        """With documents at the rows after the last, and without those at the given rows."""
        lists, more = dict(self._lists), Postings.of(added)
        for row, document in removed.items():
            for term in document:
                rows, frequencies = lists.pop(term)
                kept = rows != row
                if kept.any():
                    lists[term] = (rows[kept], frequencies[kept])
        for term, (rows, frequencies) in more._lists.items():
            known = lists.get(term, _NONE)
            moved = rows + np.int32(len(self.lengths))
            lists[term] = (np.append(known[0], moved), np.append(known[1], frequencies))
        lengths = np.append(self.lengths, more.lengths)
        lengths[list(removed)] = 0
        return Postings(lists, lengths, self.documents + more.documents - len(removed))

    def __contains__(self, term: Term) -> bool:
        return term in self._lists

    def held(self, term: Term) -> PostingList:
        """The rows that hold a term, and how often each does."""
        return self._lists.get(term, _NONE)

    @property
    def bytes(self) -> int:
        """About how much memory the lists take, beside a dozen bytes for each term of each row."""
        return LIST_BYTES * len(self._lists)

    @cached_property
    def _norms(self) -> Matrix:
        """What a term's count in each row is weighed against: long texts need more of it."""
        average = max(float(self.lengths.sum(dtype=np.float64)) / max(self.documents, 1), 1e-9)
        return (K1 * (1 - B + B * self.lengths / average)).astype(np.float32)

    def scores(self, term: Term) -> PostingList:
        """The rows that hold a term, and its BM25 weight in each; how long a label is says nothing."""
        rows, counts = self.held(term)
        rarity = math.log(1 + (self.documents - len(rows) + 0.5) / (len(rows) + 0.5))
        norms = self._norms[rows] if isinstance(term, str) else np.float32(K1)
        return rows, counts * np.float32(rarity * (K1 + 1)) / (counts + norms)


class JoinedPostings(Postings):
    """Postings of several parts, whose rows begin at `starts`; looked up in each when they are asked for."""

    def __init__(self, parts: Sequence[Postings], starts: Sequence[int]) -> None:
        lengths = np.concatenate([part.lengths for part in parts])
        super().__init__({}, lengths, sum(part.documents for part in parts))
        self._parts, self._starts = parts, starts

    def __contains__(self, term: Term) -> bool:
        return any(term in part for part in self._parts)

    def held(self, term: Term) -> PostingList:
        rows, counts = zip(*(part.held(term) for part in self._parts), strict=True)
        moved = [each + np.int32(start) for each, start in zip(rows, self._starts, strict=True)]
        return np.concatenate(moved), np.concatenate(counts)
