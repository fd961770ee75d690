"""One subtree as ranking sees it: vectors, postings and order, held in memory between searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from alcove.search.coherence import coherent
from alcove.search.embedders import Matrix
from alcove.search.labels import Labels, label_fields
from alcove.search.postings import Postings, Rows
from alcove.search.terms import Reader, asks, speaker

Mask = NDArray[np.bool_]


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
class _Read:
    """An item after its texts were read once, so that an index can be rebuilt without reading them again."""

    item: Item
    terms: dict[str, Counter[str]]
    speaker: str | None
    asks: bool

    @classmethod
    def of(cls, item: Item, reader: Reader) -> _Read:
        longest = max(item.fields.values(), key=len, default="")
        return cls(
            item,
            {name: reader.counts(text) for name, text in item.fields.items()},
            next((name for name in map(speaker, item.fields.values()) if name), None),
            asks(longest),
        )


class Corpus:
    """A snapshot of a subtree. A change makes another one, so that a search never sees half a change.

    Removed items leave holes, which `live` tells from items; enough changes, and it is built anew.
    """

    def __init__(
        self,
        reads: Sequence[_Read | None],
        labels: Labels,
        content: Postings,
        vectors: Vectors,
        *,
        reader: Reader,
        built: int,
    ) -> None:
        self._reads, self.reader, self._built = reads, reader, built
        self.labels, self.content, self.vectors = labels, content, vectors

    @classmethod
    def of(cls, items: Iterable[Item], *, dimensions: int, reader: Reader = Reader()) -> Corpus:  # noqa: B008
        """The corpus of these items, in their order of writing."""
        return cls._build([_Read.of(item, reader) for item in items], dimensions, reader)

    @classmethod
    def _build(cls, reads: list[_Read], dimensions: int, reader: Reader) -> Corpus:
        reads.sort(key=lambda read: read.item.sequence)
        names = label_fields([read.item.fields for read in reads])
        return cls(
            reads,
            Labels.of(
                names,
                [read.item.fields for read in reads],
                [read.item.namespace for read in reads],
                reader,
            ),
            Postings.of(_content(read, names) for read in reads),
            Vectors.of([read.item.vectors for read in reads], dimensions),
            reader=reader,
            built=len(reads),
        )

    def changed(self, *, add: Iterable[Item] = (), remove: Collection[Hashable] = ()) -> Corpus:
        """With these items, which replace those of the same id, and without those ids."""
        added = [_Read.of(item, self.reader) for item in add]
        gone = {*remove, *(read.item.id for read in added)}
        holes = {row: read for row, read in enumerate(self._reads) if read and read.item.id in gone}
        changes = len(self._reads) - self._built + len(added) + len(holes)
        if changes > max(64, self._built // 4) or len(self._reads) < 256:
            kept = [read for row, read in enumerate(self._reads) if read and row not in holes]
            return Corpus._build([*kept, *added], self.vectors.dimensions, self.reader)
        names = self.labels.names
        reads = [None if row in holes else read for row, read in enumerate(self._reads)]
        fields = [read.item.fields for read in added]
        return Corpus(
            [*reads, *added],
            self.labels.extended(fields, [read.item.namespace for read in added], without=holes),
            self.content.changed(
                [_content(read, names) for read in added],
                {row: _content(read, names) for row, read in holes.items()},
            ),
            self.vectors.extended([read.item.vectors for read in added]),
            reader=self.reader,
            built=self._built - len(holes),
        )

    def __len__(self) -> int:
        """Rows, holes included: the length of every column here and of a mask."""
        return len(self._reads)

    @cached_property
    def ids(self) -> list[Hashable | None]:
        return [read.item.id if read else None for read in self._reads]

    @cached_property
    def live(self) -> Mask:
        return np.fromiter((read is not None for read in self._reads), dtype=bool, count=len(self))

    @cached_property
    def asking(self) -> Mask:
        return np.fromiter((bool(read and read.asks) for read in self._reads), dtype=bool, count=len(self))

    @cached_property
    def at(self) -> NDArray[np.float64]:
        """When each was written, NaN where that is not known."""
        times = [read.item.at if read and read.item.at is not None else np.nan for read in self._reads]
        return np.array(times, dtype=np.float64)

    @cached_property
    def speakers(self) -> dict[str, Rows]:
        """Who says which rows."""
        found: dict[str, list[int]] = {}
        for row, read in enumerate(self._reads):
            if read and read.speaker:
                found.setdefault(read.speaker, []).append(row)
        return {name: np.array(rows, dtype=np.int32) for name, rows in found.items()}

    @cached_property
    def order(self) -> tuple[Rows, Rows]:
        """The live rows by namespace and sequence, and where each namespace begins in that."""
        spaces: dict[Hashable, int] = {}
        rows = [(row, read.item) for row, read in enumerate(self._reads) if read]
        codes = [spaces.setdefault(item.namespace, len(spaces)) for _, item in rows]
        sequences = np.array([item.sequence for _, item in rows], dtype=np.int64)
        order = np.lexsort((sequences, np.array(codes, dtype=np.int64)))
        ordered = np.array(codes, dtype=np.int32)[order]
        return np.array([row for row, _ in rows], dtype=np.int32)[order], ordered

    def neighbours(self, distance: int) -> Rows:
        """For each row, the row this many places on in its namespace (back, if negative), or -1."""
        found = self._neighbours.get(distance)
        if found is None:
            rows, spaces = self.order
            found = np.full(len(self), -1, dtype=np.int32)
            here, there = slice(0, -abs(distance)), slice(abs(distance), None)
            if distance < 0:
                here, there = there, here
            same = spaces[here] == spaces[there]
            found[rows[here][same]] = rows[there][same]
            self._neighbours[distance] = found
        return found

    @cached_property
    def _neighbours(self) -> dict[int, Rows]:
        return {}

    @cached_property
    def coherent(self) -> bool:
        """Whether neighbours are about the same things: only then does a window say more than its items."""
        rows, spaces = self.order
        documents = [_content(read, self.labels.names) if read else {} for read in self._reads]
        return coherent([documents[row] for row in rows], spaces)


def _content(read: _Read, labels: Collection[str]) -> Mapping[str, int]:
    """The terms of the fields that tell items apart."""
    counts = [terms for name, terms in read.terms.items() if name not in labels]
    return counts[0] if len(counts) == 1 else sum(counts, Counter())


class Vectors:
    """The vectors of all rows in one matrix, a row's own side by side."""

    def __init__(self, matrix: Matrix, owners: Rows, rows: int) -> None:
        self.matrix, self._owners, self._rows = matrix, owners, rows

    @property
    def dimensions(self) -> int:
        return self.matrix.shape[1]

    @classmethod
    def of(cls, vectors: Sequence[Mapping[str, Matrix]], dimensions: int) -> Vectors:
        empty = cls(np.zeros((0, dimensions), dtype=np.float32), np.zeros(0, dtype=np.int32), 0)
        return empty.extended(vectors)

    def extended(self, vectors: Sequence[Mapping[str, Matrix]]) -> Vectors:
        parts = [np.atleast_2d(part) for fields in vectors for part in fields.values()]
        counts = [sum(len(np.atleast_2d(part)) for part in fields.values()) for fields in vectors]
        owners = np.repeat(np.arange(self._rows, self._rows + len(counts), dtype=np.int32), counts)
        return Vectors(
            np.concatenate([self.matrix, *parts]).astype(np.float32, copy=False),
            np.concatenate([self._owners, owners]),
            self._rows + len(counts),
        )

    @cached_property
    def _starts(self) -> tuple[Rows, Rows]:
        owners, starts = np.unique(self._owners, return_index=True)
        return owners, starts.astype(np.int32)

    def cosines(self, query: Matrix) -> Matrix:
        """The best of each row's vectors against a unit vector, NaN where a row has none."""
        owners, starts = self._starts
        every = self.matrix @ query
        if len(owners) == self._rows == len(every):
            return every
        best = np.full(self._rows, np.nan, dtype=np.float32)
        if len(owners):
            best[owners] = np.maximum.reduceat(every, starts)
        return best
