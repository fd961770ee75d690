"""Candidates from PostgreSQL by terms, and by vector from pgvector or Qdrant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alcove.engine.index import SearchIndex
from alcove.engine.postgres.pgvector import PgVectorIndex
from alcove.engine.postgres.term_index import TermIndex
from alcove.engine.rows import Scope
from alcove.engine.vector_index import CandidateQuery, NearestTexts
from alcove.search.sources.indexed import IndexedSource, SampleSeqs, TakeTexts
from alcove.search.sources.memory import ScopeCache

if TYPE_CHECKING:
    from alcove.engine.qdrant.index import QdrantIndex


class PostgresSource(IndexedSource):
    """Finds candidates with a term index and a vector index."""

    def __init__(
        self,
        index: SearchIndex,
        terms: TermIndex,
        vectors: PgVectorIndex | QdrantIndex,
        cache: ScopeCache,
        max_texts: int,
    ) -> None:
        super().__init__(index, terms, cache, max_texts)
        self._terms, self._vectors = terms, vectors

    def _sample_seqs(self, scope: Scope, size: int) -> SampleSeqs:
        return self._terms.sample(scope, size)

    def _search(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> NearestTexts:
        nearest, needs_terms = NearestTexts(set()), bool(query.terms)

        def find_by_terms() -> None:
            nonlocal needs_terms
            if needs_terms:
                needs_terms = not self._terms.find_in_parallel(scope, query, take, now=now)

        if isinstance(self._vectors, PgVectorIndex):
            if query.vector is not None:
                nearest = self._vectors.nearest(scope, query, now=now, while_waiting=find_by_terms)
                take(nearest.texts)
        elif query.vector is not None:
            nearest = self._vectors.nearest(scope, query, now=now)
        if needs_terms:  # with pgvector: no second connection was free
            self._terms.find(scope, query, take, now=now)
        return nearest
