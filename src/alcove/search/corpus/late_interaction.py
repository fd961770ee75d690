"""Late interaction: the tokens of a question against those of a text, one by one.

One vector says what a text is about as a whole. The states that a model has for each token, before they
become that vector, say what it is about in each place. The best of them for each token of a question tells a
text that answers from one that speaks of the same things in passing. They cost no pass of their own: a few
numbers are kept of each, and of short texts only. That is 64 bytes a token in the database, and 27 in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alcove.search.embedders import Matrix

Rows: TypeAlias = "NDArray[np.int32]"
Packed: TypeAlias = "NDArray[np.uint8]"
"""Two numbers of four bits in each byte: one of the first half, and one of the second."""

NUMBERS = 64
"""What is kept of a token's state."""
MOST_TOKENS = 128
"""Tokens of a text that has any kept; in a longer one there is something like everything somewhere."""
SCALE = 127
HELD = 54
"""The first of these numbers, which are held in memory; the others tell the least."""
STEP = 6
"""What 1 of four bits is worth: most numbers are below 48, three times what is usual among 64."""
AT_ONCE = 256
"""Rows whose tokens are made smaller at a time: few enough for the processor's cache."""
MOST_BLOCKS = 8
"""Blocks in which the tokens of a subtree lie; with more, the small ones are made one."""


class Reduction:
    """How the states of one model's tokens become a few small numbers: seen from their middle, along the
    directions in which they differ most (`bench/token_reduction.py` finds both).
    """

    def __init__(self, middle: Matrix, directions: Matrix) -> None:
        self._middle, self._directions = middle, directions

    @classmethod
    @cache
    def of_minilm(cls) -> Reduction:
        """That of the embedded default."""
        with (files("alcove.search.embedders") / "minilm_tokens.npy").open("rb") as file:
            kept = np.load(file, allow_pickle=False).astype(np.float32)
        return cls(kept[0], kept[1:].T)

    def reduced(self, states: Matrix) -> bytes:
        """A row of small numbers for each of a text's tokens, without the two that only mark its ends."""
        if not 2 < len(states) <= MOST_TOKENS:
            return b""
        inner = states[1:-1]
        directed = (inner / np.linalg.norm(inner, axis=1, keepdims=True) - self._middle) @ self._directions
        lengths = np.maximum(np.linalg.norm(directed, axis=1, keepdims=True), 1e-6)
        kept: bytes = np.round(directed / lengths * SCALE).astype(np.int8).tobytes()
        return kept


def token_matrix(tokens: bytes) -> Matrix | None:
    """A question's tokens as rows of length 1; None where it has none."""
    rows = np.frombuffer(tokens, dtype=np.int8).reshape(-1, NUMBERS)
    return rows.astype(np.float32) / np.float32(SCALE) if tokens else None


class _Block(NamedTuple):
    """The tokens of rows that follow each other, from `first` on."""

    first: int
    starts: Rows
    """Where those of each row begin, and at last where those of the last one end."""
    matrix: Packed


class TokenTable:
    """A snapshot: what is kept of the tokens of each row, nothing for many."""

    def __init__(self, blocks: Sequence[_Block], rows: int) -> None:
        self._blocks, self._rows = blocks, rows

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> TokenTable:
        """From those of each row."""
        starts = (np.cumsum([0, *map(len, tokens)], dtype=np.int64) // NUMBERS).astype(np.int32)
        matrix = np.empty((starts[-1], HELD // 2), dtype=np.uint8)
        for first in range(0, len(tokens), AT_ONCE):
            some = tokens[first : first + AT_ONCE]
            matrix[starts[first] : starts[first + len(some)]] = _packed(b"".join(some))
        return cls([_Block(0, starts, matrix)], len(tokens))

    @classmethod
    def joined(cls, parts: Sequence[TokenTable]) -> TokenTable:
        """Those of several parts, the rows of each after the rows of the one before."""
        blocks, rows = [], 0
        for part in parts:
            blocks += [block._replace(first=block.first + rows) for block in part._blocks]
            rows += part._rows
        return cls(blocks, rows)

    def extended(self, tokens: Sequence[bytes]) -> TokenTable:
        """With those of rows after the last."""
        longer = TokenTable.joined([self, TokenTable.of(tokens)])
        first, *small = longer._blocks
        if len(small) < MOST_BLOCKS:
            return longer
        counts = np.concatenate([np.diff(block.starts) for block in small])
        starts = np.append(0, np.cumsum(counts)).astype(np.int32)
        matrix = np.concatenate([block.matrix for block in small])
        return TokenTable([first, _Block(small[0].first, starts, matrix)], longer._rows)

    @property
    def bytes(self) -> int:
        """How much memory they take."""
        return sum(block.starts.nbytes + block.matrix.nbytes for block in self._blocks)

    def likeness(self, rows: Rows, asked: Matrix) -> Matrix:
        """How well each of some rows matches a question's tokens, NaN for one that has none kept.

        Each token of the question counts by its best match in the row, and the more the farther the best of
        all rows is ahead of the others: one that every row matches, or none, tells nothing.
        """
        best = np.full((len(rows), len(asked)), np.nan, dtype=np.float32)
        directions = asked[:, :HELD].T * np.float32(STEP / SCALE)
        zero = np.float32(7.5) * directions.sum(axis=0)  # four bits count from 0, and their middle is 7.5
        for first, starts, matrix in self._blocks:
            inside = np.flatnonzero((rows >= first) & (rows < first + len(starts) - 1))
            begins = starts[rows[inside] - first]
            counts = starts[rows[inside] - first + 1] - begins
            inside, begins, counts = inside[counts > 0], begins[counts > 0], counts[counts > 0]
            if len(inside):
                ends = np.cumsum(counts)
                places = np.arange(ends[-1]) + np.repeat(begins - ends + counts, counts)
                products = _unpacked(matrix[places]) @ directions
                best[inside] = np.maximum.reduceat(products, ends - counts, axis=0) - zero
        known = ~np.isnan(best[:, 0])
        if not known.any():
            return best[:, 0]
        weights = (best[known].max(axis=0) - best[known].mean(axis=0)) ** 2
        found: Matrix = best @ (weights / max(float(weights.sum()), 1e-9))
        return found


def _packed(tokens: bytes) -> Packed:
    """The first numbers of each token in four bits: 0 to 15, from the lowest to the highest."""
    rows = np.frombuffer(tokens, dtype=np.int8).reshape(-1, NUMBERS)[:, :HELD]
    codes = ((np.clip(rows, -8 * STEP, 8 * STEP - 1) + np.int8(8 * STEP)) // np.int8(STEP)).view(np.uint8)
    packed: Packed = codes[:, : HELD // 2] | codes[:, HELD // 2 :] << np.uint8(4)
    return packed


def _unpacked(packed: Packed) -> Matrix:
    """Those four bits of each number, from 0 to 15."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
