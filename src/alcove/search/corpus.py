"""One subtree as ranking sees it: vectors, postings and order, held in memory between searches."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from alcove.search.embedders import Matrix
from alcove.search.items import Columns, Item, Labels, ReadItem, label_fields
from alcove.search.order_detection import order_matters
from alcove.search.postings import Postings, Rows
from alcove.search.terms import Reader
from alcove.search.vectors import Vectors

K1, B = 0.9, 0.4
"""BM25's usual settings for passages."""
LONG = 30
"""Terms; a text is not more telling for being longer than that."""
EMPTY_BYTES = 20_000
"""What a corpus takes without any item, so that empty ones do not pile up."""
SMALL = 64
"""Rows below which a corpus is always built anew: that takes a few milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A snapshot of a subtree. A change makes another one, so that a search never sees half a change.

    Removed items leave holes, rows that `columns.live` does not have; after enough changes it is built anew.
    """

    reader: Reader
    reads: Sequence[ReadItem | None]
    rows: Mapping[Hashable, int]
    """Where each item is, by its id."""
    columns: Columns
    content: Postings
    """The terms of the fields that tell items apart."""
    labels: Labels
    vectors: Vectors
    speakers: Mapping[str, Rows]
    """Who says which rows."""
    build: Build
    namespaces: Mapping[Hashable, int]
    item_bytes: int

    @classmethod
    def of(cls, items: Iterable[Item], *, dimensions: int, reader: Reader | None = None) -> Corpus:
        """The corpus of these items, in their order of writing."""
        reader = reader or Reader()
        return cls._built([ReadItem.of(item, reader) for item in items], dimensions, reader)

    @classmethod
    def _built(cls, reads: list[ReadItem], dimensions: int, reader: Reader) -> Corpus:
        reads.sort(key=lambda read: read.item.sequence)
        names = label_fields([read.item.fields for read in reads])
        namespaces: dict[Hashable, int] = {}
        columns = Columns.of(reads, namespaces)
        content = Postings.of((read.content(names) for read in reads), k1=K1, b=B)
        return cls(
            reader=reader,
            reads=reads,
            rows={read.item.id: row for row, read in enumerate(reads)},
            columns=columns,
            content=content,
            labels=Labels.of(names, reads),
            vectors=Vectors.of([read.item.vectors for read in reads], dimensions),
            speakers=_speakers({}, reads, 0),
            build=Build(reads, names, content, columns),
            namespaces=namespaces,
            item_bytes=sum(read.bytes for read in reads),
        )

    def changed(self, *, add: Iterable[Item] = (), remove: Collection[Hashable] = ()) -> Corpus:
        """With these items, which replace those of the same id, and without those ids."""
        latest = {item.id: item for item in add}
        added = [ReadItem.of(item, self.reader) for item in latest.values()]
        gone = [row for id in {*remove, *latest} if (row := self.rows.get(id)) is not None]
        holes = {row: read for row in gone if (read := self.reads[row])}
        changes = len(self) - len(self.build.reads) + len(added) + self._holes + len(holes)
        if len(self) < SMALL or changes > len(self.build.reads) // 4:
            kept = [read for row, read in enumerate(self.reads) if read and row not in holes]
            return Corpus._built([*kept, *added], self.vectors.dimensions, self.reader)
        names = self.labels.names
        reads = [*self.reads, *added]
        rows = dict(self.rows)
        for row, read in holes.items():
            del rows[read.item.id]
            reads[row] = None
        rows.update((read.item.id, row) for row, read in enumerate(added, len(self)))
        namespaces = dict(self.namespaces)
        return Corpus(
            reader=self.reader,
            reads=reads,
            rows=rows,
            columns=self.columns.changed(Columns.of(added, namespaces), holes),
            content=self.content.changed(
                [read.content(names) for read in added],
                {row: read.content(names) for row, read in holes.items()},
            ),
            labels=self.labels.changed(added, holes),
            vectors=self.vectors.extended([read.item.vectors for read in added]),
            speakers=_speakers(self.speakers, added, len(self)),
            build=self.build,
            namespaces=namespaces,
            # What became a hole is still held by what the corpus was built from.
            item_bytes=self.item_bytes + sum(read.bytes for read in added),
        )

    def __len__(self) -> int:
        """Rows, holes included: the length of every column here and of a mask."""
        return len(self.reads)

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return EMPTY_BYTES + self.item_bytes + self.content.bytes + self.labels.postings.bytes

    @property
    def _holes(self) -> int:
        return len(self) - len(self.rows)

    @property
    def order_matters(self) -> bool:
        """Whether the order of writing means something, as it was when the corpus was last built."""
        return self.build.order_matters

    def id(self, row: int) -> Hashable:
        """The id of the item at a row that is no hole."""
        read = self.reads[row]
        if read is None:
            raise IndexError(row)
        return read.item.id

    def item(self, id: Hashable) -> Item | None:
        """The item of an id, if it is here."""
        row = self.rows.get(id)
        read = None if row is None else self.reads[row]
        return read.item if read else None

    @cached_property
    def substance(self) -> Matrix:
        """How telling each text is for itself: a few words more, and no question back."""
        telling = np.log1p(np.minimum(self.content.lengths, LONG)) - self.columns.asking
        return telling.astype(np.float32)

    @cached_property
    def _order(self) -> tuple[Rows, Rows]:
        """The live rows by namespace and sequence, and the namespace of each."""
        rows = np.flatnonzero(self.columns.live).astype(np.int32)
        spaces = self.columns.namespace[rows]
        order = np.lexsort((self.columns.sequence[rows], spaces))
        return rows[order], spaces[order]

    @cached_property
    def _neighbours(self) -> dict[int, Rows]:
        return {}

    def neighbours(self, distance: int) -> Rows:
        """For each row, the row this many places on in its namespace (back, if negative), or -1."""
        found = self._neighbours.get(distance)
        if found is None:
            rows, spaces = self._order
            found = np.full(len(self), -1, dtype=np.int32)
            here, there = slice(0, -abs(distance)), slice(abs(distance), None)
            if distance < 0:
                here, there = there, here
            same = spaces[here] == spaces[there]
            found[rows[here][same]] = rows[there][same]
            self._neighbours[distance] = found
        return found


@dataclass(frozen=True)
class Build:
    """What a corpus was built from, for what is found out once and holds for small changes."""

    reads: Sequence[ReadItem]
    labels: frozenset[str]
    content: Postings
    columns: Columns

    @cached_property
    def order_matters(self) -> bool:
        order = np.lexsort((self.columns.sequence, self.columns.namespace))
        return order_matters(
            lambda place: self.reads[order[place]].content(self.labels),
            self.columns.namespace[order],
            self.content.frequency,
        )


def _speakers(known: Mapping[str, Rows], reads: Sequence[ReadItem], first: int) -> dict[str, Rows]:
    found: dict[str, list[int]] = {}
    for row, read in enumerate(reads, first):
        if read.speaker:
            found.setdefault(read.speaker, []).append(row)
    more = {name: np.array(rows, dtype=np.int32) for name, rows in found.items()}
    joined = {name: np.concatenate([known[name], more[name]]) for name in known.keys() & more.keys()}
    return {**known, **more, **joined}
