"""Candidates from SQLite, which has no vector search: searches the quantized entries of a scope in memory.

An entry has a text's terms as numbers, and a byte for each dimension of its vectors: about 600 bytes, where
text, vectors and tokens take thousands. The likeliest texts are then read in full.
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
from alcove.search.sources.indexed import IndexedSource, SampleSeqs, TakeTexts
from alcove.search.sources.memory import ScopeCache
from alcove.search.vectors import Rows, row_slices

WIDENING = 8
"""How many times more texts are searched for if a filter leaves too few."""
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
        signs = [np.zeros((0, -(-dimensions // 8)), dtype=np.uint8)]
        for rows in row_slices(count):
            signs.append(np.packbits(numbers[rows] > lengths[rows, np.newaxis] * mean, axis=1))
        return cls(numbers=numbers, lengths=lengths, mean=mean, signs=_sign_columns(np.concatenate(signs)))

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
    text_rows: Rows
    """For each vector, the row of its text."""
    vectors: QuantizedVectors
    postings: Postings

    @classmethod
    def of(cls, entries: Sequence[QuantizedEntry], dimensions: int, last_vector: int) -> QuantizedTexts:
        terms = np.frombuffer(b"".join(terms for _, terms, _ in entries), dtype="<u4")
        rows = np.repeat(np.arange(len(entries)), [len(terms) // 4 for _, terms, _ in entries])
        pairs = np.sort(terms.astype(np.int64) << ROW_BITS | rows)  # sorted by term, then by row
        pair_rows = (pairs & (1 << ROW_BITS) - 1).astype(np.int32)
        return cls(
            last_vector=last_vector,
            seqs=np.array([seq for seq, _, _ in entries], dtype=np.int64),
            text_rows=_text_rows(entries, dimensions),
            vectors=QuantizedVectors.of(_vectors(entries, dimensions)),
            postings=Postings.of_pairs(pairs >> ROW_BITS << 1, pair_rows, len(entries)),
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
            text_rows=np.append(self.text_rows, _text_rows(entries, dimensions) + np.int32(len(self.seqs))),
            vectors=self.vectors.extended(_vectors(entries, dimensions)),
            postings=self.postings.changed(terms, live),
        )

    @property
    def bytes(self) -> int:
        return self.seqs.nbytes + self.text_rows.nbytes + self.vectors.bytes + self.postings.bytes

    def likeliest(self, query: CandidateQuery, limit: int) -> set[int]:
        """At most `limit` texts by their vectors, and as many by their terms."""
        seqs = {*self.seqs[self._by_terms(query.weights, limit)].tolist()}
        if query.vector is not None and len(query.vector) == len(self.vectors.mean):
            nearest = self.vectors.nearest(np.array(query.vector, dtype=np.float32), limit)
            seqs.update(self.seqs[self.text_rows[nearest]].tolist())
        return seqs

    def _by_terms(self, weights: Mapping[int, float], limit: int) -> NDArray[np.intp]:
        negative = np.zeros(len(self.seqs), dtype=np.float32)
        for number, weight in weights.items():
            negative[self.postings.find((number & TERM_BITS) << 1).rows] -= np.float32(weight)
        best = _lowest(negative, limit)
        return best[negative[best] < 0]


class QuantizedScope:
    """The quantized entries of a scope in memory, brought up to date by each search."""

    def __init__(self, scope: Scope, index: QuantizedIndex) -> None:
        self._scope = scope
        self._index = index
        self._texts: QuantizedTexts | None = None

    @property
    def bytes(self) -> int:
        return self._texts.bytes if self._texts else 0

    def read(self) -> QuantizedTexts:
        """Reads all entries."""
        progress, entries = self._index.entries(self._scope, 0)
        self._texts = QuantizedTexts.of(entries, progress.dimensions, progress.last_vector)
        return self._texts

    def catch_up(self) -> QuantizedTexts:
        """Reads the entries that were added since, or all if there are none."""
        texts = self._texts
        if texts is None:
            return self.read()
        progress, entries = self._index.entries(self._scope, texts.last_vector)
        if progress.last_vector != texts.last_vector:
            self._texts = texts = texts.extended(entries, progress.dimensions, progress.last_vector)
        return texts


class QuantizedSource(IndexedSource):
    """Finds candidates by quantized vectors in memory."""

    def __init__(
        self, index: SearchIndex, quantized: QuantizedIndex, cache: ScopeCache, max_texts: int
    ) -> None:
        super().__init__(index, quantized, cache, max_texts)
        self._quantized = quantized

    def _sample_seqs(self, scope: Scope, size: int) -> SampleSeqs:
        with self._cache.use(QuantizedScope, scope, self._quantized) as entries:
            seqs = entries.read().seqs
        runs = np.arange(len(seqs)) // RUN_TEXTS + 1
        is_drawn = runs % max(len(seqs) // size, 1) == 0
        return dict(zip(seqs[is_drawn].tolist(), runs[is_drawn].tolist(), strict=True)), len(seqs)

    def _search(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> NearestTexts:
        limit = query.limit
        with self._cache.use(QuantizedScope, scope, self._quantized) as entries:
            texts = entries.catch_up()
        while True:
            seqs = texts.likeliest(query, limit)
            if not scope.filter.conditions or limit >= len(texts.seqs):
                return NearestTexts(seqs)
            if len(seqs := self._quantized.visible(scope, seqs, now=now)) >= query.limit:
                return NearestTexts(seqs)
            limit *= WIDENING


def _text_rows(entries: Sequence[QuantizedEntry], dimensions: int) -> Rows:
    counts = [len(vectors) // max(dimensions, 1) for _, _, vectors in entries]
    return np.repeat(np.arange(len(entries), dtype=np.int32), counts)


def _vectors(entries: Sequence[QuantizedEntry], dimensions: int) -> NDArray[np.int8]:
    numbers = b"".join(vectors for _, _, vectors in entries)
    return np.frombuffer(numbers, dtype=np.int8).reshape(-1, max(dimensions, 1))


def _sign_columns(signs: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Converts a row of signs for each vector to columns of 64 signs each."""
    padded = np.pad(signs, ((0, 0), (0, -signs.shape[1] % 8)))
    return np.ascontiguousarray(padded.view(np.uint64).T)


def _lowest(values: NDArray[np.uint16] | NDArray[np.float32], limit: int) -> NDArray[np.intp]:
    """The positions of the lowest values, in no order."""
    return np.argpartition(values, limit)[:limit] if limit < len(values) else np.arange(len(values))
