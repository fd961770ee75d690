"""Where searches find candidates: all texts of a scope in memory, quantized vectors, pgvector or Qdrant.

Importing this does not load numpy, which only stores that are searched need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from alcove.core.errors import requires_extra
from alcove.engine.index import SearchIndex
from alcove.engine.postgres.pgvector import PgVectorIndex
from alcove.engine.postgres.term_index import TermIndex
from alcove.engine.quantized_index import QuantizedIndex
from alcove.engine.vector_index import MakeVectorIndex
from alcove.search.text_vectors import window_vectors

if TYPE_CHECKING:
    from alcove.engine.qdrant.index import QdrantIndex
    from alcove.search.sources.base import CandidateSource
    from alcove.search.sources.memory import ScopeCache


def candidate_sources(index: SearchIndex, cache: ScopeCache, max_texts: int) -> list[CandidateSource]:
    """The sources of a store, in the order in which a search tries them.

    Scopes with more than `max_texts` texts are searched by the database, if it has an index for that.
    """
    from alcove.search.sources.memory import InMemorySource  # noqa: PLC0415

    sources: list[CandidateSource] = [InMemorySource(index, cache)]
    candidates, vectors = index.candidates, index.vector_index
    if isinstance(candidates, QuantizedIndex):
        from alcove.search.sources.quantized import QuantizedSource  # noqa: PLC0415

        sources.insert(0, QuantizedSource(index, candidates, cache, max_texts))
    elif isinstance(candidates, TermIndex) and vectors:
        from alcove.search.sources.postgres import PostgresSource  # noqa: PLC0415

        vectors = cast("PgVectorIndex | QdrantIndex", vectors)  # importing Qdrant needs an extra
        sources.insert(0, PostgresSource(index, candidates, vectors, cache, max_texts))
    return sources


def vector_index_for(spec: str | None, *, key: str | None = None) -> MakeVectorIndex | None:
    """The vector index that the operator chose, `pgvector` or `qdrant://HOST:PORT`; None to keep the store's.

    Connects to nothing before the store is open.
    """
    if spec is None:
        return None
    if spec == "pgvector":
        return lambda db, _: PgVectorIndex(db, replaces_qdrant=True)
    with requires_extra("qdrant://", extra="qdrant"):
        from alcove.engine.qdrant.client import QdrantPoints  # noqa: PLC0415
        from alcove.engine.qdrant.index import QdrantIndex  # noqa: PLC0415
    points = QdrantPoints(spec, key)
    return lambda db, locks: QdrantIndex(db, locks, points, window_vectors)
