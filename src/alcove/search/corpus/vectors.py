"""The vectors of a subtree, and the likeness of each to a question: no index in between that misses some."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.search.corpus.int16_matrix import WholeNumbers
from alcove.search.corpus.postings import Rows
from alcove.search.embedders import Matrix
from alcove.search.text.terms import WindowVectors

FEW = 50
"""Vectors of which the middle is still half a matter of chance, and counts half."""
MOST_BLOCKS = 8
"""Blocks in which a subtree's vectors lie; more take longer to search, and the small ones are made one."""


class _Block(NamedTuple):
    """Vectors side by side: `rows` has the rows with any, in order, and `starts` where each one's begin."""

    matrix: WholeNumbers
    rows: Rows
    starts: Rows
    telling: NDArray[np.bool_]
    """Which of them are of a text, and not of a label that many share."""

    def after(self, rows: int, vectors: int = 0) -> _Block:
        """The same for rows that come after so many others, in a matrix after so many vectors."""
        return self._replace(rows=self.rows + np.int32(rows), starts=self.starts + np.int32(vectors))


class _Centre(NamedTuple):
    """The middle of all vectors, and how those of one block lie to it."""

    middle: Matrix
    along: Matrix
    """The product of each vector with the middle."""
    length: Matrix
    """How far each is from it."""


class Vectors:
    """A snapshot: the vectors of so many rows. They lie in several blocks, so that one that is added need not
    copy those that are there, and corpora can be joined as they are.

    `live` tells the rows that were not removed, None where none was; `parts`, of what it is joined; `middle`,
    that of vectors which are held no longer, from which all others are seen.
    """

    def __init__(
        self,
        blocks: Sequence[_Block],
        rows: int,
        live: NDArray[np.bool_] | None = None,
        parts: Sequence[Vectors] = (),
        middle: Matrix | None = None,
    ) -> None:
        self._blocks, self._rows, self._live, self._parts = blocks, rows, live, parts
        self._middle = middle
        self.dimensions = max(block.matrix.dimensions for block in blocks)
        """A block without any vectors may have others than the rest."""

    @classmethod
    def of(
        cls, vectors: Sequence[Mapping[str, WindowVectors]], dimensions: int, labels: Collection[str] = ()
    ) -> Vectors:
        """From each row's vectors by field, some of which are labels."""
        counts = np.array([sum(map(len, fields.values())) for fields in vectors], dtype=np.int32)
        rows = np.flatnonzero(counts).astype(np.int32)
        starts = (np.cumsum(counts, dtype=np.int32) - counts)[rows]
        every = b"".join(row for fields in vectors for part in fields.values() for row in part)
        matrix = np.frombuffer(every, dtype=np.float32).reshape(int(counts.sum()), dimensions)
        fields = ((name, part) for fields in vectors for name, part in fields.items())
        telling = (name not in labels for name, part in fields for _ in part)
        told = np.fromiter(telling, dtype=np.bool_, count=len(matrix))
        return cls([_Block(WholeNumbers.of(matrix), rows, starts, told)], len(vectors))

    @classmethod
    def joined(cls, parts: Sequence[Vectors]) -> Vectors:
        """Those of several parts, the rows of each after the rows of the one before."""
        blocks, rows = [], 0
        for part in parts:
            blocks += [block.after(rows) for block in part._blocks]
            rows += part._rows
        return cls(blocks, rows, parts=parts)

    def changed(
        self,
        vectors: Sequence[Mapping[str, WindowVectors]],
        live: NDArray[np.bool_],
        labels: Collection[str] = (),
    ) -> Vectors:
        """With the vectors of rows after the last; `live` tells which of all rows are not removed."""
        longer = Vectors.joined([self, Vectors.of(vectors, self.dimensions, labels)])
        first, *small = longer._blocks
        if len(small) >= MOST_BLOCKS:
            ends = accumulate(len(block.matrix) for block in small)
            moved = [block.after(0, end - len(block.matrix)) for block, end in zip(small, ends, strict=True)]
            matrices, *others = zip(*moved, strict=True)
            small = [_Block(WholeNumbers.joined(matrices), *map(np.concatenate, others))]
        return Vectors([first, *small], longer._rows, live, middle=self._middle)

    def emptied(self) -> Vectors:
        """No vectors for the same rows, and the middle of those there were for whatever is added."""
        none = Vectors.of([{}] * self._rows, self.dimensions)
        return Vectors(none._blocks, self._rows, middle=self._centres[0].middle)

    def __len__(self) -> int:
        """How many vectors there are."""
        return sum(len(block.matrix) for block in self._blocks)

    @property
    def bytes(self) -> int:
        """How much memory they take, with how they lie to their middle."""
        return sum(part.nbytes for block in self._blocks for part in block) + 8 * len(self)

    def present(self) -> NDArray[np.bool_]:
        """Which rows have any."""
        found = np.zeros(self._rows, dtype=np.bool_)
        for block in self._blocks:
            found[block.rows] = True
        return found

    def of_row(self, row: int) -> Matrix:
        """Every vector of a row."""
        for matrix, owners, starts, _ in self._blocks:
            place = int(owners.searchsorted(row))
            if place < len(owners) and owners[place] == row:
                end = starts[place + 1] if place + 1 < len(starts) else len(matrix)
                return matrix[starts[place] : end]
        return np.zeros((0, self.dimensions), dtype=np.float32)

    def first(self, rows: Rows) -> Matrix:
        """The first vector of each of some rows; zeros where one has none."""
        first = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        for matrix, owners, starts, _ in self._blocks:
            if not len(owners) or matrix.dimensions != self.dimensions:
                continue
            places = owners.searchsorted(rows)
            known = owners.take(places, mode="clip") == rows
            if known.all():
                return matrix[starts[places]]  # as it mostly is, at half the cost
            first[known] = matrix[starts[places[known]]]
        return first

    def cosines(self, query: Matrix | None) -> Matrix:
        """The best of each row's vectors against a unit vector, NaN where a row, or the query, has none."""
        return self.compared(query)[0]

    def compared(self, query: Matrix | None, *, centred: bool = False) -> tuple[Matrix, Matrix]:
        """The best cosine of each row, and the best as seen from the middle of all vectors, if asked for.

        What all texts of a room have in common, such as a name that is in each, says nothing about any.
        """
        best = np.full(self._rows, np.nan, dtype=np.float32)
        seen = best.copy()
        for n, (matrix, owners, starts, telling) in enumerate(self._blocks):
            if query is None or not len(owners) or matrix.dimensions != len(query):
                continue
            every = matrix @ query
            best[owners] = _best(every, owners, starts)
            if centred:
                middle, along, length = self._centres[n]
                asked = query - middle
                products: Matrix = every - along - np.float32(asked @ middle)
                products /= length * np.float32(max(math.sqrt(asked @ asked), 1e-6))
                products[~telling] = -1
                seen[owners] = _best(products, owners, starts)
        return best, seen

    @cached_property
    def _centres(self) -> list[_Centre]:
        """For each block, how its vectors lie to the middle of all that are live, or of their part."""
        if self._parts:
            return [centre for part in self._parts for centre in part._centres]
        if self._middle is not None:
            return [*self._about(self._middle)]
        total, count = np.zeros(self.dimensions, dtype=np.float64), 0
        for matrix, owners, starts, telling in self._blocks:
            if len(owners) and matrix.dimensions == self.dimensions:
                counted = telling
                if self._live is not None:
                    each = np.diff(np.append(starts, len(matrix)))
                    counted = telling & np.repeat(self._live[owners], each)
                total += matrix.total(counted)
                count += int(np.count_nonzero(counted))
        middle = (total / max(count + FEW, 1)).astype(np.float32)
        return [*self._about(middle)]

    def _about(self, middle: Matrix) -> Iterator[_Centre]:
        """How each block lies to a middle."""
        square = middle @ middle
        for block in self._blocks:
            fits = block.matrix.dimensions == self.dimensions
            along = block.matrix @ middle if fits else np.zeros(len(block.matrix), dtype=np.float32)
            yield _Centre(middle, along, np.sqrt(np.maximum(1 - 2 * along + square, 1e-6)))


def _best(every: Matrix, owners: Rows, starts: Rows) -> Matrix:
    """The highest value of each row that has any."""
    return every if len(every) == len(owners) else np.maximum.reduceat(every, starts)
