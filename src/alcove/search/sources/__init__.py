"""Where a search finds its candidates: in memory, in quantized vectors, with pgvector or with Qdrant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alcove.core.errors import requires_extra
from alcove.engine.index import SearchIndex
from alcove.engine.postgres.pgvector import PgVectorIndex
from alcove.engine.quantized_index import QuantizedIndex
from alcove.engine.vector_index import MakeVectorIndex
from alcove.search.text_vectors import window_vectors

if TYPE_CHECKING:
    from alcove.search.sources.base import CandidateSource

MAX_TEXTS_IN_MEMORY = 20_000
"""Texts of a scope above which the database finds its candidates, unless the settings say otherwise."""


def database_source(index: SearchIndex, max_texts: int = MAX_TEXTS_IN_MEMORY) -> CandidateSource | None:
    """The source for scopes with more than `max_texts` texts; None if the database has no candidate index."""
    # Each loads numpy, which a store that is not searched does without.
    if index.candidates is None:
        return None
    if isinstance(index.candidates, QuantizedIndex):
        from alcove.search.sources.quantized import QuantizedSource  # noqa: PLC0415

        return QuantizedSource(index, max_texts)
    if isinstance(index.vector_index, PgVectorIndex):
        from alcove.search.sources.pgvector import PgVectorSource  # noqa: PLC0415

        return PgVectorSource(index, max_texts)
    from alcove.search.sources.qdrant import QdrantSource  # noqa: PLC0415

    return QdrantSource(index, max_texts)


def vector_index_for(spec: str | None, *, key: str | None = None) -> MakeVectorIndex | None:
    """The vector index that an operator named: `pgvector` or `qdrant://HOST:PORT`.

    None if they named none: then the store keeps the one it has. Connects to nothing before the store is
    open.
    """
    if spec is None:
        return None
    if spec == "pgvector":
        return lambda db, _: PgVectorIndex(db, replaces_qdrant=True)
    with requires_extra("qdrant://", extra="qdrant"):
        from alcove.engine.qdrant.client import QdrantPoints  # noqa: PLC0415  an extra
        from alcove.engine.qdrant.index import QdrantIndex  # noqa: PLC0415
    points = QdrantPoints(spec, key)
    return lambda db, locks: QdrantIndex(db, locks, points, window_vectors)
