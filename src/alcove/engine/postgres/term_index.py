"""The candidate index of PostgreSQL: terms in the table `terms`, and vectors in a vector index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest
from operator import itemgetter

from alcove.engine.candidate_index import CandidateIndex, IndexEntry
from alcove.engine.database import Connection, Database, Result
from alcove.engine.postgres.pgvector import MAX_EF_SEARCH
from alcove.engine.rows import Scope, Text
from alcove.engine.statements import Params
from alcove.engine.vector_index import CandidateQuery, IndexProgress, VectorIndex

OVERSAMPLING = 16
"""For each term, this many times the query's limit of texts are ranked."""
MAX_WEIGHTED_TERMS = 64
"""The most terms that count for a text's rank."""

TakeTexts = Callable[[Iterable[Text]], None]


class TermIndex(CandidateIndex):
    """Finds texts by their terms, and adds vectors to the vector index."""

    def __init__(self, db: Database, vector_index: VectorIndex) -> None:
        super().__init__(db)
        self._vector_index = vector_index

    def add(self, db: Connection, before: IndexProgress, entries: Mapping[int, IndexEntry]) -> int:
        db.run("delete_terms", (json.dumps([*entries]),))
        db.run_many("add_terms", [(seq, json.dumps(terms)) for seq, (terms, _) in entries.items()])
        vectors = {seq: windows for seq, (_, windows) in entries.items()}
        return self._vector_index.add(db, before.dimensions, vectors)

    def optimize(self) -> None:
        self._vector_index.optimize()

    def sample(self, scope: Scope, size: int) -> tuple[dict[int, int], int]:
        """Samples a scope's texts in evenly spread runs; returns each one's run, and the count of all."""
        rows = self._db.fetch("sample", scope.low, scope.high, size)
        return {seq: run for seq, run, _ in rows}, rows[0][2] if rows else 0

    def find(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> None:
        """Passes the texts of a scope with the greatest total weight of terms to `take`."""
        with self._db.snapshot() as db:
            take(map(Text._make, self._rows_with_terms(db, scope, query, now=now)))

    def find_in_parallel(self, scope: Scope, query: CandidateQuery, take: TakeTexts, *, now: int) -> bool:
        """The same on a second connection, parallel to another query; False if none is free."""
        with self._db.try_snapshot() as db:
            if db:
                take(map(Text._make, self._rows_with_terms(db, scope, query, now=now)))
            return db is not None

    def _rows_with_terms(self, db: Connection, scope: Scope, query: CandidateQuery, *, now: int) -> Result:
        db.run("set_scan_options", (MAX_EF_SEARCH, "on", "auto"))
        params: Params = [scope.low, scope.high, now, json.dumps([*query.terms]), OVERSAMPLING * query.limit]
        weights = []
        for term, weight in nlargest(MAX_WEIGHTED_TERMS, query.weights.items(), key=itemgetter(1)):
            params += [term, weight]
            weights.append(f"CASE WHEN ?{len(params) - 1} = ANY (terms) THEN ?{len(params)} ELSE 0 END")
        predicate = self._db.predicate(scope, params)
        params += [query.limit, query.embedder]
        return db.run("texts_with_terms", params, weight=" + ".join(weights), condition=predicate)
