"""The candidate index of PostgreSQL: terms in the table `terms`, and vectors in a vector index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from heapq import nlargest
from operator import itemgetter

from alcove.engine.candidate_index import CandidateIndex, IndexEntry
from alcove.engine.database import Connection, Database, Result
from alcove.engine.postgres.pgvector import MAX_EF_SEARCH
from alcove.engine.rows import Scope, Text
from alcove.engine.statements import Params
from alcove.engine.vector_index import CandidateQuery, IndexProgress, VectorIndex

OVERSAMPLING = 16
"""For each term, how many times the query's limit of texts are weighed."""
MAX_WEIGHTED_TERMS = 64
"""Terms that make up a text's rank."""

TakeTexts = Callable[[Iterable[Text]], None]


class TermIndex(CandidateIndex):
    """Finds texts by their terms, and feeds the vector index."""

    def __init__(self, db: Database, vector_index: VectorIndex) -> None:
        super().__init__(db)
        self._vector_index = vector_index

    def add(self, db: Connection, before: IndexProgress, entries: Mapping[int, IndexEntry]) -> int:
        db.run("forget_terms", (json.dumps([*entries]),))
        db.run_many("add_terms", [(seq, json.dumps(terms)) for seq, (terms, _) in entries.items()])
        vectors = {seq: windows for seq, (_, windows) in entries.items()}
        return self._vector_index.add(db, before.dimensions, vectors)

    def optimize(self) -> None:
        self._vector_index.optimize()

    def sample(self, scope: Scope, size: int) -> tuple[dict[int, int], int]:
        """Some texts of a scope in runs spread evenly, each with its run; and how many texts there are."""
        rows = self._db.fetch("sampled", scope.low, scope.high, size)
        return {seq: run for seq, run, _ in rows}, rows[0][2] if rows else 0

    def find(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> None:
        """Passes on the texts of a scope whose terms weigh most together."""
        self._find(self._db.snapshot(), scope, query, take, now)

    def find_beside(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> bool:
        """The same on a second connection, beside another query; returns False if none is free."""
        return self._find(self._db.try_snapshot(), scope, query, take, now)

    def _find(
        self,
        connection: AbstractContextManager[Connection | None],
        scope: Scope,
        query: CandidateQuery,
        take: TakeTexts,
        now: int,
    ) -> bool:
        with connection as db:
            if db:
                take(map(Text._make, self._rows_with_terms(db, scope, query, now=now)))
            return db is not None

    def _rows_with_terms(self, db: Connection, scope: Scope, query: CandidateQuery, *, now: int) -> Result:
        db.run("look_far", (MAX_EF_SEARCH, "on", "auto"))
        params: Params = [scope.low, scope.high, now, json.dumps([*query.terms]), OVERSAMPLING * query.limit]
        weights = []
        for term, weight in nlargest(MAX_WEIGHTED_TERMS, query.weights.items(), key=itemgetter(1)):
            params += [term, weight]
            weights.append(f"CASE WHEN ?{len(params) - 1} = ANY (terms) THEN ?{len(params)} ELSE 0 END")
        predicate = self._db.predicate(scope, params)
        params += [query.limit, query.embedder]
        return db.run("holding", params, weight=" + ".join(weights), condition=predicate)
