"""Subtrees too large to hold, where the database finds nothing by itself: a digest of each text is held.

That is the words that it holds, as numbers, and its vectors in a byte a number: some six hundred bytes, where
text, vectors and tokens are thousands. Digests tell the likeliest texts from the rest, and those are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alcove.engine.candidate_index import CandidateIndex, Take
from alcove.engine.quantized_index import BITS, Digest, QuantizedIndex
from alcove.engine.scope import Scope
from alcove.engine.vector_index import Asked, Nearest
from alcove.search.corpus.postings import Postings, Rows
from alcove.search.embedders import Matrix
from alcove.search.sources.sampled import SAMPLE, LargeSubtree

WIDER = 8
"""How many times more texts are looked at where a filter leaves too few."""
SIGNED = 10
"""Vectors that are compared for each that is wanted: those whose signs are most like the question's."""
RUN = 8
"""Texts beside each other that a sample takes."""
AT_ONCE = 256
"""Vectors that are floats at a time: few enough for the processor's cache."""
ROWS = 2**31 - 1
"""The bits of a row's number."""


@dataclass(frozen=True, kw_only=True)
class Rounded:
    """Vectors in a byte a number, and the signs that they have as seen from their middle."""

    numbers: NDArray[np.int8]
    lengths: Matrix
    middle: Matrix
    signs: NDArray[np.uint64]
    """A column a vector, with 64 signs in each row."""

    @classmethod
    def of(cls, numbers: NDArray[np.int8], middle: Matrix | None = None) -> Rounded:
        """Seen from their own middle, or another."""
        count, dimensions = numbers.shape
        lengths = np.ones(count, dtype=np.float32)
        total = np.zeros(dimensions, dtype=np.float32)
        for some in _slices(count):
            floats = numbers[some].astype(np.float32)
            lengths[some] = np.maximum(np.sqrt(np.einsum("ij,ij->i", floats, floats)), 1)
            total += (1 / lengths[some]) @ floats
        middle = total / max(count, 1) if middle is None else middle
        above = [
            np.packbits(numbers[some] > lengths[some, np.newaxis] * middle, axis=1) for some in _slices(count)
        ]
        every = np.concatenate(above) if above else np.zeros((0, -(-dimensions // 8)), dtype=np.uint8)
        return cls(numbers=numbers, lengths=lengths, middle=middle, signs=_columns(every))

    def followed_by(self, numbers: NDArray[np.int8]) -> Rounded:
        more = Rounded.of(numbers, self.middle)
        return Rounded(
            numbers=np.concatenate([self.numbers, more.numbers]),
            lengths=np.append(self.lengths, more.lengths),
            middle=self.middle,
            signs=np.hstack([self.signs, more.signs]),
        )

    @property
    def bytes(self) -> int:
        return self.numbers.nbytes + self.lengths.nbytes + self.signs.nbytes

    def nearest(self, vector: Matrix, most: int) -> NDArray[np.intp]:
        """So many of the nearest, in no order."""
        asked = _columns(np.packbits(vector > self.middle)[np.newaxis])
        far = np.zeros(len(self.lengths), dtype=np.uint16)
        for column, its in zip(self.signs, asked, strict=True):
            far += np.bitwise_count(column ^ its)
        likely = _lowest(far, SIGNED * most)
        products = self.numbers[likely].astype(np.float32) @ vector
        return likely[_lowest(-products / self.lengths[likely], most)]


@dataclass(frozen=True, kw_only=True)
class Held:
    """The digests of a subtree, as of one moment."""

    upto: int
    """The last of the vectors that they are of."""
    seqs: NDArray[np.int64]
    owners: Rows
    """By vector, the row of the text that it belongs to."""
    vectors: Rounded
    postings: Postings

    @classmethod
    def of(cls, digests: Sequence[Digest], dimensions: int, upto: int) -> Held:
        terms = np.frombuffer(b"".join(terms for _, terms, _ in digests), dtype="<u4")
        rows = np.repeat(np.arange(len(digests)), [len(terms) // 4 for _, terms, _ in digests])
        pairs = np.sort(terms.astype(np.int64) << 31 | rows)  # in order, they need no other sorting
        return cls(
            upto=upto,
            seqs=np.array([seq for seq, _, _ in digests], dtype=np.int64),
            owners=_owners(digests, dimensions),
            vectors=Rounded.of(_vectors(digests, dimensions)),
            postings=Postings.of_pairs(pairs >> 31 << 1, (pairs & ROWS).astype(np.int32), len(digests)),
        )

    def followed_by(self, digests: Sequence[Digest], dimensions: int, upto: int) -> Held:
        """With those that came since."""
        terms = [(np.frombuffer(its, dtype="<u4").astype(np.int64) << 1).tolist() for _, its, _ in digests]
        live = np.ones(len(self.seqs) + len(digests), dtype=np.bool_)
        return Held(
            upto=upto,
            seqs=np.append(self.seqs, [seq for seq, _, _ in digests]).astype(np.int64),
            owners=np.append(self.owners, _owners(digests, dimensions) + np.int32(len(self.seqs))),
            vectors=self.vectors.followed_by(_vectors(digests, dimensions)),
            postings=self.postings.changed(terms, live),
        )

    @property
    def bytes(self) -> int:
        return self.seqs.nbytes + self.owners.nbytes + self.vectors.bytes + self.postings.bytes

    def likeliest(self, asked: Asked, most: int) -> set[int]:
        """So many texts by their meaning, and as many by their words."""
        found = {*self.seqs[self._holding(asked.weights, most)].tolist()}
        if asked.vector is not None and len(asked.vector) == len(self.vectors.middle):
            near = self.vectors.nearest(np.array(asked.vector, dtype=np.float32), most)
            found.update(self.seqs[self.owners[near]].tolist())
        return found

    def _holding(self, weights: Mapping[int, float], most: int) -> NDArray[np.intp]:
        less = np.zeros(len(self.seqs), dtype=np.float32)
        for number, weight in weights.items():
            less[self.postings.numbered((number & BITS) << 1)[0]] -= np.float32(weight)
        best = _lowest(less, most)
        return best[less[best] < 0]


def _owners(digests: Sequence[Digest], dimensions: int) -> Rows:
    counts = [len(rounded) // max(dimensions, 1) for _, _, rounded in digests]
    return np.repeat(np.arange(len(digests), dtype=np.int32), counts)


def _vectors(digests: Sequence[Digest], dimensions: int) -> NDArray[np.int8]:
    every = b"".join(rounded for _, _, rounded in digests)
    return np.frombuffer(every, dtype=np.int8).reshape(-1, max(dimensions, 1))


def _columns(signs: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Signs, a row a vector, as columns of 64 each."""
    padded = np.pad(signs, ((0, 0), (0, -signs.shape[1] % 8)))
    return np.ascontiguousarray(padded.view(np.uint64).T)


def _slices(count: int) -> Iterator[slice]:
    """So many rows, some at a time."""
    return (slice(start, start + AT_ONCE) for start in range(0, count, AT_ONCE))


def _lowest(values: NDArray[np.uint16] | NDArray[np.float32], most: int) -> NDArray[np.intp]:
    """Where the lowest values are, in no order."""
    return np.argpartition(values, most)[:most] if most < len(values) else np.arange(len(values))


class DigestedSubtree(LargeSubtree):
    """A part of the store of which a sample and the digests of all texts are held."""

    _candidates: QuantizedIndex
    _held = Held.of((), 0, 0)

    @property
    def bytes(self) -> int:
        return super().bytes + self._held.bytes

    def _some(self) -> tuple[dict[int, int], int]:
        reached, digests = self._candidates.digests(self.scope, 0)
        self._held = held = Held.of(digests, reached.dimensions, reached.upto)
        runs = np.arange(len(digests)) // RUN + 1
        some = runs % max(len(digests) // SAMPLE, 1) == 0
        return dict(zip(held.seqs[some].tolist(), runs[some].tolist(), strict=True)), len(digests)

    def _find(self, scope: Scope, asked: Asked, take: Take, *, now: int) -> Nearest:
        held, most = self._held, asked.most
        reached, digests = self._candidates.digests(self.scope, held.upto)
        if reached.upto != held.upto:
            self._held = held = held.followed_by(digests, reached.dimensions, reached.upto)
        while True:
            found = held.likeliest(asked, most)
            if not scope.filter.conditions or most >= len(held.seqs):
                return Nearest(found)
            if len(found := self._candidates.shown(scope, found, now=now)) >= asked.most:
                return Nearest(found)
            most *= WIDER


def of_size(scope: Scope, candidates: CandidateIndex, embedder: str) -> LargeSubtree:
    """A subtree too large to hold, as its database can be asked."""
    kind = DigestedSubtree if isinstance(candidates, QuantizedIndex) else LargeSubtree
    return kind(scope, candidates, embedder)
