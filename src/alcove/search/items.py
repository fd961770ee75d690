"""Memories as ranking takes them in: texts read once, plain facts in columns, labels that many share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.postings import Postings, Rows
from alcove.search.terms import Reader, asks, speaker
from alcove.search.times import DAY, span

Mask = NDArray[np.bool_]

SHORT = 40
"""Characters of a field that can be read as a date."""
Numbers = dict[tuple[Hashable, str], int]
"""A number for each label in each namespace."""

OCCASION = 50
"""Items of a group that counts in full."""
MAX_LABEL = 200
"""Characters; a longer text is content, however often it is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What a store knows of a memory that is indexed."""

    id: Hashable
    namespace: Hashable
    sequence: int
    """The order of writing; neighbours are next to each other in it, within one namespace."""
    fields: Mapping[str, str]
    """The `index` texts by name."""
    vectors: Mapping[str, Matrix] = field(default_factory=dict)
    """By field, a row for each window of its text; none while the item is not embedded."""
    at: float | None = None
    """When it was written, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ReadItem:
    """An item whose texts were read, so that an index can be rebuilt without reading them again."""

    item: Item
    terms: Mapping[str, Counter[str]]
    speaker: str | None
    asks: bool
    at: float | None
    """When it happened, where a short field says so; else when it was written."""

    @classmethod
    def of(cls, item: Item, reader: Reader) -> ReadItem:
        longest = max(item.fields.values(), key=len, default="")
        return cls(
            item,
            {name: reader.counts(text) for name, text in item.fields.items()},
            speaker(longest),
            asks(longest),
            _date(item),
        )

    def content(self, labels: Collection[str]) -> Mapping[str, int]:
        """The terms of the fields that tell items apart."""
        return self.terms_of(self.terms.keys() - labels)

    def terms_of(self, names: Collection[str]) -> Mapping[str, int]:
        """The terms of some fields together."""
        counts = [terms for name, terms in self.terms.items() if name in names]
        if len(counts) == 1:
            return counts[0]
        together: Counter[str] = Counter()
        for each in counts:
            together.update(each)
        return together

    @property
    def bytes(self) -> int:
        """About how much memory it takes in a corpus, its vectors twice: by themselves and in the matrix."""
        texts = sum(map(getsizeof, self.item.fields.values()))
        terms = sum(map(len, self.terms.values()))
        vectors = sum(rows.nbytes for rows in self.item.vectors.values())
        return 1000 + 250 * len(self.terms) + texts + 60 * terms + 9 * vectors // 4


def _date(item: Item) -> float | None:
    """A field such as `date` or `when` is short and has a day in it."""
    short = (text for text in item.fields.values() if len(text) <= SHORT and any(map(str.isdigit, text)))
    days = (found.start for found in map(span, short) if found and found.end - found.start <= DAY)
    return next(days, item.at)


class Columns(NamedTuple):
    """One value a row, holes included."""

    live: Mask
    asking: Mask
    at: NDArray[np.float64]
    """NaN where the time is not known."""
    sequence: NDArray[np.int64]
    namespace: Rows
    """A number for each namespace."""

    @classmethod
    def of(cls, reads: Sequence[ReadItem], namespaces: dict[Hashable, int]) -> Columns:
        items = [read.item for read in reads]
        return cls(
            np.ones(len(reads), dtype=bool),
            np.array([read.asks for read in reads], dtype=bool),
            np.array([np.nan if read.at is None else read.at for read in reads], dtype=np.float64),
            np.array([item.sequence for item in items], dtype=np.int64),
            np.array(
                [namespaces.setdefault(item.namespace, len(namespaces)) for item in items], dtype=np.int32
            ),
        )

    def changed(self, more: Columns, holes: Collection[int]) -> Columns:
        """With more rows after the last, and without those that became holes."""
        live = np.concatenate([self.live, more.live])
        live[list(holes)] = False
        return Columns(
            live,
            np.concatenate([self.asking, more.asking]),
            np.concatenate([self.at, more.at]),
            np.concatenate([self.sequence, more.sequence]),
            np.concatenate([self.namespace, more.namespace]),
        )


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
        self, groups: Mapping[str, Rows], numbers: Mapping[str, Numbers], postings: Postings
    ) -> None:
        self.groups, self._numbers, self.postings = groups, numbers, postings

    @classmethod
    def of(cls, names: frozenset[str], reads: Sequence[ReadItem]) -> Labels:
        numbers: dict[str, Numbers] = {name: {} for name in names}
        groups = {name: _codes(name, reads, numbers[name]) for name in names}
        # Labels are names: how long one is says nothing, so lengths do not count.
        return cls(groups, numbers, Postings.of((read.terms_of(names) for read in reads), k1=0.9, b=0))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.groups)

    def changed(self, added: Sequence[ReadItem], holes: Mapping[int, ReadItem]) -> Labels:
        """With items at the rows after the last, and without those that became holes."""
        numbers = {name: dict(known) for name, known in self._numbers.items()}
        groups = {}
        for name, codes in self.groups.items():
            groups[name] = np.concatenate([codes, _codes(name, added, numbers[name])])
            groups[name][list(holes)] = -1
        postings = self.postings.changed(
            [read.terms_of(self.names) for read in added],
            {row: read.terms_of(self.names) for row, read in holes.items()},
        )
        return Labels(groups, numbers, postings)

    def best(self, name: str, values: Matrix) -> Matrix:
        """For each row, the highest value in its group, and 0 in none; less in a group of very many.

        What was said on one occasion belongs together; what is filed under one word often does not.
        """
        codes = self.groups[name]
        inside = codes >= 0
        members = codes[inside]
        highest = np.full(len(self._numbers[name]), -np.inf, dtype=np.float32)
        np.maximum.at(highest, members, values[inside])
        highest *= np.minimum(1, OCCASION / np.maximum(np.bincount(members, minlength=len(highest)), 1))
        found = np.zeros(len(values), dtype=np.float32)
        found[inside] = highest[members]
        return found


def _codes(name: str, reads: Sequence[ReadItem], numbers: Numbers) -> Rows:
    codes = [
        numbers.setdefault((read.item.namespace, text), len(numbers)) if text is not None else -1
        for read in reads
        for text in (read.item.fields.get(name),)
    ]
    return np.array(codes, dtype=np.int32)
