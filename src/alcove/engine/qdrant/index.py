"""The vector index in Qdrant, next to the database.

The database is authoritative: `vector_store` says which vectors were sent, and `to_remove` which ended
versions must still be removed, recorded in the transaction that ends them. Only one process at a time sends
and removes, so that no point is added after its removal. A comparison in the background finds and repairs all
other differences.
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
from alcove.engine.candidate_index import MAX_MISSING
from alcove.engine.database import CheckResults, Connection, Database
from alcove.engine.locks import Locks
from alcove.engine.postgres.pgvector import drop_windows
from alcove.engine.qdrant.client import QdrantPoints, QdrantUnavailable, VersionVectors
from alcove.engine.rows import MAX_INT64, Scope
from alcove.engine.statements import Value
from alcove.engine.vector_index import EXTERNAL, CandidateQuery, NearestTexts, Vector, VectorIndex

log = logging.getLogger("alcove")
T = TypeVar("T")

PAGE = 100
"""Versions sent or removed in one step."""
COMPARED_POINTS = 10_000
"""Points compared in one step: one step per interval, and all steps at once after an outage."""
MAX_POINTS = 10_000
"""The most points that a search requests if a policy or a filter hides some of them."""
RETRY_SECONDS = 5.0
"""How long Qdrant gets no requests after it did not answer."""
BUSY_SECONDS = 0.5
"""Pause while another process does a step."""
REMOVAL_SECONDS = 10.0
"""How long a wipe waits for the vectors to be removed."""
AWAY = "the vector store does not answer, so only what words find is ranked"
LAGGING = "the vector store lacks some of the newest memories, which only words find"
CHECK_NAME = "the vector store has what it should, and nothing else"
_STEP_LOCK = b"vector store"


class SyncState(NamedTuple):
    """Which vectors Qdrant has, and which embedder's it should have."""

    store: str
    collection: str
    last_vector: int
    """The last vector that was sent."""
    serving: str | None

    @classmethod
    def read(cls, db: Connection) -> SyncState:
        # Another process that stopped using Qdrant deleted the row; then nothing is sent any more.
        store, collection, last_vector = db.run("vector_store").get or ("", "", 0)
        return cls(store, collection, last_vector, db.run("serving").get)

    def collection_for(self, dimensions: int) -> str:
        """The collection of the serving embedder; each embedder has its own."""
        digest = hashlib.blake2b((self.serving or "").encode(), digest_size=6).hexdigest()
        return f"alcove_{self.store}_{digest}_{dimensions}"

    @property
    def dimensions(self) -> int:
        return int(self.collection.rpartition("_")[2] or 0)


class Difference(NamedTuple):
    """How some points differ from the database."""

    compared: int
    missing: list[int]
    obsolete: set[int]
    """Versions in Qdrant that are no longer live."""
    next_start: int | None
    """Where the next comparison starts, if there are more points."""


class QdrantIndex(VectorIndex):
    """Finds texts by vector with Qdrant."""

    is_external = True

    def __init__(
        self,
        db: Database,
        locks: Locks,
        points: QdrantPoints,
        window_vectors: Callable[[bytes], Sequence[bytes]],
    ) -> None:
        """`window_vectors` reads the vectors out of a stored body."""
        self._db = db
        self._locks = locks
        self._points = points
        self._window_vectors = window_vectors
        self._worker: Worker | None = None
        self._away_until = 0.0
        self._prepared = ""
        self._compared_to = 0
        self._compares_all = False
        if not db.fetch("vector_store"):
            db.update("use_vector_store", secrets.token_hex(6))

    def start(self, interval: float) -> None:
        """Synchronises Qdrant until `close`."""
        self._worker = Worker("vector store", self._step_when_due, interval)

    @property
    def problem(self) -> str | None:
        return AWAY if time.monotonic() < self._away_until else None

    def close(self) -> None:
        if self._worker:
            self._worker.stop()
        self._points.close()

    # Searching

    def nearest(self, scope: Scope, query: CandidateQuery, *, now: int) -> NearestTexts:
        """Returns the nearest texts of a scope, and those that Qdrant lacks; waits at most a second."""
        assert query.vector is not None
        with self._db.snapshot() as db:
            state = SyncState.read(db)
            is_ready = state.collection == state.collection_for(len(query.vector))
            params = (scope.low, scope.high, state.last_vector if is_ready else 0, state.serving)
            rows = self._db.run_scoped(db, "unindexed_texts", scope, params, [MAX_MISSING + 1])
            unsent = {seq for (seq,) in rows}
        lag = LAGGING if len(unsent) > MAX_MISSING else None
        if not is_ready:
            return NearestTexts(unsent, lag)
        if self.problem:
            return NearestTexts(unsent, self.problem)
        try:
            nearest = self._visible_nearest(state.collection, scope, query, now)
        except QdrantUnavailable as error:
            self._note_failure(error)
            return NearestTexts(unsent, AWAY)
        self._note_success()
        return NearestTexts(unsent | nearest, lag)

    def _visible_nearest(self, collection: str, scope: Scope, query: CandidateQuery, now: int) -> set[int]:
        """Requests more points until enough are visible; takes all texts of a scope with few visible ones."""
        assert query.vector is not None
        prefix, limit = Namespace.decode(scope.low), query.limit
        while True:
            seqs = self._points.nearest(collection, query.vector, prefix, limit, unowned=scope.unowned)
            place = (scope.low, scope.high, now)
            visible = self._select("visible_of", scope, (*place, json.dumps([*{*seqs}])))
            if len(seqs) < limit or sum(seq in visible for seq in seqs) >= query.limit:
                return visible
            if limit >= MAX_POINTS:
                every = self._select("visible_texts", scope, place, MAX_MISSING + 1)
                return visible | every if len(every) <= MAX_MISSING else visible
            limit = min(8 * limit, MAX_POINTS)

    def _select(self, statement: str, scope: Scope, params: Sequence[Value], *more_params: int) -> set[int]:
        with self._db.read() as db:
            return {seq for (seq,) in self._db.run_scoped(db, statement, scope, params, more_params)}

    def _note_failure(self, error: QdrantUnavailable) -> None:
        if not self._away_until:
            log.warning("vector store: %s; searching by words, and trying again", error.message)
        self._away_until = time.monotonic() + RETRY_SECONDS

    def _note_success(self) -> None:
        if self._away_until:
            log.info("vector store: answers again")
        self._away_until = 0.0

    # Synchronising

    def add(self, db: Connection, dimensions: int, vectors: Mapping[int, Sequence[Vector]]) -> int:
        if dimensions != EXTERNAL:
            drop_windows(db)
        return EXTERNAL

    def optimize(self) -> None:
        if self._worker:
            self._worker.wake()

    def _step_when_due(self) -> float | None:
        try:
            has_more = self._exclusively(self.step)
        except QdrantUnavailable as error:
            self._note_failure(error)
            self._prepared, self._compares_all = "", True
            return RETRY_SECONDS
        if has_more is None:
            return BUSY_SECONDS
        self._note_success()
        return 0.0 if has_more else None

    def step(self) -> bool:
        """Sends and removes some versions, or else compares some; returns whether there is more to do."""
        state = self._prepared_state()
        if not state.collection:
            return bool(self._remove_page(state))
        unsent = self._db.fetch("next_vectors", state.last_vector, state.serving, PAGE)
        if unsent:
            self._points.put(state.collection, self._versions(state, unsent))
            state = self._advance(state, state.collection, unsent[-1][0])
        removed_count = self._remove_page(state)
        return bool(unsent or removed_count) or self._repair_page(state)

    def remove_ended(self) -> bool:
        """Removes ended versions now; returns whether all of them are removed."""
        deadline, pending = time.monotonic() + REMOVAL_SECONDS, self._to_remove(MAX_INT64)
        try:
            while pending and not self.problem and time.monotonic() < deadline:
                if self._exclusively(lambda: self._remove_page(self._prepared_state())) is None:
                    time.sleep(BUSY_SECONDS / 10)
                pending &= self._to_remove(MAX_INT64)
        except QdrantUnavailable as error:
            self._note_failure(error)
        return not pending

    def _exclusively(self, work: Callable[[], T]) -> T | None:
        """Does some work; returns None if another process or thread is doing such work."""
        if not self._locks.try_acquire(_STEP_LOCK):
            return None
        try:
            return work()
        finally:
            self._locks.release(_STEP_LOCK)

    def _prepared_state(self) -> SyncState:
        """Returns the state, after it replaced a collection of another embedder or of other dimensions."""
        with self._db.read() as db:
            state = SyncState.read(db)
            newest = db.run("newest_vectors", (state.serving or "",)).get
        vectors = self._window_vectors(newest) if newest and state.store else ()
        collection = state.collection_for(len(vectors[0]) // 4) if vectors else state.collection
        if collection and collection != self._prepared:
            dimensions = state._replace(collection=collection).dimensions
            is_new = self._points.prepare(collection, dimensions, f"alcove_{state.store}_")
            if is_new or collection != state.collection:
                state = self._advance(state, collection, 0)
            self._prepared = collection
        return state

    def _advance(self, state: SyncState, collection: str, last_vector: int) -> SyncState:
        with self._db.write(durable=False) as db:
            db.run("set_vector_store_progress", (collection, last_vector))
        return state._replace(collection=collection, last_vector=last_vector)

    def _to_remove(self, limit: int) -> set[int]:
        return {seq for (seq,) in self._db.fetch("to_remove", limit)}

    def _remove_page(self, state: SyncState) -> int:
        if seqs := sorted(self._to_remove(PAGE)):
            if state.collection:
                self._points.remove(state.collection, seqs)
            with self._db.write(durable=False) as db:
                db.run("delete_removed", (json.dumps(seqs),))
        return len(seqs)

    # Comparing

    def check(self) -> CheckResults:
        with self._db.read() as db:
            state = SyncState.read(db)
        start: int | None = 0
        compared, messages = 0, list[str]()
        pending = self._to_remove(MAX_INT64)
        try:
            while state.collection == state.collection_for(state.dimensions) and start is not None:
                difference = self._compare(state, start)
                compared, start = compared + difference.compared, difference.next_start
                messages += [f"{seq}: is missing there" for seq in difference.missing]
                messages += [
                    f"{seq}: has ended, and is still there" for seq in sorted(difference.obsolete - pending)
                ]
        except QdrantUnavailable as error:
            messages.append(error.message)
        if pending:
            messages.append(f"ended versions that must still be removed there: {len(pending)}")
        yield CHECK_NAME, compared, messages

    def _repair_page(self, state: SyncState) -> bool:
        """Compares the next points and repairs them; returns whether to continue at once."""
        difference = self._compare(state, self._compared_to)
        if difference.missing or difference.obsolete:
            message = "vector store: added %d missing texts, removed %d texts that have ended"
            log.warning(message, len(difference.missing), len(difference.obsolete))
            self._points.put(state.collection, self._versions_of(state, difference.missing))
            self._points.remove(state.collection, sorted(difference.obsolete))
        self._compared_to = difference.next_start or 0
        self._compares_all &= difference.next_start is not None
        return self._compares_all

    def _compare(self, state: SyncState, start: int) -> Difference:
        """Compares points with live versions, from a version's number on.

        Vectors sent after the state was read are not expected in Qdrant, but may be there.
        """
        stored, next_start = self._points.versions(state.collection, start, COMPARED_POINTS)
        end = MAX_INT64 if next_start is None else next_start
        live = dict(self._db.fetch("versions_with_vectors", start, end, state.serving, COMPARED_POINTS))
        if len(live) == COMPARED_POINTS:
            next_start = max(live) + 1
            stored = {seq for seq in stored if seq < next_start}
        absent = [seq for seq, vector in live.items() if vector <= state.last_vector and seq not in stored]
        # A blank text has no vectors to send.
        missing = [version.seq for version in self._versions_of(state, absent) if version.windows]
        return Difference(len(live), missing, stored - live.keys(), next_start)

    def _versions_of(self, state: SyncState, seqs: Sequence[int]) -> Iterator[VersionVectors]:
        """Versions with their vectors, read page by page."""
        for start in range(0, len(seqs), PAGE):
            page = json.dumps(seqs[start : start + PAGE])
            yield from self._versions(state, self._db.fetch("vectors_of_versions", page, state.serving))

    def _versions(
        self, state: SyncState, rows: Iterable[tuple[int, int, bytes, bytes]]
    ) -> Iterator[VersionVectors]:
        size = 4 * state.dimensions
        for _, seq, ns, body in rows:
            yield VersionVectors(seq, ns, [row for row in self._window_vectors(body) if len(row) == size])
