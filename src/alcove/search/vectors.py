"""The vectors of a corpus, and how similar each is to a query: exact, without an approximate index."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix

MAX_INT16 = 32767
"""The largest number of each vector becomes this; a cosine is off by about 0.00001 for it."""
SLICE_ROWS = 256
"""Vectors that are converted to floats at a time: few enough for the processor's cache."""
CENTRE_PRIOR = 50
"""Vectors of which the mean is still half a matter of chance, and counts half."""
MAX_BLOCKS = 8
"""With more blocks a search takes longer, so the small ones are merged."""

Rows: TypeAlias = "NDArray[np.int32]"
Mask: TypeAlias = "NDArray[np.bool_]"
FieldVectors: TypeAlias = "Mapping[str, Matrix | Sequence[bytes]]"
"""By field, a row of 32-bit floats for each window of its text."""


class Int16Matrix:
    """A matrix in 16-bit integers, with a scale for each row: half the memory of floats."""

    def __init__(self, numbers: NDArray[np.int16], scales: Matrix) -> None:
        self._numbers = numbers
        self._scales = scales
        self.dimensions = numbers.shape[1]

    @classmethod
    def of(cls, vectors: Matrix) -> Int16Matrix:
        """Rounds vectors; each keeps its exact length, so that equal ones have a cosine of 1."""
        largest = np.maximum(vectors.max(axis=1, initial=0), -vectors.min(axis=1, initial=0))
        scales = np.maximum(largest / np.float32(MAX_INT16), np.finfo(np.float32).tiny)
        numbers = np.empty(vectors.shape, dtype=np.int16)
        for rows in row_slices(len(vectors)):
            rounded = np.rint(vectors[rows] / scales[rows, np.newaxis])
            numbers[rows] = rounded
            lengths = np.linalg.norm(rounded, axis=1)
            np.divide(np.linalg.norm(vectors[rows], axis=1), lengths, out=scales[rows], where=lengths > 0)
        return cls(numbers, scales)

    @classmethod
    def concatenate(cls, parts: Sequence[Int16Matrix]) -> Int16Matrix:
        numbers, scales = zip(*((part._numbers, part._scales) for part in parts), strict=True)
        return cls(np.concatenate(numbers), np.concatenate(scales))

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def nbytes(self) -> int:
        return self._numbers.nbytes + self._scales.nbytes

    def __getitem__(self, rows: slice | Rows | list[int]) -> Matrix:
        floats: Matrix = self._numbers[rows] * self._scales[rows, np.newaxis]
        return floats

    def __matmul__(self, other: Matrix) -> Matrix:
        count = len(self._numbers)
        product = np.empty((count, *other.shape[1:]), dtype=np.float32)
        for rows in row_slices(count):
            np.matmul(self._numbers[rows].astype(np.float32), other, out=product[rows])
        product.T[...] *= self._scales
        return product

    def sum(self, mask: Mask) -> Matrix:
        """The sum of the rows of a mask."""
        weights, total = self._scales * mask, np.zeros(self.dimensions, dtype=np.float32)
        for rows in row_slices(len(self)):
            total += weights[rows] @ self._numbers[rows].astype(np.float32)
        return total


def row_slices(count: int) -> list[slice]:
    """All rows, some at a time."""
    return [slice(start, start + SLICE_ROWS) for start in range(0, count, SLICE_ROWS)]


class _Block(NamedTuple):
    """The vectors of some rows, one row after the other."""

    matrix: Int16Matrix
    rows: Rows
    """The rows that have vectors, in order."""
    starts: Rows
    """For each of them, the first of its vectors."""
    is_content: Mask
    """Whether a vector is of a text, and not of a label that many rows share."""

    def shifted(self, rows: int, vectors: int = 0) -> _Block:
        """The same block after other rows, or in a matrix after other vectors."""
        return self._replace(rows=self.rows + np.int32(rows), starts=self.starts + np.int32(vectors))


class _Centre(NamedTuple):
    """The mean of all vectors, and how those of one block lie to it."""

    mean: Matrix
    products: Matrix
    """The product of each vector with the mean."""
    distances: Matrix


class Vectors:
    """A snapshot of the vectors of a corpus.

    They are in several blocks, so that adding vectors or joining corpora copies none of those already there.
    """

    def __init__(
        self,
        blocks: Sequence[_Block],
        row_count: int,
        live: Mask | None = None,
        parts: Sequence[Vectors] = (),
        mean: Matrix | None = None,
    ) -> None:
        """`live`: the rows that were not removed, None if none was. `parts`: the vectors that were joined.
        `mean`: that of other vectors, to be used instead of the mean of these."""
        self._blocks, self._row_count, self._live, self._parts = blocks, row_count, live, parts
        self._mean = mean
        self.dimensions = max(block.matrix.dimensions for block in blocks)
        """A block without any vectors may have others."""

    @classmethod
    def of(cls, vectors: Sequence[FieldVectors], dimensions: int, labels: Collection[str] = ()) -> Vectors:
        """The vectors of each row by field; fields in `labels` are labels."""
        counts = np.array([sum(map(len, fields.values())) for fields in vectors], dtype=np.int32)
        rows = np.flatnonzero(counts).astype(np.int32)
        starts = (np.cumsum(counts, dtype=np.int32) - counts)[rows]
        windows = [(name, row) for fields in vectors for name, part in fields.items() for row in part]
        floats = np.frombuffer(b"".join(row for _, row in windows), dtype=np.float32)
        is_content = np.fromiter(
            (name not in labels for name, _ in windows), dtype=np.bool_, count=len(windows)
        )
        matrix = Int16Matrix.of(floats.reshape(len(windows), dimensions))
        return cls([_Block(matrix, rows, starts, is_content)], len(vectors))

    @classmethod
    def concatenate(cls, parts: Sequence[Vectors]) -> Vectors:
        """The rows of several parts, one part after the other."""
        blocks, row_count = [], 0
        for part in parts:
            blocks += [block.shifted(row_count) for block in part._blocks]
            row_count += part._row_count
        return cls(blocks, row_count, parts=parts)

    def changed(self, vectors: Sequence[FieldVectors], live: Mask, labels: Collection[str] = ()) -> Vectors:
        """With the vectors of new rows; `live` says which of all rows are not removed."""
        longer = Vectors.concatenate([self, Vectors.of(vectors, self.dimensions, labels)])
        first, *small = longer._blocks
        if len(small) >= MAX_BLOCKS:
            starts = accumulate((len(block.matrix) for block in small), initial=0)
            shifted = [block.shifted(0, start) for block, start in zip(small, starts, strict=False)]
            matrices, *columns = zip(*shifted, strict=True)
            small = [_Block(Int16Matrix.concatenate(matrices), *map(np.concatenate, columns))]
        return Vectors([first, *small], longer._row_count, live, mean=self._mean)

    def without_vectors(self) -> Vectors:
        """The same rows and the same mean, but no vectors."""
        empty = Vectors.of([{}] * self._row_count, self.dimensions)
        return Vectors(empty._blocks, self._row_count, mean=self._centres[0].mean)

    def __len__(self) -> int:
        """How many vectors there are."""
        return sum(len(block.matrix) for block in self._blocks)

    @property
    def bytes(self) -> int:
        """The memory they take, with their products and distances to the mean."""
        return sum(part.nbytes for block in self._blocks for part in block) + 8 * len(self)

    @cached_property
    def has_vectors(self) -> Mask:
        """Whether each row has vectors."""
        mask = np.zeros(self._row_count, dtype=np.bool_)
        for block in self._blocks:
            mask[block.rows] = True
        return mask

    def of_row(self, row: int) -> Matrix:
        """All vectors of a row."""
        for matrix, rows, starts, _ in self._blocks:
            place = int(rows.searchsorted(row))
            if place < len(rows) and rows[place] == row:
                end = starts[place + 1] if place + 1 < len(starts) else len(matrix)
                return matrix[starts[place] : end]
        return np.zeros((0, self.dimensions), dtype=np.float32)

    def compare(self, query: Matrix | None, *, centred: bool = False) -> tuple[Matrix, Matrix]:
        """Each row's best cosine with a unit vector, and its best as seen from the mean if `centred`.

        NaN where the row or the query has no vector. What all texts of a room have in common, such as a name
        in each of them, says nothing about any; without the mean it does not count.
        """
        cosines = np.full(self._row_count, np.nan, dtype=np.float32)
        from_mean = cosines.copy()
        for n, (matrix, rows, starts, is_content) in enumerate(self._blocks):
            if query is None or not len(rows) or matrix.dimensions != len(query):
                continue
            has_one_each = len(is_content) == len(rows)
            products = matrix @ query
            cosines[rows] = products if has_one_each else np.maximum.reduceat(products, starts)
            if centred:
                mean, mean_products, distances = self._centres[n]
                direction = query - mean
                products = products - mean_products - np.float32(direction @ mean)
                products /= distances * np.float32(max(math.sqrt(direction @ direction), 1e-6))
                products[~is_content] = -1
                from_mean[rows] = products if has_one_each else np.maximum.reduceat(products, starts)
        return cosines, from_mean

    @cached_property
    def _centres(self) -> list[_Centre]:
        """For each block, how its vectors lie to the mean of all live ones, or of those of its part."""
        if self._parts:
            return [centre for part in self._parts for centre in part._centres]
        mean = self._live_mean() if self._mean is None else self._mean
        return [*self._compare_with(mean)]

    def _live_mean(self) -> Matrix:
        total, count = np.zeros(self.dimensions, dtype=np.float64), 0
        for matrix, rows, starts, is_content in self._blocks:
            if len(rows) and matrix.dimensions == self.dimensions:
                mask = is_content
                if self._live is not None:
                    mask = mask & np.repeat(self._live[rows], np.diff(np.append(starts, len(matrix))))
                total += matrix.sum(mask)
                count += int(np.count_nonzero(mask))
        return (total / max(count + CENTRE_PRIOR, 1)).astype(np.float32)

    def _compare_with(self, mean: Matrix) -> Iterator[_Centre]:
        square = mean @ mean
        for block in self._blocks:
            is_comparable = block.matrix.dimensions == self.dimensions
            products = block.matrix @ mean if is_comparable else np.zeros(len(block.matrix), dtype=np.float32)
            yield _Centre(mean, products, np.sqrt(np.maximum(1 - 2 * products + square, 1e-6)))
