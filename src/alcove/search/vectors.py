"""The vectors of a subtree in one matrix, and exact likeness to a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.postings import Rows
from alcove.search.terms import Windows

MOST_BLOCKS = 8
"""Blocks in which a subtree's vectors lie; more take longer to search, and the small ones are made one."""


class _Block(NamedTuple):
    """Vectors side by side: `rows` has the rows with any, in order, and `starts` where each one's begin."""

    matrix: Matrix
    rows: Rows
    starts: Rows

    def after(self, rows: int, vectors: int = 0) -> _Block:
        """The same for rows that come after so many others, in a matrix after so many vectors."""
        return self._replace(rows=self.rows + np.int32(rows), starts=self.starts + np.int32(vectors))


class Vectors:
    """A snapshot: the vectors of so many rows. They lie in several blocks, so that one that is added need not
    copy those that are there, and corpora can be joined as they are.
    """

    def __init__(self, blocks: Sequence[_Block], rows: int) -> None:
        self._blocks, self._rows = blocks, rows
        self.dimensions = max(block.matrix.shape[1] for block in blocks)
        """A block without any vectors may have others than the rest."""

    @classmethod
    def of(cls, vectors: Sequence[Mapping[str, Windows]], dimensions: int) -> Vectors:
        """From each row's vectors by field."""
        counts = np.array([sum(map(len, fields.values())) for fields in vectors], dtype=np.int32)
        rows = np.flatnonzero(counts).astype(np.int32)
        starts = (np.cumsum(counts, dtype=np.int32) - counts)[rows]
        every = b"".join(row for fields in vectors for part in fields.values() for row in part)
        matrix = np.frombuffer(every, dtype=np.float32).reshape(int(counts.sum()), dimensions)
        return cls([_Block(matrix, rows, starts)], len(vectors))

    @classmethod
    def joined(cls, parts: Sequence[Vectors]) -> Vectors:
        """Those of several parts, the rows of each after the rows of the one before."""
        blocks, rows = [], 0
        for part in parts:
            blocks += [block.after(rows) for block in part._blocks]
            rows += part._rows
        return cls(blocks, rows)

    def extended(self, vectors: Sequence[Mapping[str, Windows]]) -> Vectors:
        """With the vectors of rows after the last."""
        longer = Vectors.joined([self, Vectors.of(vectors, self.dimensions)])
        first, *small = longer._blocks
        if len(small) < MOST_BLOCKS:
            return longer
        ends = accumulate(len(block.matrix) for block in small)
        moved = [block.after(0, end - len(block.matrix)) for block, end in zip(small, ends, strict=True)]
        return Vectors([first, _Block(*map(np.concatenate, zip(*moved, strict=True)))], longer._rows)

    def __len__(self) -> int:
        """How many vectors there are."""
        return sum(len(block.matrix) for block in self._blocks)

    @property
    def bytes(self) -> int:
        """How much memory they take."""
        return sum(part.nbytes for block in self._blocks for part in block)

    def present(self) -> NDArray[np.bool_]:
        """Which rows have any."""
        found = np.zeros(self._rows, dtype=np.bool_)
        for block in self._blocks:
            found[block.rows] = True
        return found

    def at(self, row: int) -> Matrix:
        """Every vector of a row."""
        for matrix, owners, starts in self._blocks:
            place = int(owners.searchsorted(row))
            if place < len(owners) and owners[place] == row:
                end = starts[place + 1] if place + 1 < len(starts) else len(matrix)
                return matrix[starts[place] : end]
        return np.zeros((0, self.dimensions), dtype=np.float32)

    def first(self, rows: Rows) -> Matrix:
        """The first vector of each of some rows; zeros where one has none."""
        first = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        for matrix, owners, starts in self._blocks:
            if not len(owners) or matrix.shape[1] != self.dimensions:
                continue
            places = owners.searchsorted(rows)
            known = owners.take(places, mode="clip") == rows
            if known.all():
                return matrix[starts[places]]  # as it mostly is, at half the cost
            first[known] = matrix[starts[places[known]]]
        return first

    def cosines(self, query: Matrix | None) -> Matrix:
        """The best of each row's vectors against a unit vector, NaN where a row, or the query, has none."""
        best = np.full(self._rows, np.nan, dtype=np.float32)
        for matrix, owners, starts in self._blocks:
            if query is not None and len(owners) and matrix.shape[1] == len(query):
                every = matrix @ query
                if len(every) > len(owners):
                    every = np.maximum.reduceat(every, starts)
                if len(every) == self._rows:
                    return every
                best[owners] = every
        return best
