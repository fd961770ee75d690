"""What indexing and searching ask of a SQLite file: the queue of texts, their vectors, what changed since."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

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
"""Versions after a position up to which they are read along the log rather than from their subtree."""

FEW = 16
"""Versions that are read at once, and not one at a time: most searches ask for no more."""
TEXTS_AT_ONCE = 100
"""Texts of chosen versions that are read by one statement."""
PAGE_BYTES = 1024 * 1024
"""Text that is read at once, unless a single one has more."""


_texts = msgspec.json.Decoder(list[TextToIndex]).decode


class SearchIndex:
    """The texts of a store that are to be found by meaning, and what has become of them.

    Vectors, and who works on a text, do not wait for the disk: a text leaves the queue in the transaction
    that keeps its vectors, so that one whose vectors are lost is in the queue again.
    """

    def __init__(self, db: Database, vector_index: VectorIndex | None = None) -> None:
        """`vector_index`: used instead of pgvector."""
        self._db = db
        may_have_pgvector = db.finds_candidates or db.candidates_missing
        self.vector_index = vector_index or (PgVectorIndex(db) if may_have_pgvector else None)
        self.candidates: CandidateIndex | None = QuantizedIndex(db) if db.keeps_digests else None
        if self.vector_index and (db.finds_candidates or self.vector_index.is_external):
            self.candidates = TermIndex(db, self.vector_index)
        self.candidates_missing = None if self.candidates else db.candidates_missing

    @property
    def problem(self) -> str | None:
        """What keeps memories from being found by meaning now."""
        return self.candidates_missing or (self.vector_index.problem if self.vector_index else None)

    # The queue

    def claim(self, *, now: int, until: int, limit: int, size: int) -> list[TextToIndex]:
        """The texts whose turn it is and that nobody else works on; they are free again at `until`.

        At most `limit`, and of `size` bytes in all unless the first is larger.
        """
        with self._db.write(durable=False, exclusive=False) as db:
            db.run("reach")
            texts = _texts(db.run("next_in_line", (now, limit, size)).get)
            db.run("claim", (until, json.dumps([text.seq for text in texts])))
            return texts

    def renew(self, seqs: Sequence[int], until: int, later: int) -> None:
        """Claims texts for longer that were claimed until a moment, and that nobody has claimed since."""
        with self._db.write(durable=False, exclusive=False) as db:
            db.run("renew", (later, until, json.dumps(seqs)))

    def next_due(self) -> int | None:
        """When the next text may be claimed."""
        ((due,),) = self._db.fetch("next_due")
        return due  # type: ignore[no-any-return]

    def pieces(self, seq: int) -> list[bytes]:
        """The vectors that a text has got so far."""
        return [body for (body,) in self._db.fetch("pieces", seq)]

    def store(self, embedder: str, pieces: Sequence[EmbeddedPiece]) -> bool:
        """Keeps vectors and takes what is whole off the queue, in one transaction.

        What has more goes back into the line. False, and nothing kept, where another embedder serves by now:
        they wait for its vectors instead.
        """
        with self._db.write(durable=False) as db:
            if db.run("serving").fetchone() != (embedder,):
                db.run_many("postpone", [(0, None, 1, piece.text.seq) for piece in pieces])
                return False
            whole = {text.seq: (text, body) for text, body, _, rest in pieces if rest is None}
            begins = [(seq, text.field, text.window) for seq, (text, _) in whole.items()]
            waiting = db.run("still_waiting", (json.dumps(begins),)).get
            _add_vectors(db, embedder, [(seq, whole[seq][1]) for seq in json.loads(waiting)])
            db.run("leave_queue", (waiting,))
            for (seq, _, _, *begin), body, size, rest in pieces:
                # Where nothing is changed, somebody else was faster, or the text is gone.
                if rest is not None and db.update("next_piece", size, *rest, seq, *begin):
                    db.run("add_piece", (seq, body))
            return True

    def add_vectors(self, embedder: str, bodies: Sequence[tuple[int, bytes]]) -> None:
        """Keeps vectors of an embedder that does not serve yet, beside those of the one that does."""
        with self._db.write(durable=False) as db:
            _add_vectors(db, embedder, bodies)

    def postpone(
        self, seqs: Sequence[int], due: int | None, error: str, *, is_own_fault: bool = True
    ) -> None:
        """Puts texts back until a moment; None parks them. What is not their fault is not counted."""
        with self._db.write(durable=False) as db:
            db.run_many("postpone", [(due, error, int(not is_own_fault), seq) for seq in seqs])

    def retry(self) -> int:
        """Makes everything that waits or is parked due now."""
        return self._db.update("retry")

    def pending_status(self, seq: int) -> tuple[bool, str | None]:
        """Whether a version waits for its vectors, and what went wrong so far."""
        found = self._db.fetch("waits", seq)
        return bool(found), found[0][0] if found else None

    def count_pending(self, seqs: Sequence[int]) -> tuple[int, int]:
        """How many of these versions wait for their vectors, and how many of them are parked."""
        ((waiting, parked),) = self._db.fetch("behind", json.dumps(seqs))
        return waiting, parked

    def namespaces_of(self, seqs: Sequence[int]) -> list[Namespace]:
        """The namespaces of versions, one for each that is still there."""
        return [Namespace.decode(ns) for (ns,) in self._db.fetch("namespaces_of", json.dumps(seqs))]

    def status(self, embedder: str) -> IndexStatus:
        return IndexStatus._make(self._db.fetch("status", embedder)[0])

    def parked(self) -> list[ParkedItem]:
        found = self._db.fetch("parked")
        return [ParkedItem(Namespace.decode(ns), key.decode(), *why) for ns, key, *why in found]

    # Which embedder

    def serving(self, first: str | None = None) -> str | None:
        """The embedder whose vectors are searched; the first one to ask becomes it."""
        found = self._db.fetch("serving")
        if not found and first is not None:
            self._db.update("serve_first", first)
            found = self._db.fetch("serving")
        return found[0][0] if found else None

    def texts_without_vectors(self, embedder: str, *, after: int, limit: int) -> list[TextToIndex]:
        """Live texts without vectors of an embedder, in order; fewer than asked for where they are large."""
        return [TextToIndex(*row) for row in self._db.fetch("unembedded", embedder, after, limit, PAGE_BYTES)]

    def switch(self, embedder: str, parked: Mapping[int, str]) -> bool:
        """Serves an embedder's vectors from now on and drops the others', unless some are still missing.

        Those that could not be made are parked, each with what was wrong.
        """
        with self._db.write() as db:
            found = db.run("unembedded", (embedder, 0, len(parked) + 1, MAX_INT64))
            missing: list[int] = [seq for seq, _ in found]
            if not parked.keys() >= {*missing}:
                return False
            db.run("serve", (embedder,))
            db.run("drop_other_vectors", (embedder,))
            db.run("empty_queue")
            db.run_many("park", [(seq, parked[seq]) for seq in missing])
            return True

    def newest_vectors(self, embedder: str) -> bytes | None:
        """The newest vectors of an embedder, which say how many dimensions it has."""
        found = self._db.fetch("some_vectors", embedder)
        return found[0][0] if found else None

    def drop(self, embedder: str) -> None:
        """Forgets an embedder's vectors."""
        self._db.update("drop_vectors", embedder)

    def check(self) -> CheckResults:
        """Each check of vectors against memories: what, how many, and what is wrong."""
        with self._db.snapshot() as db:
            yield from db.run_checks("vectors.sql")
        if self.candidates:
            yield from self.candidates.check()

    # What is there

    def state(self) -> IndexState:
        return IndexState._make(self._db.fetch("state")[0])

    def owned_rooms(self, scope: Scope) -> list[Namespace]:
        """The topmost rooms in a subtree that belong to the scope's owner, each with all that is below it."""
        found: list[Namespace] = []
        low = scope.low
        with self._db.read() as db:
            while (ns := db.run("next_owned", (scope.owner, low, scope.high)).get) is not None:
                found.append(Namespace.decode(ns).owned_root())
                low = found[-1].subtree()[1]
        return found

    def live_texts(self, scope: Scope, embedder: str, most: int) -> tuple[IndexState, list[Text]]:
        """Every live text that a scope shows, whatever its filter, as of one state.

        Raises `CorpusTooLarge` where texts and vectors are more than so many bytes.
        """
        with self._db.snapshot() as db:
            state, came = _state(db), []
            for text in self._came(db, scope, embedder, 0, self._db.index_hint("live")):
                most -= len(text.index_text) + len(text.vectors or b"")
                if most < 0:
                    raise CorpusTooLarge
                came.append(text)
            return state, came

    def texts_of(
        self, scope: Scope, embedder: str, seqs: Sequence[int], *, now: int, max_bytes: int
    ) -> tuple[list[Text], bool]:
        """Those of some versions that a scope shows now and that have a text, with their vectors.

        Ends after `max_bytes` bytes, and says whether it came to the end of them.
        """
        texts: list[Text] = []
        for start in range(0, len(seqs), TEXTS_AT_ONCE):
            params: Params = [
                scope.low,
                scope.high,
                now,
                embedder,
                json.dumps(seqs[start : start + TEXTS_AT_ONCE]),
            ]
            condition = self._db.predicate(scope, params)
            for text in map(Text._make, self._db.stream("texts_of", params, condition=condition)):
                max_bytes -= len(text.index_text) + len(text.vectors or b"")
                if max_bytes < 0:
                    return texts, False
                texts.append(text)
        return texts, True

    def changes(self, scope: Scope, embedder: str, since: IndexState) -> Change:
        """What happened to a scope's texts since a state."""
        with self._db.snapshot() as db:
            state, place, live = _state(db), (scope.low, scope.high), None
            written, given = state.seq - since.seq, state.vectors - since.vectors
            found = db.run("superseded", (*place, since.seq), along=self._along(written, "history"))
            superseded = [seq for (seq,) in found]
            came = [
                *self._came(db, scope, embedder, since.seq, self._along(written, "live")),
                *self._came(
                    db, scope, embedder, since.vectors, self._along(given, "vectors_of"), which="embedded"
                ),
            ]
            if state.erased != since.erased:
                live = [seq for (seq,) in db.run("live", place)]
            expiries = [(seq, at) for seq, at in db.run("expiring", (*place, since.touches))]
            latest = {text.seq: text for text in came}
            return Change(state, [*latest.values()], superseded, live, expiries)

    def matching_versions(self, scope: Scope, after: int) -> list[int]:
        """The texts after a position that a scope's filter lets pass, as far as SQL can tell."""
        params: Params = [scope.low, scope.high, after]
        condition = self._db.predicate(scope, params)
        return [seq for (seq,) in self._db.stream("fitting", params, condition=condition)]

    def rows_without_text(self, scope: Scope, *, texts: int, most: int, now: int) -> Iterator[Row]:
        """What a scope shows that has no text, among the first `most` of its subtree.

        `texts`: how many of the subtree's versions are known to have one; where that is all, nobody looks.
        """
        ((live,),) = self._db.fetch("live_up_to", scope.low, scope.high, texts + 1)
        if live <= texts:
            return iter(())
        params: Params = [scope.low, scope.high, most, now]
        condition = self._db.predicate(scope, params)
        return map(Row._make, self._db.stream("without_text", params, condition=condition))

    def load_rows(
        self, scope: Scope, seqs: Sequence[int], *, now: int, moment: int | None = None
    ) -> Iterator[Row]:
        """The versions of these numbers that a scope shows, now or at a moment: the last word of a search."""
        until = (MAX_INT64, now) if moment is None else (moment, moment)
        params: Params = [str([*seqs]), scope.low, scope.high, *until]
        condition = self._db.predicate(scope, params)
        if len(seqs) > FEW or scope.filter.conditions:
            return map(Row._make, self._db.stream("found", params, condition=condition))
        with self._db.read() as db:
            return map(Row._make, db.run_prepared("found", params, condition=condition).fetchall())

    def _along(self, distance: int, index: str) -> str:
        """Which index to read for what came after a position this far from the end; none near the end."""
        return self._db.index_hint(None if distance < NEAR else index)

    def _came(
        self, db: Connection, scope: Scope, embedder: str, after: int, along: str, which: str = "came"
    ) -> Iterator[Text]:
        params: Params = [scope.low, scope.high, after, embedder]
        condition = self._db.predicate(replace(scope, filter=Filter()), params)
        return map(Text._make, db.run(which, params, condition=condition, along=along))


def _add_vectors(db: Connection, embedder: str, bodies: Sequence[tuple[int, bytes]]) -> None:
    """By one statement for all: between two of them, another thread may take the interpreter."""
    ends = accumulate(len(body) for _, body in bodies)
    places = [(seq, end - len(body) + 1, len(body)) for (seq, body), end in zip(bodies, ends, strict=True)]
    joined = b"".join(body for _, body in bodies)
    db.run("add_vectors", (embedder, joined, json.dumps(places)))


def _state(db: Connection) -> IndexState:
    return IndexState._make(db.run("state").fetchall()[0])
