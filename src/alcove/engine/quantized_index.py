"""What a SQLite file keeps of its texts for the search of large subtrees, and hands out at once.

It finds nothing by itself: who searches holds the digests of a subtree in memory. A digest is the words of a
text as numbers, and its vectors in a byte a number; it lies beside the others of its room.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping

from alcove.engine.candidate_index import CandidateIndex, Made
from alcove.engine.database import Connection, Database
from alcove.engine.scope import Scope
from alcove.engine.statements import Params
from alcove.engine.vector_index import IndexProgress, Vector

Digest = tuple[int, bytes, bytes]
"""A version, its terms and its vectors, rounded."""
WORTH_KEEPING = 10_000
"""Vectors that a store has ever had, above which some subtree may be too large to hold."""
BITS = 0xFFFFFFFF
"""Of a term's number, those that are kept."""


class QuantizedIndex(CandidateIndex):
    """Keeps digests in step with vectors."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def behind(self) -> bool:
        with self._db.read() as db:
            worth = db.run("state").get[1] > WORTH_KEEPING
        return worth and super().behind()

    def tidy(self) -> None:
        """There is nothing to be done."""

    def keep(self, db: Connection, before: IndexProgress, made: Mapping[int, Made]) -> int:
        dimensions = before.dimensions
        if not before.upto:
            db.run("forget_digests")  # of another embedder
            dimensions = max((len(each) for _, vectors in made.values() for each in vectors), default=0)
        rows = []
        for seq, (terms, vectors) in made.items():
            numbers = struct.pack(f"<{len(terms)}I", *(term & BITS for term in terms))
            rounded = b"".join(_rounded(each) for each in vectors if len(each) == dimensions)
            rows.append((seq, numbers, rounded))
        db.run_each("add_digest", rows)
        return dimensions

    def digests(self, scope: Scope, after: int) -> tuple[IndexProgress, list[Digest]]:
        """Those of all that a scope shows whose vectors came after a position; and how far they reach."""
        with self._db.snapshot() as db:
            reached = IndexProgress.of(db)
            if reached.upto <= after:
                return reached, []
            params: Params = [scope.low, scope.high, after]
            where = self._db.where(scope, params)
            return reached, db.run("digests_after" if after else "digests", params, where=where).fetchall()

    def shown(self, scope: Scope, seqs: Collection[int], *, now: int) -> set[int]:
        """Those of some texts that a scope shows now."""
        params: Params = [str([*seqs]), scope.low, scope.high, now]
        where = self._db.where(scope, params)
        return {seq for (seq,) in self._db.stream("shown", params, where=where)}


def _rounded(vector: Vector) -> bytes:
    """A vector's direction in whole numbers of one byte."""
    step = max(map(abs, vector)) / 127 or 1.0
    return struct.pack(f"{len(vector)}b", *(round(each / step) for each in vector))
