"""The candidate index of SQLite: each text's terms as numbers, and its vectors with one byte per dimension.

SQLite does not search it. A search reads all entries of its scope into memory, where a text takes about 600
bytes instead of thousands.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping

from alcove.engine.candidate_index import CandidateIndex, IndexEntry
from alcove.engine.database import Connection
from alcove.engine.rows import Scope
from alcove.engine.vector_index import IndexProgress, Vector

QuantizedEntry = tuple[int, bytes, bytes]
"""A version, its terms and its quantized vectors."""
MIN_VECTORS = 10_000
"""A store that never had more vectors needs no candidate index: every scope fits into memory."""
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
            db.run("delete_quantized")  # they belong to another embedder
            dimensions = max((len(each) for _, vectors in entries.values() for each in vectors), default=0)
        rows = []
        for seq, (terms, vectors) in entries.items():
            numbers = struct.pack(f"<{len(terms)}I", *(term & TERM_BITS for term in terms))
            rows.append((seq, numbers, b"".join(quantize(v) for v in vectors if len(v) == dimensions)))
        db.run_many("add_quantized", rows)
        return dimensions

    def entries(self, scope: Scope, after: int) -> tuple[IndexProgress, list[QuantizedEntry]]:
        """Returns the index's progress, and a scope's entries whose vectors came after a position."""
        with self._db.snapshot() as db:
            progress = IndexProgress.read(db)
            if progress.last_vector <= after:
                return progress, []
            statement, params = (
                "quantized_entries_after" if after else "quantized_entries",
                (scope.low, scope.high, after),
            )
            return progress, self._db.run_scoped(db, statement, scope, params).fetchall()

    def visible(self, scope: Scope, seqs: Collection[int], *, now: int) -> set[int]:
        """Returns those of some texts that are visible in a scope now."""
        params = (str([*seqs]), scope.low, scope.high, now)
        return {seq for (seq,) in self._db.select("visible_texts", scope, params)}


def quantize(vector: Vector) -> bytes:
    """A vector's direction, with a signed byte for each dimension."""
    step = max(map(abs, vector)) / 127 or 1.0
    return struct.pack(f"{len(vector)}b", *(round(each / step) for each in vector))
