"""Candidates from Qdrant by vector, and from PostgreSQL by terms."""

from __future__ import annotations

from alcove.engine.index import SearchIndex
from alcove.engine.postgres.term_index import TermIndex
from alcove.engine.qdrant.index import QdrantIndex
from alcove.engine.rows import Scope
from alcove.engine.vector_index import CandidateQuery, NearestTexts
from alcove.search.sources.indexed import IndexedSource, SampleSeqs, TakeTexts
from alcove.search.sources.scope_cache import ScopeCache


class QdrantSource(IndexedSource):
    """Finds candidates with Qdrant."""

    def __init__(
        self, index: SearchIndex, terms: TermIndex, vectors: QdrantIndex, cache: ScopeCache, max_texts: int
    ) -> None:
        super().__init__(index, terms, cache, max_texts)
        self._terms = terms
        self._vectors = vectors

    def _sample_seqs(self, scope: Scope, size: int) -> SampleSeqs:
        return self._terms.sample(scope, size)

    def _search(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> NearestTexts:
        nearest = NearestTexts(set())
        if query.vector is not None:
            nearest = self._vectors.nearest(scope, query, now=now)
        if query.terms:
            self._terms.find(scope, query, take, now=now)
        return nearest
