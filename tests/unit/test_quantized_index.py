"""What is held of a large subtree in a file tells the likeliest texts from the rest."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from alcove.engine.quantized_index import QuantizedEntry, quantize
from alcove.engine.vector_index import CandidateQuery
from alcove.search.embedders import Matrix, unit
from alcove.search.sources.quantized import QuantizedTexts

DIMENSIONS = 100
"""No multiple of 64, nor of 8."""


@pytest.fixture
def vectors() -> Matrix:
    chance = np.random.default_rng(5)
    middles = chance.standard_normal((50, DIMENSIONS)) + 0.5
    return unit((np.repeat(middles, 100, axis=0) + chance.standard_normal((5000, DIMENSIONS))).astype("f4"))


def digest(seq: int, *vectors: Matrix) -> QuantizedEntry:
    """Of a text that holds its own number, and whether it is odd."""
    terms = struct.pack("<2I", 10 + seq, seq % 2)
    return seq, terms, b"".join(quantize(vector.tolist()) for vector in vectors)


def test_the_nearest_of_all_are_among_the_likeliest(vectors: Matrix) -> None:
    held = QuantizedTexts.of([digest(seq, row) for seq, row in enumerate(vectors)], DIMENSIONS, 5000)
    for asked in vectors[::500]:
        nearest = {*np.argsort(-(vectors @ asked))[:10].tolist()}
        assert nearest <= held.likeliest(CandidateQuery(50, asked.tolist(), (), {}), 50)


def test_texts_are_found_by_the_words_that_weigh_most(vectors: Matrix) -> None:
    held = QuantizedTexts.of([digest(seq, row) for seq, row in enumerate(vectors[:50])], DIMENSIONS, 50)
    assert held.likeliest(CandidateQuery(3, None, (), {10 + 7: 5.0}), 3) == {7}
    found = held.likeliest(CandidateQuery(3, None, (), {10 + 8: 5.0, 1: 1.0}), 3)
    assert len(found) == 3
    assert 8 in found
    assert all(seq % 2 for seq in found - {8})


def test_what_came_since_is_found_as_what_was_there(vectors: Matrix) -> None:
    before = QuantizedTexts.of([digest(seq, row) for seq, row in enumerate(vectors[:300])], DIMENSIONS, 300)
    held = before.extended(
        [digest(900, vectors[900], vectors[4000]), digest(901, vectors[901])], DIMENSIONS, 302
    )
    assert held.last_vector == 302
    for vector, seq in ((vectors[4000], 900), (vectors[901], 901), (vectors[12], 12)):
        assert seq in held.likeliest(CandidateQuery(3, vector.tolist(), (), {}), 3)
    assert held.likeliest(CandidateQuery(3, None, (), {10 + 901: 1.0}), 3) == {901}


def test_a_question_of_other_dimensions_is_answered_by_words(vectors: Matrix) -> None:
    held = QuantizedTexts.of([digest(1, vectors[0])], DIMENSIONS, 1)
    assert held.likeliest(CandidateQuery(3, [1.0] * 8, (), {11: 1.0}), 3) == {1}
