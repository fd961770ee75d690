"""Where texts are found by what they mean: in the database itself, or in a vector store beside it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from alcove.engine.database import Connection, Database, Findings
from alcove.engine.locks import Locks
from alcove.engine.rows.indexing import Text
from alcove.engine.scope import Scope
from alcove.engine.statements import Params

log = logging.getLogger("alcove")
Vector = Sequence[float]
Call = Callable[[], None]

WORTH_ORDERING = 10_000
"""PgVectorIndex above which an index by meaning pays."""
MOST_DIMENSIONS = 4000
"""Of vectors that pgvector can put into an index, in half precision."""
ELSEWHERE = -1
"""In the place of dimensions, where the vectors are in a vector store beside the database."""
FARTHEST = 1000
"""How many candidates pgvector looks at in one step at most."""
PART, MOST_COMPARED = 20, 50_000
"""A part of all texts that is smaller than one in so many, and than so many, is compared as a whole: to look
for it in the index of all would take longer."""

ORDERING = 0x416C6376_0003
"""The lock of whoever makes the index by meaning; each store of a database adds its own number to it."""
NOT_HERE = "the vectors are in a vector store that this process was not told of"
ROOM = "256MB"
"""For making the index by meaning, if the server gives no more: with less it takes many times as long."""


class Asked(NamedTuple):
    """A question as a database is asked it."""

    most: int
    """How many candidates each way may bring."""
    vector: Vector | None
    keys: Sequence[int]
    """Terms by which texts are looked for: rare ones."""
    weights: Mapping[int, float]
    """What each term adds to a text's rank by words."""
    texts: int = 0
    """About how many texts are looked through."""
    embedder: str = ""
    """Whose vectors are read with the texts."""


class Nearest(NamedTuple):
    """The texts nearest to a question in meaning; `degraded` says why they may not be all of them."""

    seqs: set[int]
    degraded: str | None = None
    texts: Sequence[Text] = ()
    """Those of them that were read as they were found."""


class VectorIndex(ABC):
    """Finds the texts of a scope that are nearest to a question in meaning."""

    beside = False
    """Whether it needs nothing for that which its database may lack."""

    @property
    def problem(self) -> str | None:
        """What is in the way of finding anything now."""
        return None

    @abstractmethod
    def keep(self, db: Connection, dimensions: int, windows: Mapping[int, Sequence[Vector]]) -> int:
        """Takes in the vectors of texts, in the transaction that takes in their terms.

        `dimensions`: what it gave back for those before. `windows`: by version, a vector a window.
        """

    @abstractmethod
    def nearest(self, scope: Scope, asked: Asked, vector: Vector, meanwhile: Call, *, now: int) -> Nearest:
        """At least so many of a scope's texts as are asked for, unless there are fewer.

        `meanwhile` may be called while they are looked for.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Called when all there is has been taken in."""

    @abstractmethod
    def removed(self) -> bool:
        """Sees to it that no vector is left of what is over; False where some are, and go later."""

    @abstractmethod
    def check(self) -> Findings:
        """Compares it with what the database says."""

    def start(self, interval: float) -> None:  # noqa: B027  a database has nothing to do
        """Does from now on what is to be done beside the calls, every so many seconds at least."""

    def close(self) -> None:  # noqa: B027
        """Ends that."""


MakeVectorIndex = Callable[[Database, Locks], VectorIndex]


class IndexProgress(NamedTuple):
    """Whose vectors can be searched by the database, of how many dimensions, and up to which of them."""

    embedder: str | None
    dimensions: int
    upto: int

    @classmethod
    def of(cls, db: Connection) -> IndexProgress:
        return cls._make(db.run("searchable").get or (None, 0, 0))


class PgVectorIndex(VectorIndex):
    """Those that PostgreSQL finds with pgvector, by its table `windows`."""

    def __init__(self, db: Database, *, chosen: bool = False) -> None:
        """`chosen`: whether it takes over from a vector store beside the database, if there was one."""
        self._db = db
        if chosen and (before := self._before()):
            with db.write() as writer:
                for each in ("leave_vector_store", "nothing_to_remove", "start_over"):
                    writer.run(each)
            log.warning("vectors: Qdrant's collections %s_… are used no longer: drop them there", before)

    def _before(self) -> str | None:
        """What the collections begin with that were used before."""
        found = self._db.fetch("vector_store")
        return f"alcove_{found[0][0]}" if found else None

    def keep(self, db: Connection, dimensions: int, windows: Mapping[int, Sequence[Vector]]) -> int:
        if dimensions == ELSEWHERE:
            return dimensions
        rows = [(seq, vector) for seq, vectors in windows.items() for vector in vectors]
        size = max((len(vector) for _, vector in rows), default=dimensions)
        if size != dimensions and size <= MOST_DIMENSIONS:
            dimensions = size
            drop_windows(db)
            db.run("make_windows", dimensions=str(dimensions))
            db.run("windows_by_text")
        db.run_each("add_window", [(seq, _spelled(row)) for seq, row in rows if len(row) == dimensions])
        return dimensions

    def nearest(self, scope: Scope, asked: Asked, vector: Vector, meanwhile: Call, *, now: int) -> Nearest:
        found: dict[int, Text] = {}
        with self._db.snapshot() as db:
            _, dimensions, every = IndexProgress.of(db)
            if dimensions != len(vector):
                return Nearest(set(), NOT_HERE if dimensions == ELSEWHERE else None)
            few = asked.texts < min(every // PART, MOST_COMPARED)
            for name, sorting in (("nearest", "off"), ("nearest_of_few", "on"))[few:]:
                kept = name == "nearest" and not scope.filter.conditions  # planned once, for any vector
                planned = "force_generic_plan" if kept else "auto"
                db.run("look_far", (min(asked.most, FARTHEST), sorting, planned))
                params: Params = [scope.low, scope.high, now, _spelled(vector)]
                where = self._db.where(scope, params)
                params += [asked.most, asked.embedder]
                looked = (db.run_kept if kept else db.run)(name, params, where=where)
                db.send()
                meanwhile()
                nearest = looked.fetchall()
                found |= {row[0]: Text(*row[:-1]) for row in nearest}
                if sum(windows for *_, windows in nearest) == asked.most:
                    break
        return Nearest({*found}, None, [*found.values()])

    def tidy(self) -> None:
        """Makes the index by meaning, once there is so much that it pays; others go on meanwhile."""
        with self._db.read() as db:
            if IndexProgress.of(db).dimensions <= 0 or not db.run("windows_to_order", (WORTH_ORDERING,)).get:
                return
            if not db.run("begin_to_order", (ORDERING,)).get:
                return  # another node is at it
            usual = db.run("setting", ("maintenance_work_mem",)).get
            try:
                db.run("make_room", (ROOM,))
                if db.run("windows_to_order", (WORTH_ORDERING,)).get:
                    db.run("forget_order", schema=db.run("own_schema").get)
                    db.run("order_windows")
            finally:
                db.run("set", ("maintenance_work_mem", usual))
                db.run("end_to_order", (ORDERING,))

    def removed(self) -> bool:
        return not self._db.fetch("to_remove", 1)

    def check(self) -> Findings:
        if before := self._before():
            yield "vectors are where they are looked for", 0, [f"Qdrant has them, in {before}_…"]


def drop_windows(db: Connection) -> None:
    """Drops the table of windows of this store, if it has one."""
    db.run("drop_windows", schema=db.run("own_schema").get)


def _spelled(vector: Vector) -> str:
    """A vector as pgvector reads it, as precisely as half precision is."""
    return f"[{','.join(map('{:.5g}'.format, vector))}]"
