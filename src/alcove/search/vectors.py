"""The vectors of a subtree in one matrix, and exact likeness to a question."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from alcove.search.embedders import Matrix
from alcove.search.postings import Rows


class _Buffer:
    """Room for more vectors than are used, so that an addition need not copy what is there."""

    def __init__(self, vectors: Matrix) -> None:
        self.room = np.empty((len(vectors) + len(vectors) // 4 + 16, vectors.shape[1]), dtype=np.float32)
        self.room[: len(vectors)] = vectors
        self.used = len(vectors)
        self._lock = threading.Lock()

    def extend(self, used: int, more: Matrix) -> bool:
        """Writes after the vectors a snapshot has; False if another one did before, or there is no room."""
        with self._lock:
            if self.used != used or used + len(more) > len(self.room):
                return False
            self.room[used : used + len(more)] = more
            self.used += len(more)
            return True


class _Block(NamedTuple):
    """Vectors side by side: `rows` has the rows with any, in order, and `starts` where each one's begin."""

    matrix: Matrix
    rows: Rows
    starts: Rows
    buffer: _Buffer


class Vectors:
    """A snapshot: the vectors of so many rows, in a block for each of the parts that the rows come from."""

    def __init__(self, blocks: Sequence[_Block], rows: int) -> None:
        self._blocks, self._rows = blocks, rows
        self.dimensions = max(block.matrix.shape[1] for block in blocks)
        """A part that has no vectors yet may have others than the rest."""

    @classmethod
    def of(cls, vectors: Sequence[Mapping[str, Matrix]], dimensions: int) -> Vectors:
        """From each row's vectors by field."""
        matrix, rows, starts = _stacked(vectors, dimensions)
        buffer = _Buffer(matrix)
        return cls([_Block(buffer.room[: len(matrix)], rows, starts, buffer)], len(vectors))

    @classmethod
    def joined(cls, parts: Sequence[Vectors], starts: Sequence[int]) -> Vectors:
        """Those of several parts, whose rows begin at `starts`."""
        blocks = [
            block._replace(rows=block.rows + np.int32(start))
            for part, start in zip(parts, starts, strict=True)
            for block in part._blocks
        ]
        return cls(blocks, sum(part._rows for part in parts))

    def extended(self, vectors: Sequence[Mapping[str, Matrix]]) -> Vectors:
        """With the vectors of rows after the last."""
        ((matrix, rows, starts, buffer),) = self._blocks
        more, its_rows, its_starts = _stacked(vectors, self.dimensions)
        if not buffer.extend(len(matrix), more):
            buffer = _Buffer(np.concatenate([matrix, more]))
        rows = np.append(rows, its_rows + np.int32(self._rows))
        starts = np.append(starts, its_starts + np.int32(len(matrix)))
        block = _Block(buffer.room[: len(matrix) + len(more)], rows, starts, buffer)
        return Vectors([block], self._rows + len(vectors))

    def __len__(self) -> int:
        """How many vectors there are."""
        return sum(len(block.matrix) for block in self._blocks)

    def first(self, rows: Rows) -> Matrix:
        """The first vector of each of some rows; zeros where one has none."""
        first = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        for matrix, owners, starts, _ in self._blocks:
            places = np.searchsorted(owners, rows)
            known = places < len(owners)
            known[known] = owners[places[known]] == rows[known]
            if matrix.shape[1] == self.dimensions:
                first[known] = matrix[starts[places[known]]]
        return first

    def cosines(self, query: Matrix) -> Matrix:
        """The best of each row's vectors against a unit vector, NaN where a row has none."""
        best = np.full(self._rows, np.nan, dtype=np.float32)
        for matrix, owners, starts, _ in self._blocks:
            if len(owners) and matrix.shape[1] == len(query):
                every = matrix @ query
                best[owners] = every if len(every) == len(owners) else np.maximum.reduceat(every, starts)
        return best


def _stacked(vectors: Sequence[Mapping[str, Matrix]], dimensions: int) -> tuple[Matrix, Rows, Rows]:
    counts = np.array([sum(map(len, fields.values())) for fields in vectors], dtype=np.int32)
    rows = np.flatnonzero(counts).astype(np.int32)
    starts = (np.cumsum(counts, dtype=np.int32) - counts)[rows]
    parts = [part for fields in vectors for part in fields.values()]
    matrix = np.concatenate([np.zeros((0, dimensions), dtype=np.float32), *parts])
    return matrix.astype(np.float32, copy=False), rows, starts
