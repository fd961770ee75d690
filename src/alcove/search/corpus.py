"""The texts of a scope in memory, as ranking reads them: terms, vectors, tokens, labels and order."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from alcove.search.dates import DAY, find_span
from alcove.search.embedders import Matrix
from alcove.search.late_interaction import TokenTable
from alcove.search.postings import Postings
from alcove.search.vectors import FieldVectors, Mask, Rows, Vectors
from alcove.search.words import (
    ENGLISH,
    LABEL,
    LANGUAGE,
    SPEAKER,
    is_question,
    speaker,
    term_counts,
    term_number,
    term_numbers,
)

T = TypeVar("T")
MAX_LABEL = 200
"""Characters of a label; a longer text is content, however often it is repeated."""
MAX_DATE = 40
"""Characters of a field that is read as a date."""
FULL_LENGTH = 30
"""Terms; a longer text does not say more for its length."""
BASE_BYTES = 20_000
"""The size of an empty corpus, so that empty ones do not pile up."""
ID_BYTES, NUMBER_BYTES = 160, 300
"""About the size of an id with its entry in `rows`, and of a namespace or a label with its number."""
SMALL_ROWS, SMALL_TERMS = 64, 5000
"""A corpus below both is rebuilt with each change: that takes a few milliseconds."""
LONG_TEXT = 200
"""Average terms from which a corpus is rebuilt when it has doubled, not when it has grown by a quarter."""
MAX_DISTANCE = 3
"""Places between two items that are still neighbours."""
ORDER_SAMPLE, MIN_ORDER_PAIRS = 300, 8
"""Pairs of neighbours by which it is decided whether their order matters: about, and at least."""
ORDER_CERTAINTY = 3.0
"""Standard errors between neighbours and strangers: chance exceeds them in one corpus of a thousand."""


class Item(NamedTuple):
    """The index texts of a memory, as they are ranked."""

    id: Hashable
    namespace: Hashable
    sequence: int
    """The order of writing; within a namespace, items next to each other in it are neighbours."""
    fields: Mapping[str, str]
    """The texts by name."""
    vectors: FieldVectors = MappingProxyType({})
    """Empty while the item is not embedded."""
    written_at: float | None = None
    """In seconds since 1970."""
    tokens: Mapping[str, bytes] = MappingProxyType({})
    """By field, the reduced tokens of a short text."""
    terms: Sequence[int] | None = None
    """The numbers of its terms, if they are known (see `documents`)."""
    run: int = 0
    """If not all items of a namespace are here, the run of consecutive ones that it belongs to."""

    @property
    def dimensions(self) -> int:
        """The dimensions of its vectors; 0 without vectors."""
        return next((memoryview(row).nbytes // 4 for rows in self.vectors.values() for row in rows), 0)

    @property
    def longest_text(self) -> str:
        """The text that shows who speaks and whether it is a question."""
        texts = self.fields.values()
        return next(iter(texts)) if len(texts) == 1 else max(texts, key=len, default="")


def documents(items: Iterable[Item], labels: Collection[str]) -> Iterator[Sequence[int]]:
    """The term numbers of each item, with repetitions; 0 stands for no term.

    Terms of labels and words of the speaker's name have numbers of their own.
    """

    @cache
    def label_numbers(text: str) -> list[int]:
        return [term_number((LABEL, term)) for term, count in term_counts(text).items() for _ in range(count)]

    for item in items:
        if item.terms is not None:
            yield item.terms
            continue
        document: list[int] = []
        for name, text in item.fields.items():
            if name in labels:
                document += label_numbers(text)
                continue
            numbers, language = term_numbers(text)
            document += numbers
            if language != ENGLISH:
                document.append(term_number((LANGUAGE, language)))
        if name_of_speaker := speaker(item.longest_text):
            document += [term_number((SPEAKER, word)) for word in name_of_speaker.split()]
        yield document


def _times(items: Iterable[Item]) -> list[float | None]:
    """The day that a short field of each item names, such as `date` or `when`; else when it was written."""

    @cache
    def day(text: str) -> float | None:
        span = find_span(text) if any(map(str.isdigit, text)) else None
        return span.start if span and span.end - span.start <= DAY else None

    def first_day(item: Item) -> float | None:
        days = (day(text) for text in item.fields.values() if len(text) <= MAX_DATE)
        return next((start for start in days if start is not None), item.written_at)

    return [*map(first_day, items)]


class Columns(NamedTuple):
    """Arrays with one value for each row, removed rows included."""

    id: NDArray[np.object_]
    live: Mask
    """False for removed rows."""
    time: NDArray[np.float64]
    """NaN if it is unknown."""
    substance: Matrix
    """How much each turn of a conversation says: more with more words, less if it is a question."""
    sequence: NDArray[np.int64]
    namespace: Rows
    """A number for each namespace, or for each run in it."""

    @classmethod
    def of(cls, items: Sequence[Item], lengths: Matrix, numbers: dict[Hashable, int]) -> Columns:
        """The columns of items whose texts have these lengths in terms."""
        count = len(items)
        texts = [item.longest_text for item in items]
        questions = np.fromiter(map(is_question, texts), dtype=bool, count=count)
        turns = np.fromiter((speaker(text) is not None for text in texts), dtype=bool, count=count)
        substance = np.log1p(np.minimum(lengths, FULL_LENGTH)) - questions
        namespaces = ((item.namespace, item.run) if item.run else item.namespace for item in items)
        return cls(
            np.fromiter((item.id for item in items), dtype=object, count=count),
            np.ones(count, dtype=bool),
            np.array(_times(items), dtype=np.float64),
            np.where(turns, substance, np.log1p(FULL_LENGTH)).astype(np.float32),
            np.fromiter((item.sequence for item in items), dtype=np.int64, count=count),
            _number(namespaces, numbers),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """The rows of several parts, one part after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A snapshot of the texts of a scope. A change makes another one, so a search never sees half a change.

    Removed items leave rows that are not `columns.live`; after enough changes the corpus is rebuilt.
    """

    rows: Mapping[Hashable, int]
    """The row of each item, by its id."""
    columns: Columns
    groups: Mapping[str, Rows]
    """For each label field, the group of each row: rows with the same label in a namespace; -1 for none."""
    postings: Postings
    vectors: Vectors
    tokens: TokenTable
    numbers: Mapping[Hashable, int]
    """A number for each namespace and each group."""
    built_count: int
    """How many items it had when it was built, before changes."""
    order_matters: bool
    """Whether neighbours had to do with each other when it was built."""

    @classmethod
    def of(cls, items: Iterable[Item]) -> Corpus:
        """Builds the corpus of some items.

        Leaves out vectors with other dimensions than the newest: they were made by another model.
        """
        ordered = sorted(items, key=attrgetter("sequence"))
        sizes = [item.dimensions for item in ordered]
        dimensions = next(filter(None, reversed(sizes)), 0)
        vectors: list[FieldVectors] = [
            item.vectors if size in (0, dimensions) else {} for item, size in zip(ordered, sizes, strict=True)
        ]
        labels = find_labels([item.fields for item in ordered])
        numbers: dict[Hashable, int] = {}
        postings = Postings.of(documents(ordered, labels))
        columns = Columns.of(ordered, postings.lengths, numbers)
        return cls(
            rows={item.id: row for row, item in enumerate(ordered)},
            columns=columns,
            groups={name: _groups(name, ordered, numbers) for name in labels},
            postings=postings,
            vectors=Vectors.of(vectors, dimensions, labels),
            tokens=TokenTable.of(_tokens(ordered, labels)),
            numbers=numbers,
            built_count=len(ordered),
            order_matters=_order_matters(columns, postings),
        )

    def changed(self, *, add: Iterable[Item] = (), remove: Collection[Hashable] = ()) -> Corpus | None:
        """Adds items, which replace those with the same id, and removes some ids.

        Returns None if too much has changed: then the corpus has to be built again from the texts.
        """
        latest, count, rows = {item.id: item for item in add}, len(self), dict(self.rows)
        added = [*latest.values()]
        removed = [rows.pop(id) for id in {*remove, *latest} if id in rows]
        rows |= {item.id: row for row, item in enumerate(added, count)}
        size, average_length = count + len(added), self.postings.average_length
        is_small = count < SMALL_ROWS and count * average_length < SMALL_TERMS
        max_changes = self.built_count if average_length > LONG_TEXT else self.built_count // 4
        if is_small or (size - self.built_count) + (size - len(rows)) > max_changes:
            return None
        numbers = dict(self.numbers)
        live = np.append(self.columns.live, np.ones(len(added), dtype=bool))
        live[removed] = False
        postings = self.postings.changed(documents(added, self.groups), live)
        columns = Columns.concatenate([self.columns, Columns.of(added, postings.lengths[count:], numbers)])
        groups = {}
        for name, column in self.groups.items():
            groups[name] = np.append(column, _groups(name, added, numbers))
            groups[name][removed] = -1
        return replace(
            self,
            rows=rows,
            columns=columns._replace(live=live),
            groups=groups,
            postings=postings,
            vectors=self.vectors.changed([item.vectors for item in added], live, self.groups),
            tokens=self.tokens.extended(_tokens(added, self.groups)),
            numbers=numbers,
        )

    def __len__(self) -> int:
        """The number of rows, removed ones included: the length of every column and of a mask."""
        return len(self.columns.live)

    @cached_property
    def bytes(self) -> int:
        """About how much memory it takes, with removed rows and with neighbours that are not computed yet."""
        columns = sum(column.nbytes for column in (*self.columns, *self.groups.values()))
        per_row = (8 * MAX_DISTANCE + ID_BYTES) * len(self) + NUMBER_BYTES * len(self.numbers)
        return BASE_BYTES + columns + per_row + self.postings.bytes + self.vectors.bytes + self.tokens.bytes

    @cached_property
    def neighbours(self) -> Mapping[int, Rows]:
        """By distance (negative: before), the row so far away from each row in its namespace, or -1."""
        live = np.flatnonzero(self.columns.live).astype(np.int32)
        rows = live[np.lexsort((self.columns.sequence[live], self.columns.namespace[live]))]
        namespaces, neighbours = self.columns.namespace[rows], {}
        for n in range(1, MAX_DISTANCE + 1):
            same = namespaces[:-n] == namespaces[n:]
            before, after = rows[:-n][same], rows[n:][same]
            for distance, here, there in ((n, before, after), (-n, after, before)):
                neighbours[distance] = np.full(len(self), -1, dtype=np.int32)
                neighbours[distance][here] = there
        return neighbours


class JoinedCorpus:
    """The rows of several corpora, one after the other, for one search: what all readers see is in memory
    once, and so is what each user owns.

    Terms are weighed by the statistics of all of them. Each decides for itself which fields are labels and
    whether the order matters; a namespace is in one of them as a whole.
    """

    def __init__(self, parts: Sequence[Corpus]) -> None:
        self._parts = parts
        self.columns = Columns.concatenate([part.columns for part in parts])
        self.postings = Postings.concatenate([part.postings for part in parts])
        self.vectors = Vectors.concatenate([part.vectors for part in parts])
        self.tokens = TokenTable.concatenate([part.tokens for part in parts])
        self.order_matters = any(part.order_matters for part in parts)

    def __len__(self) -> int:
        return len(self.columns.live)

    @cached_property
    def groups(self) -> Mapping[str, Rows]:
        """The groups of each corpus; no two corpora share one."""
        return self._join([part.groups for part in self._parts], [len(part.numbers) for part in self._parts])

    @cached_property
    def neighbours(self) -> Mapping[int, Rows]:
        """The neighbours in each corpus whose order matters."""
        neighbours = [part.neighbours if part.order_matters else {} for part in self._parts]
        return self._join(neighbours, [*map(len, self._parts)])

    def _join(self, columns: Sequence[Mapping[T, Rows]], sizes: Sequence[int]) -> dict[T, Rows]:
        """Joins columns of numbers by name; those of each part begin after those of the part before."""
        parts: dict[T, list[Rows]] = {name: [] for part in columns for name in part}
        for part, named, start in zip(self._parts, columns, accumulate(sizes, initial=0), strict=False):
            for name, column in parts.items():
                numbers = named.get(name, np.full(len(part), -1, dtype=np.int32))
                column.append(np.where(numbers < 0, numbers, numbers + np.int32(start)))
        return {name: np.concatenate(column) for name, column in parts.items()}


AnyCorpus = Corpus | JoinedCorpus


def _number(keys: Iterable[Hashable], numbers: dict[Hashable, int]) -> Rows:
    """The number of each key, -1 for None; new keys get the next numbers."""
    column = [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(column, dtype=np.int32)


def _groups(name: str, items: Sequence[Item], numbers: dict[Hashable, int]) -> Rows:
    """The group of each item by its label in a field."""
    labels = ((name, item.namespace, item.fields[name]) if name in item.fields else None for item in items)
    return _number(labels, numbers)


def _tokens(items: Sequence[Item], labels: Collection[str]) -> list[bytes]:
    """The tokens of each item, without those of labels."""
    return [b"".join(row for name, row in item.tokens.items() if name not in labels) for item in items]


def find_labels(items: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """The fields whose texts are short and mostly repeated. Each item keeps one field that is no label."""
    values: dict[str, list[str]] = {}
    for fields in items:
        for name, text in fields.items():
            values.setdefault(name, []).append(text)
    labels = {
        name
        for name, texts in values.items()
        if len(texts) > 1 and 2 * len(set(texts)) <= len(texts) and max(map(len, texts)) <= MAX_LABEL
    }
    for fields in items:
        if fields and labels.issuperset(fields):
            labels.discard(max(fields, key=lambda name: len(fields[name])))
    return frozenset(labels)


def _order_matters(columns: Columns, postings: Postings) -> bool:
    """Whether items next to each other share more terms than items far from each other.

    Neighbours help where items follow from one another, as turns of a conversation do, and only add noise in
    an import in no order.
    """
    count, order = len(columns.live), np.lexsort((columns.sequence, columns.namespace)).astype(np.int32)
    places = np.arange(0, count - 1, max(1, math.ceil(count / ORDER_SAMPLE)))
    namespaces = columns.namespace[order]
    places = places[namespaces[places] == namespaces[places + 1]]
    if len(places) < MIN_ORDER_PAIRS:
        return False
    rows, others = order[places], order[np.append(places + 1, (places + count // 2) % count)]
    near, far = np.split(postings.compare_rows(np.append(rows, rows), others), 2)
    gains = near - far
    error = gains.std() / math.sqrt(len(gains))
    return bool(gains.mean() > ORDER_CERTAINTY * error > 0)
