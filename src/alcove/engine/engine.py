"""The engine: versions in one SQLite file, for many threads and several processes, every commit on the disk.

It stores rows and knows nothing of policy or of what is inside a sealed value. It assigns sequence, revision
and time inside the transaction, so that all three only ever grow. Reads take `at`, a moment of which to tell
what was current; without it they tell what is current `now`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from alcove.core.clock import Clock, system_clock
from alcove.core.cursor import STREAM_CHUNK_BYTES
from alcove.core.errors import AlcoveError, requires_extra
from alcove.core.records import KINDS, EventKind
from alcove.engine.administration import Administration, Erasure
from alcove.engine.commit import CommitQueue, Observer, Submission
from alcove.engine.data_keys import DataKey, DataKeys
from alcove.engine.database import Database, Findings, RuledOut
from alcove.engine.index import SearchIndex
from alcove.engine.locks import FileLocks, Locks
from alcove.engine.rows.operations import DataKeyGone, Outcome, PutRow, StaleDecision
from alcove.engine.rows.versions import MAX_INT64, CopyProgress, Fingerprint, LiveKey, Row, read_page
from alcove.engine.scope import Scope
from alcove.engine.sqlite.database import SqliteDatabase
from alcove.engine.statements import Params
from alcove.engine.transaction import Live, Transaction, put_parameters, read_put_answer
from alcove.engine.vector_index import MakeVectorIndex

NEAR_THE_END = 5000
"""Events this close to the end of the log are read along it rather than from their subtree."""


class Engine(DataKeys):
    """A durable, ordered store of versions (WAL, `synchronous=FULL`). Safe to use from many threads."""

    def __init__(
        self,
        at: Path | str,
        *,
        clock: Clock,
        busy_timeout: float,
        on_create: Callable[[], None],
        observer: Observer | None = None,
        vector_index: MakeVectorIndex | None = None,
    ) -> None:
        """`at`: the path of a file, or the address of a PostgreSQL database.

        `vector_index`: makes what finds texts by meaning, if it is not the database's own way.
        """
        self._db, self.locks = _opened(at, busy_timeout, on_create)
        self.clock = clock = self._db.clock if clock is system_clock else clock
        """The one given, or the one that all who have the store open share."""
        self.when_told, self.far = self._db.when_told, self._db.far
        self._fetch = self._db.fetch
        self.index = SearchIndex(self._db, vector_index(self._db, self.locks) if vector_index else None)
        self.admin = Administration(self._db, clock)
        self.erasure = Erasure(self._db, clock, self.index.vector_index)
        self._observer = observer or Observer()
        self.submit = CommitQueue(self._commit, self._observer, far=self.far).submit

    @property
    def database(self) -> Database:
        """For who copies all of it."""
        return self._db

    def close(self) -> None:
        if self.index.vector_index:
            self.index.vector_index.close()
        self.locks.close()
        self._db.close()

    # Writing

    def _commit(self, batch: Sequence[Submission]) -> None:
        """One transaction for all; an error of the disk is everybody's, a refusal only its own."""
        outcomes = self._put_each(batch) if self.far else None
        if outcomes is None:
            outcomes = self._run_each(batch)
        for submission, outcome in zip(batch, outcomes, strict=True):
            submission.outcome = outcome

    def _put_each(self, batch: Sequence[Submission]) -> list[Outcome | Exception] | None:
        """In one journey; None where one of them is anything but a single put."""
        puts = list[PutRow]()
        for each in batch:
            match each.operations:
                case [PutRow() as put] if not each.once:
                    puts.append(put)
                case _:
                    return None
        at = self.clock()
        params = [put_parameters(put, at, each.decided_by) for put, each in zip(puts, batch, strict=True)]
        outcomes = list[Outcome | Exception]()
        for put, answer in zip(puts, self._db.put_each(params), strict=True):
            try:
                outcomes.append([read_put_answer(put, answer)])
            except (AlcoveError, DataKeyGone, StaleDecision) as refusal:
                outcomes.append(refusal)
        return outcomes

    def _run_each(self, batch: Sequence[Submission]) -> list[Outcome | Exception]:
        outcomes = list[Outcome | Exception]()
        with self._db.write() as db:
            ahead = [each for submission in batch for each in submission.operations] if self.far else ()
            transaction = Transaction(db, self.clock, ahead)
            for submission in batch:
                try:
                    if submission.decided_by not in (None, transaction.documents):
                        raise StaleDecision
                    outcomes.append(transaction.run(submission.operations, submission.once))
                except (AlcoveError, DataKeyGone, StaleDecision) as refusal:
                    outcomes.append(refusal)
                transaction.at += 1
        return outcomes

    # Reading

    def get(self, ns: bytes, key: bytes, *, now: int, at: int | None = None) -> Row | None:
        found = self._fetch("get", ns, key, now) if at is None else self._fetch("get_at", ns, key, at)
        return Row._make(found[0]) if found else None

    def read(self, ns: bytes, key: bytes, *, now: int) -> tuple[int, Row | None]:
        """The version of the newest document, and what is at a key."""
        (found,) = self._fetch("read", ns, key, now)
        return found[0], None if found[1] is None else Row._make(found[1:])

    def fingerprint(self, ns: bytes, *others: bytes, now: int) -> Fingerprint:
        """By what a copy is known to be as new: of a namespace, and of two `others`, each two arguments."""
        (found,) = self._fetch("fingerprint", ns, now, *others)
        return Fingerprint._make(found)

    def scan(
        self, scope: Scope, *, now: int, at: int | None = None, ruled_out: RuledOut | None = None
    ) -> Iterator[Row]:
        """In order of namespace and key; of versions that are `ruled_out` nothing is read."""
        statement, moment = ("scan", now) if at is None else ("scan_at", at)
        params: Params = [scope.low, scope.high, moment]
        where = self._db.where(scope, params)
        return map(Row._make, self._db.stream(statement, params, ruled_out, where=where))

    def scan_page(
        self, scope: Scope, *, after: tuple[bytes, bytes] | None, now: int, limit: int
    ) -> list[Row]:
        params: Params = [*(after or (scope.low, b"")), scope.high, now]
        where = self._db.where(scope, params)
        found = self._db.stream("scan_page", [*params, limit], where=where)
        return read_page(found, limit, max_bytes=STREAM_CHUNK_BYTES)[0]

    def namespaces(self, scope: Scope, *, now: int, owner: str | None = None) -> Iterator[bytes]:
        """In order; with an owner, only theirs, and at the cost of those."""
        whose, named = ("", ()) if owner is None else ("n.owner = ? AND", (owner,))
        params: Params = [*named, scope.low, scope.high, now]
        where = self._db.where(scope, params)
        return (ns for (ns,) in self._db.stream("namespaces", params, where=where, whose=whose))

    def keys(self, scope: Scope, *, now: int) -> list[LiveKey]:
        """The live keys of a scope, without their content."""
        params: Params = [scope.low, scope.high, now]
        where = self._db.where(scope, params)
        return [*map(LiveKey._make, self._db.stream("keys", params, where=where))]

    def owned_keys(self, scope: Scope, owner: str, *, besides: bytes, now: int) -> list[LiveKey]:
        """The same of the rooms that belong to one user, without the room `besides`.

        It costs as much as those rooms, however many rooms of others the subtree has.
        """
        params: Params = [owner, scope.low, scope.high, besides, now]
        where = self._db.where(scope, params)
        return [*map(LiveKey._make, self._db.stream("owned_keys", params, where=where))]

    def authored_keys(self, scope: Scope, author: str, *, now: int) -> list[LiveKey]:
        """The same of what one user wrote in rooms that do not belong to them, at the cost of all of that."""
        params: Params = [author, scope.low, scope.high, now]
        where = self._db.where(scope, params)
        return [*map(LiveKey._make, self._db.stream("authored_keys", params, where=where))]

    def history(self, ns: bytes, key: bytes, *, below: int = MAX_INT64) -> Iterator[Row]:
        """The versions of a key below a revision, newest first."""
        return map(Row._make, self._db.stream("history", [ns, key, below]))

    def events(
        self,
        scope: Scope,
        *,
        position: int,
        kinds: Sequence[EventKind],
        between: tuple[int | None, int | None],
        limit: int,
        most: int,
    ) -> tuple[list[Row], bool]:
        """Some events after a position, and whether there are more.

        `between`: after the first moment and before the second. `most`: the bytes they may have.
        """
        params: Params = [position, scope.low, scope.high]
        where = [self._db.where(scope, params)]
        if set(kinds) != set(KINDS):
            where.append(f"kind IN ({', '.join('?' * len(kinds))})")
            params.extend(kinds)
        for sign, moment in zip("><", between, strict=True):
            if moment is not None:
                where.append(f"created_at {sign} ?")
                params.append(moment)
        near = not scope.low or self.last_seq() - position < NEAR_THE_END
        way = "events_by_seq" if near else "events_by_subtree"
        found = self._db.stream(way, [*params, limit + 1], where=" AND ".join(where))
        return read_page(found, limit, max_bytes=most)

    def count(self, scope: Scope, *, now: int) -> int:
        params: Params = [scope.low, scope.high, now]
        where = self._db.where(scope, params)
        ((found,),) = self._db.stream("count", params, where=where)
        return int(found)

    def counts(self, scope: Scope, *, now: int) -> Iterator[tuple[bytes, int]]:
        """How much is in each namespace of a scope, in order."""
        params: Params = [scope.low, scope.high, now]
        where = self._db.where(scope, params)
        return ((ns, count) for ns, count in self._db.stream("counts", params, where=where))

    def newest(
        self, scope: Scope, *, now: int, limit: int, before: int = MAX_INT64, embedder: str = ""
    ) -> Iterator[tuple[Row, bytes | None]]:
        """What was written last comes first, each with its vectors by an embedder."""
        params: Params = [embedder, scope.low, scope.high, now, before]
        where = self._db.where(scope, params)
        every = self._db.stream("scan_newest", [*params, limit], where=where)
        return ((Row._make(each[:-1]), each[-1]) for each in every)

    def activity(
        self, scope: Scope, *, since: int, rooms: int
    ) -> tuple[list[tuple[int, EventKind, int]], list[tuple[bytes, int, int]]]:
        """How often what happened on each day; and by how much the rooms grew in which most did."""
        params: Params = [scope.low, scope.high, since]
        where = self._db.where(scope, params)
        events = [(day, kind, n) for day, kind, n in self._db.stream("activity", params, where=where)]
        grown = self._db.stream("growth", [*params, rooms], where=where)
        return events, [(ns, day, by) for ns, day, by in grown]

    def last_seq(self) -> int:
        ((last,),) = self._fetch("last_seq")
        return int(last)

    def horizon(self) -> tuple[int, int]:
        """The earliest moment and the highest removed sequence that retention has left behind."""
        return self._db.mark("history_from"), self._db.mark("purged_seq")

    # Living and dying: each call does at most `limit` rows in a transaction of its own

    def expire(self, *, now: int, limit: int) -> int:
        return self._end("due", now, limit)

    def expire_older(self, low: bytes, high: bytes, *, than: int, limit: int) -> int:
        return self._end("aged", low, high, than, limit)

    def _end(self, which: str, *params: int | bytes) -> int:
        """Looks without holding writers up, then ends what is still live in one transaction."""
        found = self._fetch(which, *params)
        if not found:
            return 0
        ended = 0
        with self._db.write() as db:
            transaction = Transaction(db, self.clock)
            for seq in found:
                if row := db.run("still_live", seq).fetchone():
                    transaction.end(Live._make(row), "expired")
                    ended += 1
        self._observer.expired(ended, which=which)  # not what another process ended meanwhile
        return len(found)

    def purge(self, *, before: int, limit: int) -> int:
        with self._db.write() as db:
            gone: list[tuple[Any, ...]] = db.run("purge", (before, limit)).fetchall()
            for ns in {ns for _, ns in gone}:
                db.run("forget_namespace", (ns,))
            if gone:
                db.run("set_mark", (before, "history_from"))
                db.run("set_mark", (max(seq for seq, _ in gone), "purged_seq"))
            return len(gone)

    def purge_kept_answers(self, *, before: int) -> int:
        return self._db.change("purge_kept_answers", before)

    # Data keys

    def add_data_key(
        self, subject: str, wrapped: bytes, wrapped_by: str, wipes: int | None = None
    ) -> DataKey | None:
        """Adds a key, or returns the one that was added first; with `wipes`, only if there were no more.

        It does not wait for the disk: whatever is sealed with it comes later in the log, and does.
        """
        with self._db.write(durable=False) as db:
            db.run("add_data_key", (subject, wrapped, wrapped_by, wipes))
            found = db.run("data_key_of", (subject,)).fetchone()
            return DataKey._make(found) if found else None

    def rewrap(self, keys: Sequence[DataKey]) -> None:
        with self._db.write() as db:
            db.run_each("rewrap", [(key.wrapped, key.wrapped_by, key.id) for key in keys])

    # Inspection

    def copy(self, to: Path) -> Iterator[CopyProgress]:
        """Writes one moment of the store into a file, while others go on writing to the store."""
        return self._db.copy(to)

    def every_version(self) -> Iterator[Row]:
        """In pages, so that a long look does not hold the log back."""
        seq = 0
        while page := read_page(self._db.stream("every_version", [seq, 1000]), 1000)[0]:
            yield from page
            seq = page[-1].seq

    def versions(self, seqs: Sequence[int]) -> list[Row]:
        """Those of some versions that are still there, in the order of the log."""
        return [Row._make(row) for row in self._fetch("versions", json.dumps(seqs))]

    def check(self) -> Findings:
        """Each structural check."""
        yield from self._db.sound()
        with self._db.snapshot() as db:
            yield from db.checks("checks.sql")

    def notices(self) -> Findings:
        """The same for what is odd without being wrong."""
        with self._db.snapshot() as db:
            yield from db.checks("doctor_notices.sql")


def _opened(at: Path | str, busy_timeout: float, on_create: Callable[[], None]) -> tuple[Database, Locks]:
    """A database, and the locks that all who have it open share."""
    if isinstance(at, Path):
        return SqliteDatabase(at, busy_timeout=busy_timeout, on_create=on_create), FileLocks.beside(at)
    with requires_extra("postgresql://", extra="postgres"):
        from alcove.engine.postgres.database import PostgresDatabase  # noqa: PLC0415  psycopg, for who has the extra

    database = PostgresDatabase(at, busy_timeout=busy_timeout, on_create=on_create)
    return database, database.locks
