"""Late interaction: compares the tokens of a query with those of a text one by one.

One vector says what a text is about as a whole. The states that a model has for each token, before it
averages them, say what it is about in each place: they distinguish a text that answers a query from one that
mentions the same things in passing. They need no pass through the model of their own. Only short texts get
them, and each state is reduced: to 64 bytes in the database, and 27 in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix
from alcove.search.vectors import MAX_BLOCKS, SLICE_ROWS, Rows

Packed: TypeAlias = "NDArray[np.uint8]"
"""Two numbers of four bits in each byte: one of the first half, and one of the second."""

DIMENSIONS = 64
"""Of a token in the database."""
MAX_TOKENS = 128
"""Longer texts get no tokens: they contain something like everything somewhere."""
SCALE = 127
MEMORY_DIMENSIONS = 54
"""The first dimensions, which are in memory; the others say the least."""
STEP = 6
"""The value of 1 in four bits: most numbers are below 48, three times the usual value among 64."""


class Reduction:
    """Reduces the token states of one model to small numbers: their products with the directions in which
    they differ most from their mean (`bench/token_reduction.py` finds both).
    """

    def __init__(self, mean: Matrix, directions: Matrix) -> None:
        self._mean, self._directions = mean, directions

    @classmethod
    @cache
    def of_minilm(cls) -> Reduction:
        """The reduction for the built-in model."""
        with (files("alcove.search.embedders") / "minilm_tokens.npy").open("rb") as file:
            rows = np.load(file, allow_pickle=False).astype(np.float32)
        return cls(rows[0], rows[1:].T)

    def reduce(self, states: Matrix) -> bytes:
        """A row for each token of a short text, without the first and the last, which only mark its ends."""
        if not 2 < len(states) <= MAX_TOKENS:
            return b""
        inner = states[1:-1]
        reduced = (inner / np.linalg.norm(inner, axis=1, keepdims=True) - self._mean) @ self._directions
        lengths = np.maximum(np.linalg.norm(reduced, axis=1, keepdims=True), 1e-6)
        return bytes(np.round(reduced / lengths * SCALE).astype(np.int8).tobytes())


def token_matrix(tokens: bytes) -> Matrix | None:
    """Reduced tokens as rows of length 1; None if there are none."""
    rows = np.frombuffer(tokens, dtype=np.int8).reshape(-1, DIMENSIONS)
    return rows.astype(np.float32) / np.float32(SCALE) if tokens else None


class _Block(NamedTuple):
    """The tokens of consecutive rows."""

    first: int
    """The first of the rows."""
    starts: Rows
    """Where the tokens of each row begin, and where those of the last row end."""
    matrix: Packed


class TokenTable:
    """A snapshot of the tokens of a corpus; many rows have none."""

    def __init__(self, blocks: Sequence[_Block], row_count: int) -> None:
        self._blocks, self._row_count = blocks, row_count

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> TokenTable:
        """The tokens of each row."""
        starts = (np.cumsum([0, *map(len, tokens)], dtype=np.int64) // DIMENSIONS).astype(np.int32)
        matrix = np.empty((starts[-1], MEMORY_DIMENSIONS // 2), dtype=np.uint8)
        for first in range(0, len(tokens), SLICE_ROWS):
            part = tokens[first : first + SLICE_ROWS]
            matrix[starts[first] : starts[first + len(part)]] = _pack(b"".join(part))
        return cls([_Block(0, starts, matrix)], len(tokens))

    @classmethod
    def concatenate(cls, parts: Sequence[TokenTable]) -> TokenTable:
        """The rows of several parts, one part after the other."""
        blocks, row_count = [], 0
        for part in parts:
            blocks += [block._replace(first=block.first + row_count) for block in part._blocks]
            row_count += part._row_count
        return cls(blocks, row_count)

    def extended(self, tokens: Sequence[bytes]) -> TokenTable:
        """With the tokens of new rows."""
        longer = TokenTable.concatenate([self, TokenTable.of(tokens)])
        first, *small = longer._blocks
        if len(small) < MAX_BLOCKS:
            return longer
        counts = np.concatenate([np.diff(block.starts) for block in small])
        starts = np.append(0, np.cumsum(counts)).astype(np.int32)
        matrix = np.concatenate([block.matrix for block in small])
        return TokenTable([first, _Block(small[0].first, starts, matrix)], longer._row_count)

    @property
    def bytes(self) -> int:
        """The memory they take."""
        return sum(block.starts.nbytes + block.matrix.nbytes for block in self._blocks)

    def compare(self, rows: Rows, query: Matrix) -> Matrix:
        """How similar each of some rows is to a query's tokens; NaN for rows without tokens.

        Each query token counts by its best match in the row, and more if the best row is far ahead of the
        average: a token that all rows match, or none, distinguishes nothing.
        """
        best = np.full((len(rows), len(query)), np.nan, dtype=np.float32)
        directions = query[:, :MEMORY_DIMENSIONS].T * np.float32(STEP / SCALE)
        zero = np.float32(7.5) * directions.sum(axis=0)  # packed numbers are 0 to 15, with 7.5 in the middle
        for first, starts, matrix in self._blocks:
            inside = np.flatnonzero((rows >= first) & (rows < first + len(starts) - 1))
            begins = starts[rows[inside] - first]
            counts = starts[rows[inside] - first + 1] - begins
            inside, begins, counts = inside[counts > 0], begins[counts > 0], counts[counts > 0]
            if len(inside):
                ends = np.cumsum(counts)
                packed = matrix[np.arange(ends[-1]) + np.repeat(begins - ends + counts, counts)]
                products = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32) @ directions
                best[inside] = np.maximum.reduceat(products, ends - counts, axis=0) - zero
        has_tokens = ~np.isnan(best[:, 0])
        if not has_tokens.any():
            return best[:, 0]
        weights = (best[has_tokens].max(axis=0) - best[has_tokens].mean(axis=0)) ** 2
        similarities: Matrix = best @ (weights / max(float(weights.sum()), 1e-9))
        return similarities


def _pack(tokens: bytes) -> Packed:
    """The first dimensions of each token in four bits each: 0 to 15, from the lowest to the highest."""
    rows = np.frombuffer(tokens, dtype=np.int8).reshape(-1, DIMENSIONS)[:, :MEMORY_DIMENSIONS]
    codes = ((np.clip(rows, -8 * STEP, 8 * STEP - 1) + np.int8(8 * STEP)) // np.int8(STEP)).view(np.uint8)
    half = MEMORY_DIMENSIONS // 2
    packed: Packed = codes[:, :half] | codes[:, half:] << np.uint8(4)
    return packed
