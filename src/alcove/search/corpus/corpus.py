"""One subtree as ranking sees it: vectors, postings and order, held in memory between searches."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from alcove.search.corpus.late_interaction import TokenTable
from alcove.search.corpus.postings import Postings, Rows
from alcove.search.corpus.vectors import Vectors
from alcove.search.embedders import Matrix
from alcove.search.text.terms import Item, documents, moments
from alcove.search.text.words import asks, speaker

Mask = NDArray[np.bool_]
Name = TypeVar("Name")
MAX_LABEL = 200
"""Characters; a longer text is content, however often it is repeated."""
LONG = 30
"""Terms; a text is not more telling for being longer than that."""
EMPTY_BYTES = 20_000
"""What a corpus takes without any item, so that empty ones do not pile up."""
ID_BYTES, NUMBER_BYTES = 160, 300
"""About what an id takes with its place in `rows`, and a namespace or a label with its number."""
SMALL, CHEAP = 64, 5000
"""Rows, and terms of all, below which a corpus is always built anew: that takes a few milliseconds."""
LONG_TO_READ = 200
"""Terms of a text, above which a corpus is built anew when it has doubled, not grown by a quarter."""
FARTHEST = 3
"""Places between two items that are still neighbours."""
SAMPLE = 300
"""Pairs of neighbours that are looked at: enough to tell, and a few milliseconds."""
FEWEST = 8
"""Pairs below which they tell nothing."""
CERTAINTY = 3.0
"""Standard errors between neighbours and strangers, so that chance passes one order in a thousand."""


class Columns(NamedTuple):
    """One value a row, holes included."""

    id: NDArray[np.object_]
    live: Mask
    """Whether it is no hole."""
    at: NDArray[np.float64]
    """NaN where the time is not known."""
    substance: Matrix
    """How telling each turn of a conversation is: a few words more, and no question back; other texts are."""
    sequence: NDArray[np.int64]
    namespace: Rows
    """A number for each namespace, or run of it."""

    @classmethod
    def of(cls, items: Sequence[Item], lengths: Matrix, numbers: dict[Hashable, int]) -> Columns:
        """The columns of items whose texts have so many terms."""
        count = len(items)
        longest = [item.longest for item in items]
        asking = np.fromiter(map(asks, longest), dtype=bool, count=count)
        turns = np.fromiter((speaker(text) is not None for text in longest), dtype=bool, count=count)
        telling = np.log1p(np.minimum(lengths, LONG)) - asking
        return cls(
            np.fromiter((item.id for item in items), dtype=object, count=count),
            np.ones(count, dtype=bool),
            np.array([*moments(items)], dtype=np.float64),
            np.where(turns, telling, np.log1p(LONG)).astype(np.float32),
            np.fromiter((item.sequence for item in items), dtype=np.int64, count=count),
            _numbered(
                ((item.namespace, item.run) if item.run else item.namespace for item in items), numbers
            ),
        )

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """The rows of several parts, one after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A snapshot of a subtree. A change makes another one, so that a search never sees half a change.

    Removed items leave holes, rows that `columns.live` does not have; after enough changes it is built anew.
    """

    rows: Mapping[Hashable, int]
    """By its id, where each item is."""
    columns: Columns
    groups: Mapping[str, Rows]
    """For each label field, the group of each row: the same text in the same namespace; -1 for none."""
    postings: Postings
    vectors: Vectors
    tokens: TokenTable
    numbers: Mapping[Hashable, int]
    """A number for each namespace and for each group."""
    built: int
    """How many items there were when it was last built, rather than changed."""
    order_matters: bool
    """Whether the order of writing means something, as it was then."""

    @classmethod
    def of(cls, items: Iterable[Item]) -> Corpus:
        """The corpus of these items, in their order of writing.

        Vectors of other dimensions than the newest are left out: one model was taken for another.
        """
        every = sorted(items, key=attrgetter("sequence"))
        sizes = [item.dimensions for item in every]
        dimensions = next(filter(None, reversed(sizes)), 0)
        vectors = [
            item.vectors if size in (0, dimensions) else {} for item, size in zip(every, sizes, strict=True)
        ]
        labels = label_fields([item.fields for item in every])
        numbers: dict[Hashable, int] = {}
        postings = Postings.of(documents(every, labels))
        columns = Columns.of(every, postings.lengths, numbers)
        return cls(
            rows={item.id: row for row, item in enumerate(every)},
            columns=columns,
            groups={name: _groups(name, every, numbers) for name in labels},
            postings=postings,
            vectors=Vectors.of(vectors, dimensions, labels),
            tokens=TokenTable.of(_tokens(every, labels)),
            numbers=numbers,
            built=len(every),
            order_matters=_order_matters(columns, postings),
        )

    def changed(self, *, add: Iterable[Item] = (), remove: Collection[Hashable] = ()) -> Corpus | None:
        """With these items, which replace those of the same id, and without those ids.

        None where so much has changed by now that it has to be built anew: it does not have the texts.
        """
        latest, count, rows = {item.id: item for item in add}, len(self), dict(self.rows)
        added = [*latest.values()]
        gone = [rows.pop(id) for id in {*remove, *latest} if id in rows]
        rows |= {item.id: row for row, item in enumerate(added, count)}
        size = count + len(added)
        few = count < SMALL and count * self.postings.average < CHEAP
        most = self.built if self.postings.average > LONG_TO_READ else self.built // 4
        if few or (size - self.built) + (size - len(rows)) > most:
            return None
        numbers = dict(self.numbers)
        live = np.append(self.columns.live, np.ones(len(added), dtype=bool))
        live[gone] = False
        postings = self.postings.changed(documents(added, self.groups), live)
        columns = Columns.joined([self.columns, Columns.of(added, postings.lengths[count:], numbers)])
        groups = {}
        for name, known in self.groups.items():
            groups[name] = np.append(known, _groups(name, added, numbers))
            groups[name][gone] = -1
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
        """Rows, holes included: the length of every column here and of a mask."""
        return len(self.columns.live)

    @cached_property
    def bytes(self) -> int:
        """About how much memory it takes; also of what became a hole, and of neighbours, found or not."""
        columns = sum(column.nbytes for column in self.columns) + 8 * FARTHEST * len(self)
        groups = sum(column.nbytes for column in self.groups.values())
        named = ID_BYTES * len(self) + NUMBER_BYTES * len(self.numbers)
        return (
            EMPTY_BYTES
            + columns
            + groups
            + named
            + self.postings.bytes
            + self.vectors.bytes
            + self.tokens.bytes
        )

    @cached_property
    def neighbours(self) -> Mapping[int, Rows]:
        """By distance, for each row the row so far on in its namespace (back, if negative), or -1."""
        live = np.flatnonzero(self.columns.live).astype(np.int32)
        rows = live[np.lexsort((self.columns.sequence[live], self.columns.namespace[live]))]
        spaces, found = self.columns.namespace[rows], {}
        for n in range(1, FARTHEST + 1):
            same = spaces[:-n] == spaces[n:]
            before, after = rows[:-n][same], rows[n:][same]
            for distance, here, there in ((n, before, after), (-n, after, before)):
                found[distance] = np.full(len(self), -1, dtype=np.int32)
                found[distance][here] = there
        return found


class JoinedCorpus:
    """The rows of several corpora, one after the other, for the length of one search: what everybody sees is
    held once, and what one user owns beside it.

    Words are weighed by the statistics of all of them together. A namespace lies in one of them as a whole,
    so neighbours and occasions never reach from one into another; what is a label, and whether the order of
    writing means something, each decides for itself.
    """

    def __init__(self, parts: Sequence[Corpus]) -> None:
        self._parts = parts
        self._starts = [*accumulate(map(len, parts[:-1]), initial=0)]
        self.columns = Columns.joined([part.columns for part in parts])
        self.postings = Postings.joined([part.postings for part in parts])
        self.vectors = Vectors.joined([part.vectors for part in parts])
        self.tokens = TokenTable.joined([part.tokens for part in parts])
        self.order_matters = any(part.order_matters for part in parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @cached_property
    def groups(self) -> Mapping[str, Rows]:
        """As those of each corpus; no group is in two of them."""
        first = accumulate((len(part.numbers) for part in self._parts), initial=0)
        return self._in_one([part.groups for part in self._parts], first)

    @cached_property
    def neighbours(self) -> Mapping[int, Rows]:
        """As those of each corpus; none where the order of writing means nothing."""
        return self._in_one(
            [part.neighbours if part.order_matters else {} for part in self._parts], self._starts
        )

    def _in_one(self, every: Sequence[Mapping[Name, Rows]], first: Iterable[int]) -> dict[Name, Rows]:
        """Numbers that each part has for its rows, by name, counted from a first one; -1, none, stays."""
        found: dict[Name, list[Rows]] = {name: [] for its in every for name in its}
        for part, its, start in zip(self._parts, every, first, strict=False):
            for name, column in found.items():
                rows = its.get(name, np.full(len(part), -1, dtype=np.int32))
                column.append(np.where(rows < 0, rows, rows + np.int32(start)))
        return {name: np.concatenate(column) for name, column in found.items()}


AnyCorpus = Corpus | JoinedCorpus


def _numbered(keys: Iterable[Hashable], numbers: dict[Hashable, int]) -> Rows:
    """The number of each key, -1 for None; those that have none yet get the next ones."""
    found = [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array(found, dtype=np.int32)


def _groups(name: str, items: Sequence[Item], numbers: dict[Hashable, int]) -> Rows:
    """The group of each item by its label in a field."""
    labels = ((name, item.namespace, item.fields[name]) if name in item.fields else None for item in items)
    return _numbered(labels, numbers)


def _tokens(items: Sequence[Item], labels: Collection[str]) -> list[bytes]:
    """What is kept of each item's tokens, but for those of labels."""
    return [b"".join(its for name, its in item.tokens.items() if name not in labels) for item in items]


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


def _order_matters(columns: Columns, postings: Postings) -> bool:
    """Whether items next to each other share more words than items far from each other.

    A window of neighbours helps where items follow from one another, as turns of a conversation do,
    and only adds noise where they do not, as in an import in no order.
    """
    count, order = len(columns.live), np.lexsort((columns.sequence, columns.namespace)).astype(np.int32)
    places = np.arange(0, count - 1, max(1, math.ceil(count / SAMPLE)))
    spaces = columns.namespace[order]
    near = places[spaces[places] == spaces[places + 1]]
    if len(near) < FEWEST:
        return False
    here, others = order[near], order[np.append(near + 1, (near + count // 2) % count)]
    next_to, far = np.split(postings.likeness(np.append(here, here), others), 2)
    gains = next_to - far
    error = gains.std() / math.sqrt(len(gains))
    return bool(gains.mean() > CERTAINTY * error > 0)
