"""Memories as ranking takes them in: their texts read once, their plain facts in columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.postings import Rows
from alcove.search.terms import Reader, asks, speaker
from alcove.search.times import DAY, span

Mask = NDArray[np.bool_]

SHORT = 40
"""Characters of a field that can be read as a date."""


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
