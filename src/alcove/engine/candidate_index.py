"""An index in the database by which searches find candidates in scopes that are too large for memory.

It is made from texts and their vectors in the order in which the vectors were stored, so it can be rebuilt
at any time. Searches read the texts that it lacks as they are.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from alcove.engine.database import CheckResults, Connection, Database
from alcove.engine.rows import Scope, Text
from alcove.engine.statements import Params
from alcove.engine.vector_index import IndexProgress, Vector

BATCH = 100
"""Texts that one transaction indexes; other writers wait for as long."""
MAX_MISSING = 1000
"""Texts of a scope that the index may lack and that a search reads as they are."""

IndexEntry = tuple[Sequence[int], Sequence[Vector]]
"""A text's terms as numbers, and the vectors of its windows."""
MakeEntry = Callable[[str, bytes], IndexEntry]
"""Makes the entry of an index text and its stored vectors."""


class CandidateIndex(ABC):
    """Terms and vectors by which the likeliest texts of a scope are found."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @abstractmethod
    def add(self, db: Connection, before: IndexProgress, entries: Mapping[int, IndexEntry]) -> int:
        """Stores entries by version; returns the dimensions of their vectors."""

    def optimize(self) -> None:  # noqa: B027  not every index needs it
        """Runs when the index has caught up."""

    # Keeping in step

    def has_backlog(self) -> bool:
        """Whether there are texts to index."""
        with self._db.read() as db:
            return bool(_next_page(db, 1)[1])

    def catch_up(self, make_entry: MakeEntry) -> int:
        """Indexes some of the texts that got vectors since the last call; returns how many."""
        with self._db.write(durable=False) as db:
            progress, page = _next_page(db, BATCH)
            if page:
                entries = {seq: make_entry(text, body) for _, seq, text, body in page}
                dimensions = self.add(db, progress, entries)
                db.run("reach_searchable", (progress.embedder, dimensions, page[-1][0]))
        return len(page)

    def check(self) -> CheckResults:
        """Compares the index with memories."""
        with self._db.snapshot() as db:
            yield from db.run_checks("candidates_checks.sql")

    # Reading

    def count(self, scope: Scope, limit: int) -> int:
        """How many texts of a scope are indexed, counted up to a limit."""
        ((count,),) = self._db.fetch("searchable_up_to", scope.low, scope.high, limit)
        return int(count)

    def neighbours(self, seqs: Sequence[int], distance: int) -> dict[int, list[int]]:
        """For each text, those up to a distance before and after it, in order of writing, in its
        namespace."""
        near: dict[int, list[int]] = {}
        for seq, neighbour in self._db.fetch("around", json.dumps([*seqs]), distance):
            near.setdefault(seq, []).append(neighbour)
        return near

    def missing(self, scope: Scope, embedder: str) -> list[int] | None:
        """Texts of a scope that are not indexed yet: those without vectors first, newest first.

        None if so many have vectors that the index is of no use.
        """
        if not self._db.fetch("lagging", embedder)[0][0]:
            return []
        with self._db.snapshot() as db:
            progress = IndexProgress.read(db)
            last = progress.last_vector if progress.embedder == embedder else 0
            params: Params = [scope.low, scope.high, last, embedder]
            predicate = self._db.predicate(scope, params)
            unindexed = db.run("unsearchable", [*params, MAX_MISSING + 1], condition=predicate).fetchall()
            if len(unindexed) > MAX_MISSING:
                return None
            params = [scope.low, scope.high]
            predicate = self._db.predicate(scope, params)
            queued = db.run("queued", [*params, MAX_MISSING], condition=predicate).fetchall()
            return [seq for (seq,) in chain(queued, unindexed)]

    def texts(self, scope: Scope, embedder: str, seqs: Sequence[int], *, now: int) -> list[Text]:
        """Those of some texts that a scope shows now."""
        params: Params = [scope.low, scope.high, now, embedder, json.dumps([*seqs])]
        predicate = self._db.predicate(scope, params)
        with self._db.read() as db:
            return [*map(Text._make, db.run("texts_of", params, condition=predicate))]


def _next_page(db: Connection, limit: int) -> tuple[IndexProgress, list[tuple[int, int, str, bytes]]]:
    """How far the serving embedder's vectors are indexed, and the next of them with their texts."""
    serving, progress = db.run("serving").get, IndexProgress.read(db)
    if progress.embedder != serving:
        progress = IndexProgress(serving, 0, 0)  # the index is of another embedder
    return progress, db.run("next_searchable", (progress.last_vector, serving or "", limit)).fetchall()
