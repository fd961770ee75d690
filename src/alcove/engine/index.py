"""The search index in the database: index texts, their vectors, and the queue of texts to embed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain

import msgspec

from alcove.core.filters import Filter
from alcove.core.namespace import Namespace
from alcove.core.records import ParkedItem
from alcove.engine.candidate_index import CandidateIndex
from alcove.engine.database import CheckResults, Connection, Database
from alcove.engine.postgres.pgvector import PgVectorIndex
from alcove.engine.postgres.term_index import TermIndex
from alcove.engine.quantized_index import QuantizedIndex
from alcove.engine.rows import (
    MAX_INT64,
    Change,
    CorpusTooLarge,
    EmbeddedPiece,
    IndexState,
    IndexStatus,
    Row,
    Scope,
    Text,
    TextToIndex,
)
from alcove.engine.statements import Params
from alcove.engine.vector_index import VectorIndex

NEAR = 5000
"""Up to this many versions after a position are read along the log rather than from their subtree."""
FEW = 16
"""Up to this many versions are read by one prepared statement: most searches return no more."""
TEXTS_AT_ONCE = 100
"""Texts that one statement reads."""
PAGE_BYTES = 1024 * 1024
"""Bytes of text that are read at once, unless a single text has more."""

_texts = msgspec.json.Decoder(list[TextToIndex]).decode


class SearchIndex:
    """The index texts of a store, their vectors, and the queue of texts that need vectors.

    Vectors and claims do not wait for the disk: a text leaves the queue in the transaction that stores its
    vectors, so after a power failure a text without vectors is in the queue again.
    """

    def __init__(self, db: Database, vector_index: VectorIndex | None = None) -> None:
        """`vector_index`: used instead of pgvector."""
        self._db = db
        may_have_pgvector = db.finds_candidates or db.candidates_missing
        self.vector_index = vector_index or (PgVectorIndex(db) if may_have_pgvector else None)
        self.candidates: CandidateIndex | None = QuantizedIndex(db) if db.has_quantized_index else None
        if self.vector_index and (db.finds_candidates or self.vector_index.is_external):
            self.candidates = TermIndex(db, self.vector_index)
        self.candidates_missing = None if self.candidates else db.candidates_missing

    @property
    def problem(self) -> str | None:
        """Why search by meaning does not work now; None if it does."""
        return self.candidates_missing or (self.vector_index.problem if self.vector_index else None)

    # The queue

    def claim(self, *, now: int, until: int, limit: int, max_bytes: int) -> list[TextToIndex]:
        """Leases the next texts in the queue to the caller, up to the moment `until`.

        At most `limit`, with at most `max_bytes` in total unless the first one is larger.
        """
        with self._db.write(durable=False, exclusive=False) as db:
            db.run("advance_queue")
            texts = _texts(db.run("next_in_queue", (now, limit, max_bytes)).get)
            db.run("claim", (until, json.dumps([text.seq for text in texts])))
            return texts

    def renew(self, seqs: Sequence[int], until: int, later: int) -> None:
        """Extends leases from `until` to `later`, unless another process has claimed the texts since."""
        with self._db.write(durable=False, exclusive=False) as db:
            db.run("renew", (later, until, json.dumps(seqs)))

    def next_due(self) -> int | None:
        """Returns when the next text may be claimed."""
        ((due,),) = self._db.fetch("next_due")
        return due  # type: ignore[no-any-return]

    def partial_vectors(self, seq: int) -> list[bytes]:
        """Returns the vectors so far of a large text, which is embedded piece by piece."""
        return [body for (body,) in self._db.fetch("pieces", seq)]

    def store_vectors(self, embedder: str, pieces: Sequence[EmbeddedPiece]) -> bool:
        """Stores vectors and removes complete texts from the queue, in one transaction.

        A text with more pieces goes back into the queue. Stores nothing and returns False if another embedder
        is serving by now; then the texts wait for its vectors.
        """
        with self._db.write(durable=False) as db:
            if db.run("serving").fetchone() != (embedder,):
                db.run_many("postpone", [(0, None, 1, piece.text.seq) for piece in pieces])
                return False
            complete = {text.seq: (text, body) for text, body, _, next_place in pieces if next_place is None}
            places = [(seq, text.field, text.window) for seq, (text, _) in complete.items()]
            queued = db.run("still_queued", (json.dumps(places),)).get
            _add_vectors(db, embedder, [(seq, complete[seq][1]) for seq in json.loads(queued)])
            db.run("remove_from_queue", (queued,))
            for (seq, _, _, *place), body, size, next_place in pieces:
                # No row changes if another process was faster, or if the text is gone.
                if next_place is not None and db.update("next_piece", size, *next_place, seq, *place):
                    db.run("add_piece", (seq, body))
            return True

    def add_vectors(self, embedder: str, bodies: Sequence[tuple[int, bytes]]) -> None:
        """Stores vectors, by `seq`, for a reindex with an embedder that is not serving yet."""
        with self._db.write(durable=False) as db:
            _add_vectors(db, embedder, bodies)

    def postpone(
        self, seqs: Sequence[int], due: int | None, error: str, *, counts_as_try: bool = True
    ) -> None:
        """Delays texts until `due`, or parks them if it is None.

        `counts_as_try`: false if the embedder was down, which is not the texts' fault.
        """
        with self._db.write(durable=False) as db:
            db.run_many("postpone", [(due, error, int(not counts_as_try), seq) for seq in seqs])

    def retry_all(self) -> int:
        """Makes every queued or parked text due now; returns how many."""
        return self._db.update("retry")

    def pending_status(self, seq: int) -> tuple[bool, str | None]:
        """Whether a version is waiting for its vectors, and the last error."""
        rows = self._db.fetch("queue_entry", seq)
        return bool(rows), rows[0][0] if rows else None

    def count_pending(self, seqs: Sequence[int]) -> tuple[int, int]:
        """Counts the versions that are waiting for their vectors, and those that are parked."""
        ((pending, parked),) = self._db.fetch("pending_counts", json.dumps(seqs))
        return pending, parked

    def namespaces_of(self, seqs: Sequence[int]) -> list[Namespace]:
        """Returns the namespace of each version that still exists."""
        return [Namespace.decode(ns) for (ns,) in self._db.fetch("namespaces_of", json.dumps(seqs))]

    def status(self, embedder: str) -> IndexStatus:
        """Counts the texts that have vectors of an embedder, wait for them, or are parked."""
        return IndexStatus._make(self._db.fetch("status", embedder)[0])

    def parked_items(self) -> list[ParkedItem]:
        """Lists the texts that were set aside because embedding them failed repeatedly."""
        rows = self._db.fetch("parked")
        return [
            ParkedItem(Namespace.decode(ns), key.decode(), tries, error) for ns, key, tries, error in rows
        ]

    # Embedders

    def serving_embedder(self, default: str | None = None) -> str | None:
        """Returns the embedder whose vectors searches use; if there is none yet, `default` becomes it."""
        rows = self._db.fetch("serving")
        if not rows and default is not None:
            self._db.update("serve_first", default)
            rows = self._db.fetch("serving")
        return rows[0][0] if rows else None

    def texts_without_vectors(self, embedder: str, *, after: int, limit: int) -> list[TextToIndex]:
        """Returns the next live texts that lack an embedder's vectors, until `limit` or 1 MiB is reached."""
        return [
            TextToIndex(*row)
            for row in self._db.fetch("texts_without_vectors", embedder, after, limit, PAGE_BYTES)
        ]

    def switch(self, embedder: str, parked: Mapping[int, str]) -> bool:
        """Makes an embedder the serving one and drops all other vectors.

        `parked`: errors of texts that could not be embedded. Returns False and changes nothing if any other
        text lacks vectors.
        """
        with self._db.write() as db:
            rows = db.run("texts_without_vectors", (embedder, 0, len(parked) + 1, MAX_INT64))
            missing: list[int] = [seq for seq, _ in rows]
            if not parked.keys() >= {*missing}:
                return False
            db.run("set_serving", (embedder,))
            db.run("drop_other_vectors", (embedder,))
            db.run("empty_queue")
            db.run_many("park", [(seq, parked[seq]) for seq in missing])
            return True

    def newest_vectors(self, embedder: str) -> bytes | None:
        """Returns the vectors that an embedder computed last: their size tells its dimensions."""
        rows = self._db.fetch("newest_vectors", embedder)
        return rows[0][0] if rows else None

    def drop(self, embedder: str) -> None:
        """Drops an embedder's vectors."""
        self._db.update("drop_vectors", embedder)

    def check(self) -> CheckResults:
        """Yields what the doctor reports: vectors and candidates that do not match the memories."""
        yield from self._db.run_checks("vectors.sql")
        if self.candidates:
            yield from self.candidates.check()

    # Texts

    def state(self) -> IndexState:
        """Returns how far the log and the vectors are; `changes` tells what came after a state."""
        return IndexState._make(self._db.fetch("state")[0])

    def owned_rooms(self, scope: Scope) -> list[Namespace]:
        """Returns the rooms in a scope that belong to its owner, without those inside another one."""
        rooms: list[Namespace] = []
        low = scope.low
        with self._db.read() as db:
            while (ns := db.run("next_owned", (scope.owner, low, scope.high)).get) is not None:
                rooms.append(Namespace.decode(ns).owned_root())
                low = rooms[-1].subtree()[1]
        return rooms

    def live_texts(self, scope: Scope, embedder: str, max_bytes: int) -> tuple[IndexState, list[Text]]:
        """Returns all live texts of a scope, ignoring its filter, and the state of the index at that time.

        Raises `CorpusTooLarge` if texts and vectors are larger than `max_bytes`.
        """
        with self._db.snapshot() as db:
            state, texts = _state(db), []
            for text in self._added_texts(db, scope, embedder, 0, self._db.index_hint("live")):
                max_bytes -= len(text.index_text) + len(text.vectors or b"")
                if max_bytes < 0:
                    raise CorpusTooLarge
                texts.append(text)
            return state, texts

    def texts_of(
        self, scope: Scope, embedder: str, seqs: Sequence[int], *, now: int, max_bytes: int
    ) -> tuple[list[Text], bool]:
        """Returns the texts, with vectors, of those versions that are visible in a scope now.

        Stops after `max_bytes` bytes; also returns whether it read all of them.
        """
        texts: list[Text] = []
        for start in range(0, len(seqs), TEXTS_AT_ONCE):
            page = json.dumps(seqs[start : start + TEXTS_AT_ONCE])
            params = (scope.low, scope.high, now, embedder, page)
            for text in map(Text._make, self._db.select("texts_of", scope, params)):
                max_bytes -= len(text.index_text) + len(text.vectors or b"")
                if max_bytes < 0:
                    return texts, False
                texts.append(text)
        return texts, True

    def changes(self, scope: Scope, embedder: str, since: IndexState) -> Change:
        """Returns the texts of a scope that were added, replaced or erased since a state of the index."""
        with self._db.snapshot() as db:
            state, place, live = _state(db), (scope.low, scope.high), None
            writes, vectors = state.seq - since.seq, state.vectors - since.vectors
            rows = db.run("superseded", (*place, since.seq), along=self._along(writes, "history"))
            superseded = [seq for (seq,) in rows]
            along_texts, along_vectors = self._along(writes, "live"), self._along(vectors, "vectors_of")
            added = chain(
                self._added_texts(db, scope, embedder, since.seq, along_texts),
                self._added_texts(
                    db, scope, embedder, since.vectors, along_vectors, "texts_with_new_vectors"
                ),
            )
            latest = {text.seq: text for text in added}
            if state.erased != since.erased:
                live = [seq for (seq,) in db.run("live", place)]
            expiries = [(seq, expires_at) for seq, expires_at in db.run("expiring", (*place, since.touches))]
            return Change(state, [*latest.values()], superseded, live, expiries)

    def matching_versions(self, scope: Scope, after: int) -> list[int]:
        """Returns the versions after a position that may match the filter, by its plain fields only."""
        return [seq for (seq,) in self._db.select("matching_texts", scope, (scope.low, scope.high, after))]

    def rows_without_text(self, scope: Scope, *, text_count: int, max_rows: int, now: int) -> Iterator[Row]:
        """Yields the visible memories without index text, among the first `max_rows` of a subtree.

        `text_count`: how many memories with text are known there; if there are no others, nothing is read.
        """
        ((live,),) = self._db.fetch("live_count", scope.low, scope.high, text_count + 1)
        if live <= text_count:
            return iter(())
        params = (scope.low, scope.high, max_rows, now)
        return map(Row._make, self._db.select("rows_without_text", scope, params))

    def load_rows(
        self, scope: Scope, seqs: Sequence[int], *, now: int, moment: int | None = None
    ) -> Iterator[Row]:
        """Yields the rows of those versions that are visible in a scope, now or at a moment.

        Every search ends with this.
        """
        until = (MAX_INT64, now) if moment is None else (moment, moment)
        params: Params = [str([*seqs]), scope.low, scope.high, *until]
        condition = self._db.predicate(scope, params)
        if len(seqs) > FEW or scope.filter.conditions:
            return map(Row._make, self._db.stream("visible_rows", params, condition=condition))
        with self._db.read() as db:
            return map(Row._make, db.run_prepared("visible_rows", params, condition=condition).fetchall())

    def _along(self, distance: int, index: str) -> str:
        """The hint for reading the rows after a position; no index is used near the end of the log."""
        return self._db.index_hint(None if distance < NEAR else index)

    def _added_texts(
        self,
        db: Connection,
        scope: Scope,
        embedder: str,
        after: int,
        along: str,
        statement: str = "added_texts",
    ) -> Iterator[Text]:
        unfiltered, params = replace(scope, filter=Filter()), (scope.low, scope.high, after, embedder)
        return map(Text._make, self._db.run_scoped(db, statement, unfiltered, params, along=along))


def _add_vectors(db: Connection, embedder: str, bodies: Sequence[tuple[int, bytes]]) -> None:
    """Adds all by one statement: between two statements, another thread may take the interpreter."""
    ends = accumulate(len(body) for _, body in bodies)
    places = [(seq, end - len(body) + 1, len(body)) for (seq, body), end in zip(bodies, ends, strict=True)]
    db.run("add_vectors", (embedder, b"".join(body for _, body in bodies), json.dumps(places)))


def _state(db: Connection) -> IndexState:
    return IndexState._make(db.run("state").fetchall()[0])
