"""Many vectors in 16-bit whole numbers: half the memory of floats, for a little more time to compare them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix

LARGEST = 32767
"""What the largest number of each vector becomes; a cosine is off by 0.00001 or so for it."""
AT_ONCE = 256
"""Vectors that are floats at a time: few enough for the processor's cache."""


class WholeNumbers:
    """A matrix with a vector in each row; what is taken out of it is floats again."""

    def __init__(self, numbers: NDArray[np.int16], steps: Matrix) -> None:
        self._numbers = numbers
        self._steps = steps
        """What 1 is worth in each vector."""
        self.dimensions = numbers.shape[1]

    @classmethod
    def of(cls, vectors: Matrix) -> WholeNumbers:
        """The nearest to these, each as long as it was: what is the same as a question has a cosine of 1."""
        sizes = np.maximum(vectors.max(axis=1, initial=0), -vectors.min(axis=1, initial=0))
        steps = np.maximum(sizes / np.float32(LARGEST), np.finfo(np.float32).tiny)
        numbers = np.empty(vectors.shape, dtype=np.int16)
        for some in row_slices(len(vectors)):
            rounded = np.rint(vectors[some] / steps[some, np.newaxis])
            numbers[some] = rounded
            lengths = np.linalg.norm(rounded, axis=1)
            np.divide(np.linalg.norm(vectors[some], axis=1), lengths, out=steps[some], where=lengths > 0)
        return cls(numbers, steps)

    @classmethod
    def joined(cls, parts: Sequence[WholeNumbers]) -> WholeNumbers:
        """The vectors of each part after those of the one before."""
        return cls(
            np.concatenate([part._numbers for part in parts]), np.concatenate([part._steps for part in parts])
        )

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self._numbers.nbytes + self._steps.nbytes

    def __getitem__(self, rows: slice | NDArray[np.int32] | list[int]) -> Matrix:
        found: Matrix = self._numbers[rows] * self._steps[rows, np.newaxis]
        return found

    def __matmul__(self, other: Matrix) -> Matrix:
        found = np.empty((len(self), *other.shape[1:]), dtype=np.float32)
        for some in row_slices(len(self)):
            np.matmul(self._numbers[some].astype(np.float32), other, out=found[some])
        found.T[...] *= self._steps
        return found

    def total(self, counted: NDArray[np.bool_]) -> Matrix:
        """The sum of those vectors that are counted."""
        weights, total = self._steps * counted, np.zeros(self.dimensions, dtype=np.float32)
        for some in row_slices(len(self)):
            total += weights[some] @ self._numbers[some].astype(np.float32)
        return total


def row_slices(count: int) -> Iterator[slice]:
    """All rows, a few at a time."""
    return (slice(start, start + AT_ONCE) for start in range(0, count, AT_ONCE))
