"""A vector store beside the database: finds texts by meaning, and is kept in step with the database.

The database is the truth. It counts which vectors were handed over (`vector_store`), and notes in the
transaction that ends a version that its points are to be removed (`to_remove`). One process at a time hands
over and removes, so that no point of a version comes after its removal; whatever goes wrong all the same is
found by comparing, and repaired.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from alcove.core.background import Worker
from alcove.core.namespace import Namespace
from alcove.engine.candidate_index import MOST_MISSING
from alcove.engine.database import Connection, Database, Findings
from alcove.engine.locks import Locks
from alcove.engine.qdrant.client import QdrantPoints, QdrantUnavailable, VersionVectors
from alcove.engine.rows.versions import MAX_INT64
from alcove.engine.scope import Scope
from alcove.engine.statements import Params
from alcove.engine.vector_index import ELSEWHERE, Asked, Call, Nearest, Vector, VectorIndex, drop_windows

log = logging.getLogger("alcove")
T = TypeVar("T")

PAGE = 100
"""Texts handed over, or removed, in one step."""
COMPARED = 10_000
"""Points compared in one step: one step at each interval, and all there are after an outage."""
MOST_ASKED = 10_000
"""Points asked for where a policy or a filter lets only some of them pass."""
REST_SECONDS = 5.0
"""How long nobody asks a store that did not answer."""
BUSY_SECONDS = 0.5
"""After which to look again whether another process has finished a step."""
REMOVAL_SECONDS = 10.0
"""How long a wipe waits for its turn."""
AWAY = "the vector store does not answer, so only what words find is ranked"
BEHIND = "the vector store lacks some of the newest memories, which only words find"
NAME = "the vector store has what it should, and nothing else"
_STEP = b"vector store"


class State(NamedTuple):
    """How far a vector store has come, and which embedder's vectors it should have."""

    store: str
    collection: str
    upto: int
    serving: str | None

    @classmethod
    def of(cls, db: Connection) -> State:
        # Who takes Qdrant out of use elsewhere leaves no row; then nothing is handed over from here any more.
        store, collection, upto = db.run("vector_store").get or ("", "", 0)
        return cls(store, collection, upto, db.run("serving").get)

    def name(self, dimensions: int) -> str:
        """The collection that should be searched: another one for every embedder."""
        digest = hashlib.blake2b((self.serving or "").encode(), digest_size=6).hexdigest()
        return f"alcove_{self.store}_{digest}_{dimensions}"

    @property
    def dimensions(self) -> int:
        return int(self.collection.rpartition("_")[2] or 0)


class Difference(NamedTuple):
    """How a part of a vector store differs from what it should be."""

    compared: int
    missing: list[int]
    over: set[int]
    """Versions that are not live any more."""
    then: int | None
    """Where to go on, if there is more."""


class QdrantIndex(VectorIndex):
    """The texts of a store, found by a Qdrant beside its database."""

    beside = True

    def __init__(
        self, db: Database, locks: Locks, points: QdrantPoints, windows: Callable[[bytes], Sequence[bytes]]
    ) -> None:
        """`windows`: the vectors in what is kept of a text."""
        self._db = db
        self._locks = locks
        self._points = points
        self._windows = windows
        self._worker: Worker | None = None
        self._away_until = 0.0
        self._prepared = ""
        self._compared = 0
        self._comparing_all = False
        if not db.fetch("vector_store"):
            db.change("use_vector_store", secrets.token_hex(6))

    def start(self, interval: float) -> None:
        """Keeps it in step from now on, and looks for that now and then."""
        self._worker = Worker("vector store", self._keep_up, interval)

    @property
    def problem(self) -> str | None:
        return AWAY if time.monotonic() < self._away_until else None

    def close(self) -> None:
        if self._worker:
            self._worker.stop()
        self._points.close()

    # Finding

    def nearest(self, scope: Scope, asked: Asked, vector: Vector, meanwhile: Call, *, now: int) -> Nearest:
        """Those and what it lacks yet, as far as that is not too much; it is waited for a second at most."""
        with self._db.snapshot() as db:
            state = State.of(db)
            there = state.collection == state.name(len(vector))
            params: Params = [scope.low, scope.high, state.upto if there else 0, state.serving]
            where = self._db.where(scope, params)
            later = {seq for (seq,) in db.run("unsearchable", [*params, MOST_MISSING + 1], where=where)}
        told = BEHIND if len(later) > MOST_MISSING else None
        if not there:
            return Nearest(later, told)
        if self.problem:
            return Nearest(later, self.problem)
        try:
            found = self._found(state.collection, scope, vector, asked.most, now)
        except QdrantUnavailable as error:
            self._fails(error)
            return Nearest(later, AWAY)
        self._answers()
        return Nearest(later | found, told)

    def _found(self, collection: str, scope: Scope, vector: Vector, most: int, now: int) -> set[int]:
        """Asks for more and more, until enough of them may be seen; where few may, those are all taken."""
        prefix, asked = Namespace.decode(scope.low), most
        while True:
            found = self._points.nearest(collection, vector, prefix, asked, unowned=scope.unowned)
            shown = self._shown("shown_of", scope, now, json.dumps([*{*found}]))
            if len(found) < asked or sum(seq in shown for seq in found) >= most:
                return shown
            if asked >= MOST_ASKED:
                few = self._shown("shown", scope, now, MOST_MISSING + 1)
                return shown | few if len(few) <= MOST_MISSING else shown
            asked = min(8 * asked, MOST_ASKED)

    def _shown(self, which: str, scope: Scope, now: int, last: str | int) -> set[int]:
        params: Params = [scope.low, scope.high, now]
        params += [last] if which == "shown_of" else []
        where = self._db.where(scope, params)
        params += [last] if which == "shown" else []
        with self._db.read() as db:
            return {seq for (seq,) in db.run(which, params, where=where)}

    def _fails(self, error: QdrantUnavailable) -> None:
        if not self._away_until:
            log.warning("vector store: %s; searching by words, and trying again", error.message)
        self._away_until = time.monotonic() + REST_SECONDS

    def _answers(self) -> None:
        if self._away_until:
            log.info("vector store: answers again")
        self._away_until = 0.0

    # Keeping in step

    def keep(self, db: Connection, dimensions: int, windows: Mapping[int, Sequence[Vector]]) -> int:
        if dimensions != ELSEWHERE:
            drop_windows(db)
        return ELSEWHERE

    def tidy(self) -> None:
        if self._worker:
            self._worker.wake()

    def _keep_up(self) -> float | None:
        try:
            more = self._in_turn(self.step)
        except QdrantUnavailable as error:
            self._fails(error)
            self._prepared, self._comparing_all = "", True
            return REST_SECONDS
        if more is None:
            return BUSY_SECONDS
        self._answers()
        return 0.0 if more else None

    def step(self) -> bool:
        """Hands over some texts and removes some, or else compares some; whether there is more to do."""
        state = self._state()
        if not state.collection:
            return bool(self._remove_some(state))
        later = self._db.fetch("next_vectors", state.upto, state.serving, PAGE)
        if later:
            self._points.put(state.collection, self._texts(state, later))
            state = self._reach(state, state.collection, later[-1][0])
        removed = self._remove_some(state)
        return bool(later or removed) or self._repair_some(state)

    def removed(self) -> bool:
        """Removes at once what is over by now; whether all of that is gone."""
        until, left = time.monotonic() + REMOVAL_SECONDS, self._to_remove(MAX_INT64)
        try:
            while left and not self.problem and time.monotonic() < until:
                if self._in_turn(lambda: self._remove_some(self._state())) is None:
                    time.sleep(BUSY_SECONDS / 10)
                left &= self._to_remove(MAX_INT64)
        except QdrantUnavailable as error:
            self._fails(error)
        return not left

    def _in_turn(self, work: Callable[[], T]) -> T | None:
        """Does something unless another process, or thread, is doing it."""
        if not self._locks.take(_STEP):
            return None
        try:
            return work()
        finally:
            self._locks.give(_STEP)

    def _state(self) -> State:
        """How far it has come; where it should have other vectors than it has, with none of them."""
        with self._db.read() as db:
            state = State.of(db)
            newest = db.run("some_vectors", (state.serving or "",)).get
        rows = self._windows(newest) if newest and state.store else ()
        wanted = state.name(len(rows[0]) // 4) if rows else state.collection
        if wanted and wanted != self._prepared:
            dimensions = state._replace(collection=wanted).dimensions
            made = self._points.prepare(wanted, dimensions, f"alcove_{state.store}_")
            if made or wanted != state.collection:
                state = self._reach(state, wanted, 0)
            self._prepared = wanted
        return state

    def _reach(self, state: State, collection: str, upto: int) -> State:
        with self._db.write(durable=False) as db:
            db.run("reach_vector_store", (collection, upto))
        return state._replace(collection=collection, upto=upto)

    def _to_remove(self, most: int) -> set[int]:
        return {seq for (seq,) in self._db.fetch("to_remove", most)}

    def _remove_some(self, state: State) -> int:
        if some := sorted(self._to_remove(PAGE)):
            if state.collection:
                self._points.remove(state.collection, some)
            with self._db.write(durable=False) as db:
                db.run("removed", (json.dumps(some),))
        return len(some)

    # Comparing

    def check(self) -> Findings:
        with self._db.read() as db:
            state = State.of(db)
        start: int | None = 0
        compared, noticed = 0, list[str]()
        owed = self._to_remove(MAX_INT64)
        try:
            while state.collection == state.name(state.dimensions) and start is not None:
                found = self._compare(state, start)
                compared, start = compared + found.compared, found.then
                noticed += [f"{seq}: is missing there" for seq in found.missing]
                noticed += [f"{seq}: is over, and still there" for seq in sorted(found.over - owed)]
        except QdrantUnavailable as error:
            noticed.append(error.message)
        if owed:
            noticed.append(f"versions that are over and still to be removed there: {len(owed)}")
        yield NAME, compared, noticed

    def _repair_some(self, state: State) -> bool:
        """Compares the next points and makes them right; whether to go on at once."""
        found = self._compare(state, self._compared)
        if found.missing or found.over:
            told = "vector store: %d texts were missing and are added, %d were over and are removed"
            log.warning(told, len(found.missing), len(found.over))
            self._points.put(state.collection, self._some(state, found.missing))
            self._points.remove(state.collection, sorted(found.over))
        self._compared = found.then or 0
        self._comparing_all &= found.then is not None
        return self._comparing_all

    def _compare(self, state: State, start: int) -> Difference:
        """Some of what is there with what should be, from a version's number on.

        What was handed over after the state is not expected, and none of what is live is over.
        """
        there, then = self._points.versions(state.collection, start, COMPARED)
        until = MAX_INT64 if then is None else then
        live = dict(self._db.fetch("embedded_from", start, until, state.serving, COMPARED))
        if len(live) == COMPARED:
            then = max(live) + 1
            there = {seq for seq in there if seq < then}
        lacking = [seq for seq, came in live.items() if came <= state.upto and seq not in there]
        missing = [text.seq for text in self._some(state, lacking) if text.windows]  # a blank one has none
        return Difference(len(live), missing, there - live.keys(), then)

    def _some(self, state: State, seqs: Sequence[int]) -> Iterator[VersionVectors]:
        """Versions with their vectors, a few at a time."""
        for start in range(0, len(seqs), PAGE):
            some = json.dumps(seqs[start : start + PAGE])
            yield from self._texts(state, self._db.fetch("vectors_of_some", some, state.serving))

    def _texts(self, state: State, rows: Iterable[tuple[int, int, bytes, bytes]]) -> Iterator[VersionVectors]:
        size = 4 * state.dimensions
        for _, seq, ns, body in rows:
            yield VersionVectors(seq, ns, [row for row in self._windows(body) if len(row) == size])
