"""Which rows hold a term, and which share a label: the inverted indexes of one subtree, in memory."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.terms import Item

Rows = NDArray[np.int32]
PostingList = tuple[Rows, Matrix]
"""The rows that hold a term, and how often each does."""
K1 = 0.9
"""BM25's usual setting for passages."""
OCCASION = 50
"""Items of a group that counts in full."""
MAX_LABEL = 200
"""Characters; a longer text is content, however often it is repeated."""
LIST_BYTES = 300
"""About what a list takes beside its entries."""
_NONE: PostingList = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32))


class Postings:
    """A snapshot: a change makes another one, which shares every list that did not change.

    `lengths` has the number of terms in each row's text, 0 where a row was removed, and `documents` says
    how many rows were not. `b` is BM25's setting for how much the length of a text counts.
    """

    def __init__(self, lists: dict[str, PostingList], lengths: Matrix, documents: int, b: float) -> None:
        self._lists, self.lengths, self.documents, self.b = lists, lengths, documents, b

    @classmethod
    def of(cls, documents: Iterable[Mapping[str, int]], *, b: float = 0) -> Postings:
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
        return cls(lists, np.array(lengths, dtype=np.float32), len(sizes), b)

    def changed(
        self, added: Iterable[Mapping[str, int]], removed: Mapping[int, Mapping[str, int]]
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
        return Postings(lists, lengths, self.documents + more.documents - len(removed), self.b)

    def __contains__(self, term: str) -> bool:
        return term in self._lists

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
        average = max(float(self.lengths.sum(dtype=np.float64)) / max(self.documents, 1), 1e-9)
        return (K1 * (1 - self.b + self.b * self.lengths / average)).astype(np.float32)

    def scores(self, term: str) -> PostingList:
        """The rows that hold a term, and its BM25 weight in each."""
        rows, counts = self.held(term)
        if not len(rows):
            return _NONE
        rarity = math.log(1 + (self.documents - len(rows) + 0.5) / (len(rows) + 0.5))
        return rows, counts * np.float32(rarity * (K1 + 1)) / (counts + self._norms[rows])


class JoinedPostings(Postings):
    """Postings of several parts, whose rows begin at `starts`; looked up in each when they are asked for."""

    def __init__(self, parts: Sequence[Postings], starts: Sequence[int]) -> None:
        lengths = np.concatenate([part.lengths for part in parts])
        super().__init__({}, lengths, sum(part.documents for part in parts), parts[0].b)
        self._parts, self._starts = parts, starts

    def __contains__(self, term: str) -> bool:
        return any(term in part for part in self._parts)

    def held(self, term: str) -> PostingList:
        rows, counts = zip(*(part.held(term) for part in self._parts), strict=True)
        moved = [each + np.int32(start) for each, start in zip(rows, self._starts, strict=True)]
        return np.concatenate(moved), np.concatenate(counts)


def label_fields(items: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """The fields whose texts are short and mostly repeated; each item keeps a field that is not one."""
    values: dict[str, list[str]] = {}
    for fields in items:
        for name, text in fields.items():
            values.setdefault(name, []).append(text)
    shared = {
        name
        for name, texts in values.items()
        if len(texts) > 1 and 2 * len(set(texts)) <= len(texts) and max(map(len, texts)) <= MAX_LABEL
    }
    for fields in items:
        if fields and shared.issuperset(fields):
            shared.discard(max(fields, key=lambda name: len(fields[name])))
    return frozenset(shared)


class Labels:
    """For each label field, the group that each row is in: the same text in the same namespace."""

    def __init__(
        self, groups: Mapping[str, Rows], numbers: Mapping[Hashable, int], postings: Postings
    ) -> None:
        self._groups, self._numbers, self.postings = groups, numbers, postings
        self.names = frozenset(groups)

    @classmethod
    def of(cls, names: frozenset[str], items: Sequence[Item]) -> Labels:
        """The labels of items in these fields."""
        numbers: dict[Hashable, int] = {}
        groups = {name: _group_numbers(name, items, numbers) for name in names}
        # Labels are names: how long one is says nothing, so lengths do not count.
        return cls(groups, numbers, Postings.of((item.terms_of(names) for item in items), b=0))

    def changed(self, added: Sequence[Item], holes: Mapping[int, Item]) -> Labels:
        """With items at the rows after the last, and without those that became holes."""
        numbers, groups = dict(self._numbers), {}
        for name, known in self._groups.items():
            groups[name] = np.append(known, _group_numbers(name, added, numbers))
            groups[name][list(holes)] = -1
        postings = self.postings.changed(
            [item.terms_of(self.names) for item in added],
            {row: item.terms_of(self.names) for row, item in holes.items()},
        )
        return Labels(groups, numbers, postings)

    def best(self, name: str, values: Matrix) -> Matrix:
        """For each row, the highest value in its group, and 0 in none; less in a group of very many.

        What was said on one occasion belongs together; what is filed under one word often does not.
        """
        found = np.zeros(len(values), dtype=np.float32)
        if (groups := self._groups.get(name)) is None:
            return found
        inside = groups >= 0
        members = groups[inside]
        highest = np.full(len(self._numbers), -np.inf, dtype=np.float32)
        np.maximum.at(highest, members, values[inside])
        highest *= np.minimum(1, OCCASION / np.maximum(np.bincount(members, minlength=len(highest)), 1))
        found[inside] = highest[members]
        return found


class JoinedLabels:
    """The labels of several parts, whose rows begin at `starts`; no group is in two of them."""

    def __init__(self, parts: Sequence[Labels], starts: Sequence[int]) -> None:
        self._parts, self._starts = parts, starts
        self.names = frozenset[str]().union(*(part.names for part in parts))
        self.postings = JoinedPostings([part.postings for part in parts], starts)

    def best(self, name: str, values: Matrix) -> Matrix:
        """As `Labels.best`."""
        some = zip(self._parts, np.split(values, self._starts[1:]), strict=True)
        return np.concatenate([part.best(name, its) for part, its in some])


def _group_numbers(name: str, items: Sequence[Item], numbers: dict[Hashable, int]) -> Rows:
    """The group of each item by its label in a field, -1 for none; new groups get the next numbers."""
    codes = [
        numbers.setdefault((name, item.namespace, item.fields[name]), len(numbers))
        if name in item.fields else -1
        for item in items
    ]  # fmt: skip
    return np.array(codes, dtype=np.int32)
