"""Candidates from PostgreSQL: by vector with pgvector, and by terms on a second connection meanwhile."""

from __future__ import annotations

from alcove.engine.index import SearchIndex
from alcove.engine.postgres.pgvector import PgVectorIndex
from alcove.engine.postgres.term_index import TakeTexts, TermIndex
from alcove.engine.rows import Scope
from alcove.engine.vector_index import CandidateQuery, NearestTexts
from alcove.search.sources.sampled import SAMPLE_TEXTS, SampledSource, ScopeSample


class PgVectorSample(ScopeSample):
    """A scope in PostgreSQL with pgvector."""

    def __init__(
        self, scope: Scope, index: SearchIndex, terms: TermIndex, vectors: PgVectorIndex, max_texts: int
    ) -> None:
        super().__init__(scope, index, terms, max_texts)
        self._terms = terms
        self._vectors = vectors

    def _draw_seqs(self) -> tuple[dict[int, int], int]:
        return self._terms.sample(self.scope, SAMPLE_TEXTS)

    def _search(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> NearestTexts:
        nearest, needs_terms = NearestTexts(set()), bool(query.terms)

        def find_by_terms() -> None:
            nonlocal needs_terms
            if needs_terms:
                needs_terms = not self._terms.find_beside(scope, query, take, now=now)

        if query.vector is not None:
            nearest = self._vectors.nearest(scope, query, now=now, while_waiting=find_by_terms)
            take(nearest.texts)
        if needs_terms:
            self._terms.find(scope, query, take, now=now)
        return nearest


class PgVectorSource(SampledSource):
    """Finds candidates with pgvector."""

    def open(self, scope: Scope) -> PgVectorSample:
        terms, vectors = self._index.candidates, self._index.vector_index
        assert isinstance(terms, TermIndex)
        assert isinstance(vectors, PgVectorIndex)
        return PgVectorSample(scope, self._index, terms, vectors, self._max_texts)
