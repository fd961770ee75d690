"""Texts that a database finds by itself, by meaning and by words, where a subtree is too large for memory.

What is kept for that (`terms`, `windows`) is made of the vectors and the texts there are, in the order in
which vectors came, so that it can always be made again; what it lacks yet is told, and read as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from heapq import nlargest
from itertools import chain
from operator import itemgetter

from alcove.engine.database import Connection, Database, Findings, Found
from alcove.engine.rows.indexing import Text
from alcove.engine.scope import Scope
from alcove.engine.statements import Params
from alcove.engine.vector_index import FARTHEST, Asked, IndexProgress, Nearest, Vector, VectorIndex

AT_ONCE = 100
"""Texts that are taken in by one transaction: as long others wait for their writes."""
MOST_MISSING = 1000
"""Texts of a subtree that `terms` lacks and that are read as they are; with more of them it is not used."""
WIDER = 16
"""How many times as many as are wanted are weighed for each term by which they are looked for."""
MOST_WEIGHED = 64
"""Terms that a text's rank by words is made of."""

Made = tuple[Sequence[int], Sequence[Vector]]
"""A text's terms as numbers, and its windows' vectors."""
Make = Callable[[str, bytes], Made]
"""From an index text and its kept vectors."""
Take = Callable[[Iterable[Text]], None]


class CandidateIndex:
    """Finds the likeliest texts of a scope, for who ranks them."""

    def __init__(self, db: Database, vector_index: VectorIndex) -> None:
        self._db = db
        self._vector_index = vector_index

    # Keeping up

    def behind(self) -> bool:
        """Whether there are texts to take in."""
        with self._db.read() as db:
            return bool(_next(db, 1)[1])

    def take_in(self, make: Make) -> int:
        """Makes some texts findable that have got their vectors since the last call; how many."""
        with self._db.write(durable=False) as db:
            reached, page = _next(db, AT_ONCE)
            if page:
                dimensions = self.keep(db, reached, {seq: make(text, body) for _, seq, text, body in page})
                db.run("reach_searchable", (reached.embedder, dimensions, page[-1][0]))
        return len(page)

    def keep(self, db: Connection, before: IndexProgress, made: Mapping[int, Made]) -> int:
        """Keeps what texts are found by; how many dimensions their vectors have."""
        db.run("forget_terms", (json.dumps([*made]),))
        db.run_each("add_terms", [(seq, json.dumps(terms)) for seq, (terms, _) in made.items()])
        windows = {seq: vectors for seq, (_, vectors) in made.items()}
        return self._vector_index.keep(db, before.dimensions, windows)

    def tidy(self) -> None:
        """Called when all there is has been taken in."""
        self._vector_index.tidy()

    def check(self) -> Findings:
        """Each check of what is kept here against memories."""
        with self._db.snapshot() as db:
            yield from db.checks("candidates_checks.sql")

    # Finding

    def count(self, scope: Scope, most: int) -> int:
        """How many texts of a scope's subtree can be found, counted up to a number."""
        ((count,),) = self._db.fetch("searchable_up_to", scope.low, scope.high, most)
        return int(count)

    def sample(self, scope: Scope, size: int) -> tuple[dict[int, int], int]:
        """Some texts of a scope's subtree, in runs evenly from all of it, and how many those are."""
        found = self._db.fetch("sampled", scope.low, scope.high, size)
        return {seq: run for seq, run, _ in found}, found[0][2] if found else 0

    def around(self, seqs: Sequence[int], most: int) -> dict[int, list[int]]:
        """For each of some texts, so many before and after it in the order of writing, in its namespace."""
        found: dict[int, list[int]] = {}
        for seq, near in self._db.fetch("around", json.dumps([*seqs]), most):
            found.setdefault(seq, []).append(near)
        return found

    def missing(self, scope: Scope, embedder: str) -> list[int] | None:
        """Texts of a scope that cannot be found yet; those without vectors first, and the newest of them.

        None where so many have vectors and cannot be found that this is of no use.
        """
        if not self._db.fetch("lagging", embedder)[0][0]:
            return []
        with self._db.snapshot() as db:
            known, _, upto = IndexProgress.of(db)
            params: Params = [scope.low, scope.high, upto if known == embedder else 0, embedder]
            where = self._db.where(scope, params)
            later = db.run("unsearchable", [*params, MOST_MISSING + 1], where=where).fetchall()
            if len(later) > MOST_MISSING:
                return None
            params = [scope.low, scope.high]
            where = self._db.where(scope, params)
            queued = db.run("queued", [*params, MOST_MISSING], where=where).fetchall()
            return [seq for (seq,) in chain(queued, later)]

    def find(self, scope: Scope, asked: Asked, take: Take, *, now: int) -> Nearest:
        """The likeliest texts of a scope: the nearest in meaning, and those with the most telling words.

        `take` is given texts as they come: those with the words while meaning is still looked for, on a
        connection of their own, if there is one.
        """
        near, wanted = Nearest(set()), bool(asked.keys)

        def look(connection: AbstractContextManager[Connection | None]) -> None:
            nonlocal wanted
            with connection as db:
                if db and wanted:
                    take(map(Text._make, self._holding(db, scope, asked, now=now)))
                    wanted = False

        if asked.vector is not None:
            near = self._vector_index.nearest(
                scope, asked, asked.vector, lambda: look(self._db.snapshot_beside()), now=now
            )
            take(near.texts)
        if wanted:
            look(self._db.snapshot())
        return near

    def _holding(self, db: Connection, scope: Scope, asked: Asked, *, now: int) -> Found:
        """Those with the most telling words."""
        db.run("look_far", (FARTHEST, "on", "auto"))
        params: Params = [scope.low, scope.high, now, json.dumps([*asked.keys])]
        params.append(WIDER * asked.most)
        adds = []
        for term, weight in nlargest(MOST_WEIGHED, asked.weights.items(), key=itemgetter(1)):
            params += [term, weight]
            adds.append(f"CASE WHEN ?{len(params) - 1} = ANY (terms) THEN ?{len(params)} ELSE 0 END")
        where = self._db.where(scope, params)
        return db.run("holding", [*params, asked.most, asked.embedder], weight=" + ".join(adds), where=where)

    def texts(self, scope: Scope, embedder: str, seqs: Sequence[int], *, now: int) -> list[Text]:
        """Those of some texts that a scope shows now."""
        params: Params = [scope.low, scope.high, now, embedder, json.dumps([*seqs])]
        where = self._db.where(scope, params)
        with self._db.read() as db:
            return [*map(Text._make, db.run("texts_of", params, where=where))]


def _next(db: Connection, limit: int) -> tuple[IndexProgress, list[tuple[int, int, str, bytes]]]:
    """How far the embedder that serves has come, and the next of its vectors with their texts."""
    serving, reached = db.run("serving").get, IndexProgress.of(db)
    if reached.embedder != serving:
        reached = IndexProgress(serving, 0, 0)  # all that was kept is of another one
    return reached, db.run("next_searchable", (reached.upto, serving or "", limit)).fetchall()
