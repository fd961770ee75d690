"""Candidates from PostgreSQL and Qdrant: by vector from Qdrant, by terms from the database."""

from __future__ import annotations

from alcove.engine.index import SearchIndex
from alcove.engine.postgres.term_index import TermIndex
from alcove.engine.qdrant.index import QdrantIndex
from alcove.engine.rows import Scope
from alcove.engine.vector_index import CandidateQuery, NearestTexts
from alcove.search.sources.sampled import SAMPLE_TEXTS, SampledSource, ScopeSample, TakeTexts


class QdrantSample(ScopeSample):
    """A scope whose vectors are in Qdrant."""

    def __init__(
        self, scope: Scope, index: SearchIndex, terms: TermIndex, vectors: QdrantIndex, max_texts: int
    ) -> None:
        super().__init__(scope, index, terms, max_texts)
        self._terms = terms
        self._vectors = vectors

    def _draw_seqs(self) -> tuple[dict[int, int], int]:
        return self._terms.sample(self.scope, SAMPLE_TEXTS)

    def _search(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> NearestTexts:
        nearest = NearestTexts(set())
        if query.vector is not None:
            nearest = self._vectors.nearest(scope, query, now=now)
        if query.terms:
            self._terms.find(scope, query, take, now=now)
        return nearest


class QdrantSource(SampledSource):
    """Finds candidates with Qdrant."""

    def open(self, scope: Scope) -> QdrantSample:
        terms, vectors = self._index.candidates, self._index.vector_index
        assert isinstance(terms, TermIndex)
        assert isinstance(vectors, QdrantIndex)
        return QdrantSample(scope, self._index, terms, vectors, self._max_texts)
