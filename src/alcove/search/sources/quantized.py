"""Candidates from SQLite, which does not search by itself: the quantized entries of a scope stay in memory.

An entry has a text's terms as numbers and its vectors in a byte a dimension: some 600 bytes, where text,
vectors and tokens take thousands. The likeliest texts are then read in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alcove.engine.index import SearchIndex
from alcove.engine.quantized_index import TERM_BITS, QuantizedEntry, QuantizedIndex
from alcove.engine.rows import Scope
from alcove.engine.vector_index import CandidateQuery, NearestTexts
from alcove.search.embedders import Matrix
from alcove.search.postings import Postings
from alcove.search.sources.sampled import SAMPLE_TEXTS, SampledSource, ScopeSample, TakeTexts
from alcove.search.vectors import Rows, row_slices

WIDENING = 8
"""How many times more texts are looked at where a filter leaves too few."""
COMPARED_PER_RESULT = 10
"""Vectors that are compared for each result: those whose signs are most like the query's."""
RUN_TEXTS = 8
"""Consecutive texts in a run of the sample."""
ROW_BITS = 31


@dataclass(frozen=True, kw_only=True)
class QuantizedVectors:
    """Vectors with a byte for each dimension, and the signs of their difference from the mean vector."""

    numbers: NDArray[np.int8]
    lengths: Matrix
    mean: Matrix
    signs: NDArray[np.uint64]
    """A column for each vector, with 64 signs in each row."""

    @classmethod
    def of(cls, numbers: NDArray[np.int8], mean: Matrix | None = None) -> QuantizedVectors:
        """Takes the signs against a mean, by default that of these vectors."""
        count, dimensions = numbers.shape
        lengths = np.ones(count, dtype=np.float32)
        total = np.zeros(dimensions, dtype=np.float32)
        for rows in row_slices(count):
            floats = numbers[rows].astype(np.float32)
            lengths[rows] = np.maximum(np.sqrt(np.einsum("ij,ij->i", floats, floats)), 1)
            total += (1 / lengths[rows]) @ floats
        mean = total / max(count, 1) if mean is None else mean
        signs = [
            np.packbits(numbers[rows] > lengths[rows, np.newaxis] * mean, axis=1)
            for rows in row_slices(count)
        ]
        packed = np.concatenate(signs) if signs else np.zeros((0, -(-dimensions // 8)), dtype=np.uint8)
        return cls(numbers=numbers, lengths=lengths, mean=mean, signs=_sign_columns(packed))

    def extended(self, numbers: NDArray[np.int8]) -> QuantizedVectors:
        """With more vectors at the end."""
        more = QuantizedVectors.of(numbers, self.mean)
        return QuantizedVectors(
            numbers=np.concatenate([self.numbers, more.numbers]),
            lengths=np.append(self.lengths, more.lengths),
            mean=self.mean,
            signs=np.hstack([self.signs, more.signs]),
        )

    @property
    def bytes(self) -> int:
        return self.numbers.nbytes + self.lengths.nbytes + self.signs.nbytes

    def nearest(self, vector: Matrix, limit: int) -> NDArray[np.intp]:
        """The rows of the nearest vectors, in no order."""
        query_signs = _sign_columns(np.packbits(vector > self.mean)[np.newaxis])
        distances = np.zeros(len(self.lengths), dtype=np.uint16)
        for column, query_column in zip(self.signs, query_signs, strict=True):
            distances += np.bitwise_count(column ^ query_column)
        likely = _lowest(distances, COMPARED_PER_RESULT * limit)
        products = self.numbers[likely].astype(np.float32) @ vector
        return likely[_lowest(-products / self.lengths[likely], limit)]


@dataclass(frozen=True, kw_only=True)
class QuantizedTexts:
    """The quantized entries of a scope, as of one moment."""

    last_vector: int
    """The last vector in the log that is included."""
    seqs: NDArray[np.int64]
    owners: Rows
    """For each vector, the row of its text."""
    vectors: QuantizedVectors
    postings: Postings

    @classmethod
    def of(cls, entries: Sequence[QuantizedEntry], dimensions: int, last_vector: int) -> QuantizedTexts:
        terms = np.frombuffer(b"".join(terms for _, terms, _ in entries), dtype="<u4")
        rows = np.repeat(np.arange(len(entries)), [len(terms) // 4 for _, terms, _ in entries])
        pairs = np.sort(terms.astype(np.int64) << ROW_BITS | rows)  # sorted by term, then by row
        row_of_pair = (pairs & (1 << ROW_BITS) - 1).astype(np.int32)
        return cls(
            last_vector=last_vector,
            seqs=np.array([seq for seq, _, _ in entries], dtype=np.int64),
            owners=_owners(entries, dimensions),
            vectors=QuantizedVectors.of(_vectors(entries, dimensions)),
            postings=Postings.of_pairs(pairs >> ROW_BITS << 1, row_of_pair, len(entries)),
        )

    def extended(
        self, entries: Sequence[QuantizedEntry], dimensions: int, last_vector: int
    ) -> QuantizedTexts:
        """With entries that were added since."""
        terms = [(np.frombuffer(each, dtype="<u4").astype(np.int64) << 1).tolist() for _, each, _ in entries]
        live = np.ones(len(self.seqs) + len(entries), dtype=np.bool_)
        return QuantizedTexts(
            last_vector=last_vector,
            seqs=np.append(self.seqs, [seq for seq, _, _ in entries]).astype(np.int64),
            owners=np.append(self.owners, _owners(entries, dimensions) + np.int32(len(self.seqs))),
            vectors=self.vectors.extended(_vectors(entries, dimensions)),
            postings=self.postings.changed(terms, live),
        )

    @property
    def bytes(self) -> int:
        return self.seqs.nbytes + self.owners.nbytes + self.vectors.bytes + self.postings.bytes

    def likeliest(self, query: CandidateQuery, limit: int) -> set[int]:
        """At most `limit` texts by their vectors, and as many by their terms."""
        seqs = {*self.seqs[self._by_terms(query.weights, limit)].tolist()}
        if query.vector is not None and len(query.vector) == len(self.vectors.mean):
            nearest = self.vectors.nearest(np.array(query.vector, dtype=np.float32), limit)
            seqs.update(self.seqs[self.owners[nearest]].tolist())
        return seqs

    def _by_terms(self, weights: Mapping[int, float], limit: int) -> NDArray[np.intp]:
        negative = np.zeros(len(self.seqs), dtype=np.float32)
        for number, weight in weights.items():
            negative[self.postings.find_number((number & TERM_BITS) << 1)[0]] -= np.float32(weight)
        best = _lowest(negative, limit)
        return best[negative[best] < 0]


class QuantizedSample(ScopeSample):
    """A scope in SQLite, with all its quantized entries."""

    def __init__(self, scope: Scope, index: SearchIndex, quantized: QuantizedIndex, max_texts: int) -> None:
        super().__init__(scope, index, quantized, max_texts)
        self._quantized = quantized
        self._texts = QuantizedTexts.of((), 0, 0)

    @property
    def bytes(self) -> int:
        return super().bytes + self._texts.bytes

    def clear(self) -> None:
        super().clear()
        self._texts = QuantizedTexts.of((), 0, 0)

    def _draw_seqs(self) -> tuple[dict[int, int], int]:
        progress, entries = self._quantized.entries(self.scope, 0)
        self._texts = texts = QuantizedTexts.of(entries, progress.dimensions, progress.last_vector)
        runs = np.arange(len(entries)) // RUN_TEXTS + 1
        drawn = runs % max(len(entries) // SAMPLE_TEXTS, 1) == 0
        return dict(zip(texts.seqs[drawn].tolist(), runs[drawn].tolist(), strict=True)), len(entries)

    def _search(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> NearestTexts:
        texts, limit = self._texts, query.limit
        progress, entries = self._quantized.entries(self.scope, texts.last_vector)
        if progress.last_vector != texts.last_vector:
            self._texts = texts = texts.extended(entries, progress.dimensions, progress.last_vector)
        while True:
            seqs = texts.likeliest(query, limit)
            if not scope.filter.conditions or limit >= len(texts.seqs):
                return NearestTexts(seqs)
            if len(seqs := self._quantized.visible(scope, seqs, now=now)) >= query.limit:
                return NearestTexts(seqs)
            limit *= WIDENING


class QuantizedSource(SampledSource):
    """Finds candidates by quantized vectors in memory."""

    def open(self, scope: Scope) -> QuantizedSample:
        assert isinstance(self._candidates, QuantizedIndex)
        return QuantizedSample(scope, self._index, self._candidates, self._max_texts)


def _owners(entries: Sequence[QuantizedEntry], dimensions: int) -> Rows:
    counts = [len(vectors) // max(dimensions, 1) for _, _, vectors in entries]
    return np.repeat(np.arange(len(entries), dtype=np.int32), counts)


def _vectors(entries: Sequence[QuantizedEntry], dimensions: int) -> NDArray[np.int8]:
    joined = b"".join(vectors for _, _, vectors in entries)
    return np.frombuffer(joined, dtype=np.int8).reshape(-1, max(dimensions, 1))


def _sign_columns(signs: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Signs in a row for each vector, as columns of 64 each."""
    padded = np.pad(signs, ((0, 0), (0, -signs.shape[1] % 8)))
    return np.ascontiguousarray(padded.view(np.uint64).T)


def _lowest(values: NDArray[np.uint16] | NDArray[np.float32], limit: int) -> NDArray[np.intp]:
    """The positions of the lowest values, in no order."""
    return np.argpartition(values, limit)[:limit] if limit < len(values) else np.arange(len(values))
