"""Vectors kept in whole numbers are, for all that is done with them, the vectors that were given."""

from __future__ import annotations

import numpy as np
import pytest

from alcove.search.embedders import Matrix
from alcove.search.vectors import SLICE_ROWS, Int16Matrix

COUNT, DIMENSIONS = 2 * SLICE_ROWS + 3, 384


@pytest.fixture
def given() -> Matrix:
    rows = np.random.default_rng(1).normal(size=(COUNT, DIMENSIONS)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def test_vectors_come_back_and_compare_as_they_were_in_half_the_memory(
    given: Matrix,
) -> None:
    kept = Int16Matrix.of(given)
    assert len(kept) == COUNT
    assert kept.nbytes < 0.51 * given.nbytes
    assert kept[3:5] == pytest.approx(given[3:5], abs=1e-5)
    assert kept[[7, 1]] == pytest.approx(given[[7, 1]], abs=1e-5)
    assert kept @ given[0] == pytest.approx(given @ given[0], abs=5e-5)
    assert kept @ given[:3].T == pytest.approx(given @ given[:3].T, abs=5e-5)
    counted = np.arange(COUNT) % 3 == 0
    assert kept.sum(counted) == pytest.approx(given[counted].sum(axis=0), abs=1e-3)


def test_what_is_joined_has_the_vectors_of_all_parts_in_order(
    given: Matrix,
) -> None:
    parts = [Int16Matrix.of(given[:5]), Int16Matrix.of(given[5:5]), Int16Matrix.of(given[5:])]
    assert np.array_equal(Int16Matrix.concatenate(parts)[:], Int16Matrix.of(given)[:])


def test_a_vector_of_zeros_stays_one_and_none_at_all_are_no_trouble() -> None:
    zeros = np.zeros((2, 4), dtype=np.float32)
    assert np.array_equal(Int16Matrix.of(zeros)[:], zeros)
    assert len(Int16Matrix.of(zeros[:0]) @ zeros[0]) == 0
    assert Int16Matrix.of(np.zeros((0, 0), dtype=np.float32)).dimensions == 0
