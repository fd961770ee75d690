"""The vectors of a subtree in one matrix, and exact likeness to a question."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from alcove.search.embedders import Matrix
from alcove.search.postings import Rows


class _Buffer:
    """Room for more rows than are used, so that an addition need not copy what is there."""

    def __init__(self, rows: Matrix) -> None:
        self.room = np.empty((len(rows) + len(rows) // 4 + 16, rows.shape[1]), dtype=np.float32)
        self.room[: len(rows)] = rows
        self.used = len(rows)
        self._lock = threading.Lock()

    def extend(self, used: int, more: Matrix) -> bool:
        """Writes after the rows a snapshot has; False if another one did before, or there is no room."""
        with self._lock:
            if self.used != used or used + len(more) > len(self.room):
                return False
            self.room[used : used + len(more)] = more
            self.used += len(more)
            return True


class Vectors:
    """A snapshot: the vectors of each row side by side, rows in order."""

    def __init__(self, buffer: _Buffer, owners: Rows, rows: int) -> None:
        self._buffer, self._owners, self._rows = buffer, owners, rows
        self.matrix: Matrix = buffer.room[: len(owners)]

    @classmethod
    def of(cls, vectors: Sequence[Mapping[str, Matrix]], dimensions: int) -> Vectors:
        """From each row's vectors by field."""
        matrix, owners = _stacked(vectors, dimensions)
        return cls(_Buffer(matrix), owners, len(vectors))

    @property
    def dimensions(self) -> int:
        return int(self.matrix.shape[1])

    def extended(self, vectors: Sequence[Mapping[str, Matrix]]) -> Vectors:
        """With the vectors of rows after the last."""
        more, owners = _stacked(vectors, self.dimensions)
        buffer = self._buffer
        if not buffer.extend(len(self.matrix), more):
            buffer = _Buffer(np.concatenate([self.matrix, more]))
        every = np.concatenate([self._owners, owners + np.int32(self._rows)])
        return Vectors(buffer, every, self._rows + len(vectors))

    @cached_property
    def _starts(self) -> tuple[Rows, Rows]:
        owners, starts = np.unique(self._owners, return_index=True)
        return owners, starts.astype(np.int32)

    def first(self, rows: Rows) -> Matrix:
        """The first vector of each of some rows; zeros where one has none."""
        owners, starts = self._starts
        places = np.searchsorted(owners, rows)
        known = places < len(owners)
        known[known] = owners[places[known]] == rows[known]
        first = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        first[known] = self.matrix[starts[places[known]]]
        return first

    def cosines(self, query: Matrix) -> Matrix:
        """The best of each row's vectors against a unit vector, NaN where a row has none."""
        every: Matrix = self.matrix @ query
        owners, starts = self._starts
        if len(owners) == self._rows == len(every):
            return every
        best = np.full(self._rows, np.nan, dtype=np.float32)
        if len(owners):
            best[owners] = np.maximum.reduceat(every, starts)
        return best


def _stacked(vectors: Sequence[Mapping[str, Matrix]], dimensions: int) -> tuple[Matrix, Rows]:
    parts = [np.atleast_2d(part) for fields in vectors for part in fields.values()]
    counts = [sum(len(np.atleast_2d(part)) for part in fields.values()) for fields in vectors]
    empty = np.zeros((0, dimensions), dtype=np.float32)
    owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return np.concatenate([empty, *parts]).astype(np.float32, copy=False), owners
