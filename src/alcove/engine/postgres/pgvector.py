"""The vector index of PostgreSQL with pgvector: the table `windows`, a vector for each window of a text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from alcove.engine.database import CheckResults, Connection, Database
from alcove.engine.rows import Scope, Text
from alcove.engine.statements import Params
from alcove.engine.vector_index import (
    EXTERNAL,
    CandidateQuery,
    IndexProgress,
    NearestTexts,
    Vector,
    VectorIndex,
)

log = logging.getLogger("alcove")

MIN_INDEXED = 10_000
"""With fewer vectors, an HNSW index is not worth its cost."""
MAX_DIMENSIONS = 4000
"""The most dimensions of half-precision vectors that pgvector can index."""
MAX_EF_SEARCH = 1000
"""The most candidates that pgvector looks at in one step."""
SMALL_SHARE, MAX_COMPARED = 20, 50_000
"""A scope with less than one in twenty of all texts, and at most this many, is compared without the HNSW
index, which would take longer."""

BUILD_LOCK = 0x416C6376_0003
"""The advisory lock for building the HNSW index; each store of a database adds its own number."""
BUILD_MEMORY = "256MB"
"""The least `maintenance_work_mem` while building; less makes it many times slower."""
VECTORS_IN_QDRANT = "the vectors are in a vector store that is not configured for this process"


class PgVectorIndex(VectorIndex):
    """Finds texts by vector with pgvector."""

    def __init__(self, db: Database, *, replaces_qdrant: bool = False) -> None:
        """`replaces_qdrant`: stops using a Qdrant that was used before."""
        self._db = db
        if replaces_qdrant and (collections := self._qdrant_collections()):
            with db.write() as writer:
                for statement in ("delete_vector_store", "clear_to_remove", "reset_index"):
                    writer.run(statement)
            log.warning(
                "vectors: Qdrant's collections %s_… are no longer used; delete them in Qdrant", collections
            )

    def _qdrant_collections(self) -> str | None:
        """The common prefix of the collections in Qdrant, if it was used."""
        rows = self._db.fetch("vector_store")
        return f"alcove_{rows[0][0]}" if rows else None

    def add(self, db: Connection, dimensions: int, vectors: Mapping[int, Sequence[Vector]]) -> int:
        if dimensions == EXTERNAL:
            return dimensions
        rows = [(seq, vector) for seq, windows in vectors.items() for vector in windows]
        size = max((len(vector) for _, vector in rows), default=dimensions)
        if size != dimensions and size <= MAX_DIMENSIONS:
            dimensions = size
            drop_windows(db)
            db.run("make_windows", dimensions=str(dimensions))
            db.run("windows_by_text")
        db.run_many("add_window", [(seq, _literal(row)) for seq, row in rows if len(row) == dimensions])
        return dimensions

    def nearest(
        self, scope: Scope, query: CandidateQuery, *, now: int, while_waiting: Callable[[], None]
    ) -> NearestTexts:
        """Returns the nearest texts of a scope, at least as many as the query's limit if there are.

        Calls `while_waiting` while the database works.
        """
        assert query.vector is not None
        texts: dict[int, Text] = {}
        with self._db.snapshot() as db:
            _, dimensions, total = IndexProgress.read(db)
            if dimensions != len(query.vector):
                return NearestTexts(set(), VECTORS_IN_QDRANT if dimensions == EXTERNAL else None)
            is_small = query.text_count < min(total // SMALL_SHARE, MAX_COMPARED)
            for name, sorting in (("nearest", "off"), ("nearest_of_few", "on"))[is_small:]:
                is_prepared = name == "nearest" and not scope.filter.conditions  # one plan for every vector
                plan = "force_generic_plan" if is_prepared else "auto"
                db.run("set_scan_options", (min(query.limit, MAX_EF_SEARCH), sorting, plan))
                params: Params = [scope.low, scope.high, now, _literal(query.vector)]
                predicate = self._db.predicate(scope, params)
                params += [query.limit, query.embedder]
                answer = (db.run_prepared if is_prepared else db.run)(name, params, condition=predicate)
                db.flush()
                while_waiting()
                rows = answer.fetchall()
                texts |= {row[0]: Text(*row[:-1]) for row in rows}
                if sum(window_count for *_, window_count in rows) == query.limit:
                    break
        return NearestTexts({*texts}, None, [*texts.values()])

    def optimize(self) -> None:
        """Builds the HNSW index once it pays; writes continue while it is built."""
        with self._db.read() as db:
            if IndexProgress.read(db).dimensions <= 0 or not db.run("needs_hnsw_index", (MIN_INDEXED,)).get:
                return
            if not db.run("try_lock_build", (BUILD_LOCK,)).get:
                return  # another node builds it
            memory = db.run("setting", ("maintenance_work_mem",)).get
            try:
                db.run("raise_setting", (BUILD_MEMORY,))
                if db.run("needs_hnsw_index", (MIN_INDEXED,)).get:
                    db.run("drop_hnsw_index", schema=db.run("own_schema").get)
                    db.run("create_hnsw_index")
            finally:
                db.run("set_config", ("maintenance_work_mem", memory))
                db.run("unlock_build", (BUILD_LOCK,))

    def remove_ended(self) -> bool:
        return not self._db.fetch("to_remove", 1)

    def check(self) -> CheckResults:
        if collections := self._qdrant_collections():
            yield "vectors are where searches look", 0, [f"they are in Qdrant, in {collections}_…"]


def drop_windows(db: Connection) -> None:
    """Drops this store's table of windows, if it has one."""
    db.run("drop_windows", schema=db.run("own_schema").get)


def _literal(vector: Vector) -> str:
    """A vector as pgvector reads it, with the digits of half precision."""
    return f"[{','.join(map('{:.5g}'.format, vector))}]"
