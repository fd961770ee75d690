"""The candidate index of SQLite: each text's terms as numbers, and its vectors with a byte for each
dimension.

SQLite does not search it. A search reads all entries of its scope into memory, where they take about 600
bytes a text instead of thousands.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping

from alcove.engine.candidate_index import CandidateIndex, IndexEntry
from alcove.engine.database import Connection
from alcove.engine.rows import Scope
from alcove.engine.statements import Params
from alcove.engine.vector_index import IndexProgress, Vector

QuantizedEntry = tuple[int, bytes, bytes]
"""A version, its terms and its quantized vectors."""
MIN_VECTORS = 10_000
"""Vectors that a store must have had before some scope may be too large for memory."""
TERM_BITS = 0xFFFFFFFF
"""The stored bits of a term's number."""


class QuantizedIndex(CandidateIndex):
    """Stores quantized entries, and reads those of a scope at once."""

    def has_backlog(self) -> bool:
        with self._db.read() as db:
            is_needed = db.run("state").get[1] > MIN_VECTORS
        return is_needed and super().has_backlog()

    def add(self, db: Connection, before: IndexProgress, entries: Mapping[int, IndexEntry]) -> int:
        dimensions = before.dimensions
        if not before.last_vector:
            db.run("forget_digests")  # of another embedder
            dimensions = max((len(each) for _, vectors in entries.values() for each in vectors), default=0)
        rows = []
        for seq, (terms, vectors) in entries.items():
            numbers = struct.pack(f"<{len(terms)}I", *(term & TERM_BITS for term in terms))
            rows.append((seq, numbers, b"".join(quantize(v) for v in vectors if len(v) == dimensions)))
        db.run_many("add_digest", rows)
        return dimensions

    def entries(self, scope: Scope, after: int) -> tuple[IndexProgress, list[QuantizedEntry]]:
        """The entries of a scope whose vectors came after a position, and how far the index is."""
        with self._db.snapshot() as db:
            progress = IndexProgress.read(db)
            if progress.last_vector <= after:
                return progress, []
            params: Params = [scope.low, scope.high, after]
            predicate = self._db.predicate(scope, params)
            statement = "digests_after" if after else "digests"
            return progress, db.run(statement, params, condition=predicate).fetchall()

    def visible(self, scope: Scope, seqs: Collection[int], *, now: int) -> set[int]:
        """Those of some texts that a scope shows now."""
        params: Params = [str([*seqs]), scope.low, scope.high, now]
        predicate = self._db.predicate(scope, params)
        return {seq for (seq,) in self._db.stream("shown", params, condition=predicate)}


def quantize(vector: Vector) -> bytes:
    """A vector's direction, with a signed byte for each dimension."""
    step = max(map(abs, vector)) / 127 or 1.0
    return struct.pack(f"{len(vector)}b", *(round(each / step) for each in vector))
