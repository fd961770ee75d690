"""An index in the database with which searches find candidates in scopes that are too large for memory.

It is built from texts and their vectors in the order in which the vectors were stored, so it can be rebuilt
at any time. Searches read the texts that are not indexed yet directly.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from alcove.engine.database import CheckResults, Connection, Database
from alcove.engine.rows import Scope, Text
from alcove.engine.vector_index import IndexProgress, Vector

BATCH = 100
"""Texts that one transaction indexes, while other writers wait."""
MAX_MISSING = 1000
"""The most texts of a scope that may be missing from the index; a search reads them directly."""

IndexEntry = tuple[Sequence[int], Sequence[Vector]]
"""A text's terms as numbers, and the vectors of its windows."""
MakeEntry = Callable[[str, bytes], IndexEntry]
"""Makes the entry for an index text and its stored vectors."""


class CandidateIndex(ABC):
    """Finds the likeliest texts of a scope by terms and vectors."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @abstractmethod
    def add(self, db: Connection, before: IndexProgress, entries: Mapping[int, IndexEntry]) -> int:
        """Stores entries by version; returns the dimensions of their vectors."""

    def optimize(self) -> None:  # noqa: B027  not every index needs it
        """Runs when the index has caught up."""

    # Indexing

    def has_backlog(self) -> bool:
        """True if there are texts to index."""
        with self._db.read() as db:
            return bool(_next_page(db, 1)[1])

    def catch_up(self, make_entry: MakeEntry) -> int:
        """Indexes some of the texts that got vectors since the last call; returns how many."""
        with self._db.write(durable=False) as db:
            progress, page = _next_page(db, BATCH)
            if page:
                entries = {seq: make_entry(text, body) for _, seq, text, body in page}
                dimensions = self.add(db, progress, entries)
                db.run("set_index_progress", (progress.embedder, dimensions, page[-1][0]))
        return len(page)

    def check(self) -> CheckResults:
        """Compares the index with memories."""
        return self._db.run_checks("candidates_checks.sql")

    # Reading

    def count(self, scope: Scope, limit: int) -> int:
        """Counts the indexed texts of a scope, up to a limit."""
        ((count,),) = self._db.fetch("indexed_count", scope.low, scope.high, limit)
        return int(count)

    def neighbours(self, seqs: Sequence[int], distance: int) -> dict[int, list[int]]:
        """For each text, those written up to this many texts before and after it in its namespace."""
        near: dict[int, list[int]] = {}
        for seq, neighbour in self._db.fetch("neighbours", json.dumps([*seqs]), distance):
            near.setdefault(seq, []).append(neighbour)
        return near

    def missing(self, scope: Scope, embedder: str) -> list[int] | None:
        """Texts of a scope that are not indexed yet: those without vectors first, newest first.

        None if more than `MAX_MISSING` texts have vectors, which makes the index useless.
        """
        if not self._db.fetch("has_unindexed_texts", embedder)[0][0]:
            return []
        with self._db.snapshot() as db:
            progress = IndexProgress.read(db)
            last = progress.last_vector if progress.embedder == embedder else 0
            place = (scope.low, scope.high)
            params = (*place, last, embedder)
            unindexed = self._db.run_scoped(
                db, "unindexed_texts", scope, params, [MAX_MISSING + 1]
            ).fetchall()
            if len(unindexed) > MAX_MISSING:
                return None
            queued = self._db.run_scoped(db, "queued_texts", scope, place, [MAX_MISSING]).fetchall()
            return [seq for (seq,) in chain(queued, unindexed)]

    def texts(self, scope: Scope, embedder: str, seqs: Sequence[int], *, now: int) -> list[Text]:
        """Returns those of some texts that are visible in a scope now."""
        params = (scope.low, scope.high, now, embedder, json.dumps([*seqs]))
        with self._db.read() as db:
            return [*map(Text._make, self._db.run_scoped(db, "texts_of", scope, params))]


def _next_page(db: Connection, limit: int) -> tuple[IndexProgress, list[tuple[int, int, str, bytes]]]:
    """Returns how far the serving embedder's vectors are indexed, and the next vectors with their texts."""
    serving, progress = db.run("serving").get, IndexProgress.read(db)
    if progress.embedder != serving:
        progress = IndexProgress(serving, 0, 0)  # the index was built for another embedder
    return progress, db.run("next_vectors_to_index", (progress.last_vector, serving or "", limit)).fetchall()
