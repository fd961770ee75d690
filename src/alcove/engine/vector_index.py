"""The interface of vector indexes: pgvector inside the database, or Qdrant as a separate service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from alcove.engine.database import CheckResults, Connection, Database
from alcove.engine.locks import Locks
from alcove.engine.rows import Text

Vector = Sequence[float]

EXTERNAL = -1
"""Replaces the dimensions in the index's progress if the vectors are in Qdrant."""


class CandidateQuery(NamedTuple):
    """A query for an index."""

    limit: int
    """How many candidates to find by vector, and how many by terms."""
    vector: Vector | None
    terms: Sequence[int]
    """The rare terms, with which texts are looked up."""
    weights: Mapping[int, float]
    """What each term adds to a text's rank."""
    text_count: int = 0
    """The approximate count of the scope's texts."""
    embedder: str = ""
    """The embedder whose vectors are read with the texts."""


class NearestTexts(NamedTuple):
    """The texts whose vectors are nearest to a query's; `degraded` says why some may be missing."""

    seqs: set[int]
    degraded: str | None = None
    texts: Sequence[Text] = ()
    """Those that were read with the search."""


class IndexProgress(NamedTuple):
    """The embedder whose vectors are indexed, their dimensions, and the last indexed vector."""

    embedder: str | None
    dimensions: int
    last_vector: int

    @classmethod
    def read(cls, db: Connection) -> IndexProgress:
        return cls._make(db.run("index_progress").get or (None, 0, 0))


class VectorIndex(ABC):
    """An index of vectors, synchronised with the `vectors` table."""

    is_external = False
    """Whether it works without an extension of the database."""

    @property
    def problem(self) -> str | None:
        """Why it finds nothing now; None if it works."""
        return None

    @abstractmethod
    def add(self, db: Connection, dimensions: int, vectors: Mapping[int, Sequence[Vector]]) -> int:
        """Adds vectors of texts, by version, in the transaction that indexes their terms.

        Takes the dimensions of earlier vectors, and returns those of later ones.
        """

    @abstractmethod
    def optimize(self) -> None:
        """Runs when the index has caught up."""

    @abstractmethod
    def remove_ended(self) -> bool:
        """Removes vectors of ended versions; returns False if some stay until later."""

    @abstractmethod
    def check(self) -> CheckResults:
        """Compares the index with the database."""

    def start(self, interval: float) -> None:  # noqa: B027  pgvector has no background work
        """Starts background work, at least every `interval` seconds."""

    def close(self) -> None:  # noqa: B027
        """Stops background work."""


MakeVectorIndex = Callable[[Database, Locks], VectorIndex]
