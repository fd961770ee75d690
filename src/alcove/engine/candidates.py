"""Texts that a database finds by itself, by meaning and by words, where a subtree is too large for memory.

What is kept for that (`terms`, `windows`) is made of the vectors and the texts there are, in the order in
which vectors came, so that it can always be made again; what it lacks yet is told, and read as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from alcove.engine.database import Connection, Database, Findings
from alcove.engine.rows import Scope, Text
from alcove.store.filters import Params

AT_ONCE = 100
"""Texts that are taken in by one transaction: as long others wait for their writes."""
MOST_MISSING = 1000
"""Texts of a subtree that `terms` lacks and that are read as they are; with more of them it is not used."""
MOST_HOLDING = 5000
"""Texts with one of a question's rare words that are weighed."""
WORTH_ORDERING = 10_000
"""Windows above which an index by meaning pays."""
MOST_DIMENSIONS = 4000
"""Of vectors that pgvector can put into an index, in half precision."""
FARTHEST = 1000
"""How many candidates pgvector looks at in one step at most."""

ORDERING = 0x416C6376_0003
"""The lock of whoever makes the index by meaning."""
ROOM = "256MB"
"""For building the index by meaning: it takes many times as long where it does not fit."""

Made = tuple[Sequence[int], Sequence[str]]
"""A text's terms as numbers, and its windows' vectors as pgvector spells them."""
Make = Callable[[str, bytes], Made]
"""From an index text and its kept vectors."""


class Asked(NamedTuple):
    """A question as a database is asked it."""

    most: int
    """How many candidates each way may bring."""
    vector: str | None
    keys: Sequence[int]
    """Terms by which texts are looked for: rare ones."""
    weights: Mapping[int, float]
    """What each term adds to a text's rank by words."""


class Candidates:
    """Finds the likeliest texts of a scope, for who ranks them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # Keeping up

    def take_in(self, make: Make) -> int:
        """Makes some texts findable that have got their vectors since the last call; how many."""
        with self._db.read() as db:
            if not _next(db, 1)[1]:
                return 0
        with self._db.write(durable=False) as db:
            (serving, dimensions, _), page = _next(db, AT_ONCE)
            made = {seq: make(text, body) for _, seq, text, body in page}
            sizes = {vector.count(",") + 1 for _, vectors in made.values() for vector in vectors}
            if sizes and max(sizes) != dimensions and max(sizes) <= MOST_DIMENSIONS:
                dimensions = max(sizes)
                db.run("drop_windows")
                db.run("make_windows", dimensions=str(dimensions))
                db.run("windows_by_text")
                db.run("windows_by_place")
            db.run("forget_terms", (json.dumps([*made]),))
            db.run_each("add_terms", [(seq, json.dumps(terms)) for seq, (terms, _) in made.items()])
            windows = ((seq, each) for seq, (_, vectors) in made.items() for each in vectors)
            db.run_each("add_window", [w for w in windows if w[1].count(",") + 1 == dimensions])
            if page:
                db.run("reach_searchable", (serving, dimensions, page[-1][0]))
        return len(page)

    def put_in_order(self) -> None:
        """Makes the index by meaning, once there is so much that it pays; others go on meanwhile."""
        with self._db.read() as db:
            if not _reached(db).dimensions or not db.run("windows_to_order", (WORTH_ORDERING,)).get:
                return
            if not db.run("begin_to_order", (ORDERING,)).get:
                return  # another node is at it
            usual = db.run("setting", ("maintenance_work_mem",)).get
            try:
                db.run("set", ("maintenance_work_mem", ROOM))
                if db.run("windows_to_order", (WORTH_ORDERING,)).get:
                    db.run("forget_order")
                    db.run("order_windows")
            finally:
                db.run("set", ("maintenance_work_mem", usual))
                db.run("end_to_order", (ORDERING,))

    def check(self) -> Findings:
        """Each check of what is kept here against memories."""
        with self._db.snapshot() as db:
            yield from db.checks("candidates_checks.sql")

    # Finding

    def count(self, scope: Scope, most: int) -> int:
        """How many texts of a scope's subtree can be found, counted up to a number."""
        ((count,),) = self._db.fetch("searchable_up_to", scope.low, scope.high, most)
        return int(count)

    def sample(self, scope: Scope, embedder: str, size: int) -> tuple[list[Text], int]:
        """Some texts of a scope, evenly from all of its subtree, and how many those are."""
        with self._db.snapshot() as db:
            found = db.run("sampled", (scope.low, scope.high, size)).fetchall()
            every = found[0][1] if found else 0
            return self._texts(db, scope, embedder, [seq for seq, _ in found], now=0), every

    def missing(self, scope: Scope, embedder: str) -> list[int] | None:
        """Texts of a scope that cannot be found yet; those without vectors first, and the newest of them.

        None where so many have vectors and cannot be found that this is of no use.
        """
        with self._db.snapshot() as db:
            known, _, upto = _reached(db)
            params: Params = [scope.low, scope.high, upto if known == embedder else 0, embedder]
            where = self._db.where(scope, params)
            later = db.run("unsearchable", [*params, MOST_MISSING + 1], where=where).fetchall()
            if len(later) > MOST_MISSING:
                return None
            params = [scope.low, scope.high]
            where = self._db.where(scope, params)
            queued = db.run("queued", [*params, MOST_MISSING], where=where).fetchall()
            return [seq for (seq,) in chain(queued, later)]

    def find(self, scope: Scope, asked: Asked, *, now: int) -> set[int]:
        """The likeliest texts of a scope: the nearest in meaning, and those with the most telling words."""
        found: set[int] = set()
        with self._db.snapshot() as db:
            place = (scope.low, scope.high, now)
            if asked.vector and _reached(db)[1] == asked.vector.count(",") + 1:
                for name, sorting in (("nearest", "off"), ("nearest_of_few", "on")):
                    db.run("look_far", (min(asked.most, FARTHEST), sorting))
                    params: Params = [*place, asked.vector]
                    where = self._db.where(scope, params)
                    nearest = db.run(name, [*params, asked.most], where=where).fetchall()
                    found.update(seq for seq, _ in nearest)
                    if len(nearest) == asked.most:
                        break
            if asked.keys:
                db.run("look_far", (FARTHEST, "on"))
                weights = json.dumps([*asked.weights.items()])
                params = [*place, json.dumps([*asked.keys]), weights]
                where = self._db.where(scope, params)
                held = db.run("holding", [*params, MOST_HOLDING, asked.most], where=where)
                found.update(seq for (seq,) in held)
        return found

    def texts(self, scope: Scope, embedder: str, seqs: Sequence[int], *, now: int) -> list[Text]:
        """Those of some texts that a scope shows now."""
        with self._db.read() as db:
            return self._texts(db, scope, embedder, seqs, now=now)

    def _texts(
        self, db: Connection, scope: Scope, embedder: str, seqs: Sequence[int], *, now: int
    ) -> list[Text]:
        params: Params = [scope.low, scope.high, now, embedder, json.dumps([*seqs])]
        where = self._db.where(scope, params)
        return [*map(Text._make, db.run("texts_of", params, where=where))]


class Reached(NamedTuple):
    """Whose vectors can be searched by the database, of how many dimensions, and up to which of them."""

    embedder: str | None
    dimensions: int
    upto: int


def _reached(db: Connection) -> Reached:
    return Reached._make(db.run("searchable").get or (None, 0, 0))


def _next(db: Connection, limit: int) -> tuple[Reached, list[tuple[int, int, str, bytes]]]:
    """How far the embedder that serves has come, and the next of its vectors with their texts."""
    serving, reached = db.run("serving").get, _reached(db)
    if reached.embedder != serving:
        reached = Reached(serving, 0, 0)  # all that was kept is of another one
    return reached, db.run("next_searchable", (reached.upto, serving or "", limit)).fetchall()
