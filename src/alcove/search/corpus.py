"""One subtree as ranking sees it: vectors, postings and order, held in memory between searches."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.postings import JoinedLabels, JoinedPostings, Labels, Postings, Rows, label_fields
from alcove.search.terms import Item
from alcove.search.vectors import Vectors

Mask = NDArray[np.bool_]
B = 0.4
"""BM25's usual setting for passages."""
LONG = 30
"""Terms; a text is not more telling for being longer than that."""
EMPTY_BYTES = 20_000
"""What a corpus takes without any item, so that empty ones do not pile up."""
SMALL = 64
"""Rows below which a corpus is always built anew: that takes a few milliseconds."""
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

    live: Mask
    asking: Mask
    at: NDArray[np.float64]
    """NaN where the time is not known."""
    sequence: NDArray[np.int64]
    namespace: Rows
    """A number for each namespace."""

    @classmethod
    def of(cls, items: Sequence[Item], namespaces: dict[Hashable, int]) -> Columns:
        """The columns of items; namespaces without a number get the next ones."""
        spaces = [namespaces.setdefault(item.namespace, len(namespaces)) for item in items]
        return cls(
            np.ones(len(items), dtype=bool),
            np.array([item.asks for item in items], dtype=bool),
            np.array([np.nan if item.at is None else item.at for item in items], dtype=np.float64),
            np.array([item.sequence for item in items], dtype=np.int64),
            np.array(spaces, dtype=np.int32),
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

    items: Sequence[Item | None]
    rows: Mapping[Hashable, int]
    """Where each item is, by its id."""
    columns: Columns
    content: Postings
    """The terms of the fields that tell items apart."""
    labels: Labels
    speakers: Postings
    """The words of the names of those who say something."""
    vectors: Vectors
    namespaces: Mapping[Hashable, int]
    item_bytes: int
    built: int
    """How many items there were when it was last built, rather than changed."""
    order_matters: bool
    """Whether the order of writing means something, as it was then."""

    @classmethod
    def of(cls, items: Iterable[Item]) -> Corpus:
        """The corpus of these items, in their order of writing.

        Vectors of other dimensions than the newest are left out: one model was taken for another.
        """
        every = sorted(items, key=lambda item: item.sequence)
        dimensions = next((item.dimensions for item in reversed(every) if item.dimensions), 0)
        every = [each if each.dimensions in (0, dimensions) else replace(each, vectors={}) for each in every]
        names = label_fields([item.fields for item in every])
        namespaces: dict[Hashable, int] = {}
        columns = Columns.of(every, namespaces)
        documents = [item.content(names) for item in every]
        content = Postings.of(documents, b=B)
        return cls(
            items=every,
            rows={item.id: row for row, item in enumerate(every)},
            columns=columns,
            content=content,
            labels=Labels.of(names, every),
            speakers=Postings.of(map(_speaker, every)),
            vectors=Vectors.of([item.vectors for item in every], dimensions),
            namespaces=namespaces,
            item_bytes=sum(item.bytes for item in every),
            built=len(every),
            order_matters=_order_matters(documents, columns, content),
        )

    def changed(self, *, add: Iterable[Item] = (), remove: Collection[Hashable] = ()) -> Corpus:
        """With these items, which replace those of the same id, and without those ids."""
        latest = {item.id: item for item in add}
        added, count = [*latest.values()], len(self)
        gone = [row for id in {*remove, *latest} if (row := self.rows.get(id)) is not None]
        holes = {row: item for row in gone if (item := self.items[row])}
        items, rows = [*self.items, *added], dict(self.rows)
        for row, item in holes.items():
            del rows[item.id]
            items[row] = None
        rows.update((item.id, row) for row, item in enumerate(added, count))
        every_hole = len(items) - len(rows)
        if count < SMALL or len(items) - self.built + every_hole > self.built // 4:
            return Corpus.of(filter(None, items))
        names, namespaces = self.labels.names, dict(self.namespaces)
        columns = Columns.joined([self.columns, Columns.of(added, namespaces)])
        columns.live[gone] = False
        return replace(
            self,
            items=items,
            rows=rows,
            columns=columns,
            content=self.content.changed(
                [item.content(names) for item in added],
                {row: item.content(names) for row, item in holes.items()},
            ),
            labels=self.labels.changed(added, holes),
            speakers=self.speakers.changed(
                map(_speaker, added), {row: _speaker(item) for row, item in holes.items()}
            ),
            vectors=self.vectors.extended([item.vectors for item in added]),
            namespaces=namespaces,
            # What became a hole still has its rows here and its vectors in the matrix.
            item_bytes=self.item_bytes + sum(item.bytes for item in added),
        )

    def __len__(self) -> int:
        """Rows, holes included: the length of every column here and of a mask."""
        return len(self.items)

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        lists = self.content.bytes + self.labels.postings.bytes + self.speakers.bytes
        return EMPTY_BYTES + self.item_bytes + lists

    def id(self, row: int) -> Hashable:
        """The id of the item at a row that is no hole."""
        if (item := self.items[row]) is None:
            raise IndexError(row)
        return item.id

    def item(self, id: Hashable) -> Item | None:
        """The item of an id, if it is here."""
        return self.items[self.rows[id]] if id in self.rows else None

    @cached_property
    def substance(self) -> Matrix:
        """How telling each text is for itself: a few words more, and no question back."""
        telling = np.log1p(np.minimum(self.content.lengths, LONG)) - self.columns.asking
        return telling.astype(np.float32)

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
        self._starts = starts = [*accumulate(map(len, parts[:-1]), initial=0)]
        self.columns = Columns.joined([part.columns for part in parts])
        self.content = JoinedPostings([part.content for part in parts], starts)
        self.labels = JoinedLabels([part.labels for part in parts], starts)
        self.speakers = JoinedPostings([part.speakers for part in parts], starts)
        self.vectors = Vectors.joined([part.vectors for part in parts], starts)
        self.substance = np.concatenate([part.substance for part in parts])
        self.order_matters = any(part.order_matters for part in parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def id(self, row: int) -> Hashable:
        """The id of the item at a row that is no hole."""
        part = bisect_right(self._starts, row) - 1
        return self._parts[part].id(row - self._starts[part])

    @cached_property
    def neighbours(self) -> Mapping[int, Rows]:
        """As those of each corpus; none where the order of writing means nothing."""
        found = {}
        for distance in (n for n in range(-FARTHEST, FARTHEST + 1) if n):
            near = [
                part.neighbours[distance] if part.order_matters else np.full(len(part), -1, dtype=np.int32)
                for part in self._parts
            ]
            moved = [
                np.where(rows < 0, rows, rows + np.int32(start))
                for rows, start in zip(near, self._starts, strict=True)
            ]
            found[distance] = np.concatenate(moved)
        return found


def _speaker(item: Item) -> dict[str, int]:
    """The words of the name of who says it, as terms of a document."""
    return dict.fromkeys((item.speaker or "").split(), 1)


def _order_matters(documents: Sequence[Mapping[str, int]], columns: Columns, content: Postings) -> bool:
    """Whether items next to each other share more words than items far from each other.

    A window of neighbours helps where items follow from one another, as turns of a conversation do,
    and only adds noise where they do not, as in an import in no order.
    """
    count, order = len(documents), np.lexsort((columns.sequence, columns.namespace))

    @cache
    def weight(term: str) -> float:
        return math.log(count / min(len(content.held(term)[0]), count)) ** 2

    @cache
    def length(row: int) -> float:
        return sum(map(weight, documents[row]))

    def likeness(here: int, there: int) -> float:
        """Cosine of the two items' rare words."""
        shared = sum(map(weight, documents[here].keys() & documents[there].keys()))
        return shared / math.sqrt(length(here) * length(there)) if shared else 0.0

    places = np.arange(0, count - 1, max(1, math.ceil(count / SAMPLE)))
    spaces = columns.namespace[order]
    near = places[spaces[places] == spaces[places + 1]]
    if len(near) < FEWEST:
        return False
    triples = zip(
        order[near].tolist(),
        order[near + 1].tolist(),
        order[(near + count // 2) % count].tolist(),
        strict=True,
    )
    gains = np.array(
        [likeness(one, following) - likeness(one, stranger) for one, following, stranger in triples]
    )
    error = gains.std() / math.sqrt(len(gains))
    return bool(gains.mean() > CERTAINTY * error > 0)
