"""The engine: versions in one database, for many threads and several processes, every commit on the disk.

It stores rows, and does not know policies or the content of sealed values. It assigns sequence number,
revision and time inside the transaction, so that all three only ever grow. Reads with `as_of` return what was
current at that moment, other reads what is current `now`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from alcove.core.clock import Clock, system_clock
from alcove.core.cursor import STREAM_CHUNK_BYTES
from alcove.core.errors import requires_extra
from alcove.core.records import KINDS, EventKind
from alcove.engine.administration import Administration
from alcove.engine.commit import CommitQueue, Observer, Submission
from alcove.engine.data_keys import DataKeys
from alcove.engine.database import CheckResults, Database, SkipVersion
from alcove.engine.erasure import Erasure, PersonalData
from alcove.engine.index import SearchIndex
from alcove.engine.locks import FileLocks, Locks
from alcove.engine.rows import MAX_INT64, CopyProgress, Fingerprint, LiveKey, Outcome, Row, Scope, read_page
from alcove.engine.sqlite.database import SqliteDatabase
from alcove.engine.statements import Params
from alcove.engine.transaction import Live, Transaction, commit_batch, commit_puts
from alcove.engine.vector_index import MakeVectorIndex

MAX_LOG_DISTANCE = 5000
"""Events this close to the end of the log are read along the log rather than from their subtree."""


class Engine:
    """A durable, ordered store of versions (WAL, `synchronous=FULL`). Safe to use from many threads."""

    def __init__(
        self,
        location: Path | str,
        *,
        clock: Clock,
        busy_timeout: float,
        on_create: Callable[[], None],
        observer: Observer | None = None,
        vector_index: MakeVectorIndex | None = None,
    ) -> None:
        """`location`: the path of a file, or the address of a PostgreSQL database.

        `vector_index`: makes the vector index, if it is not the database's own.
        """
        self.database, self.locks = _open(location, busy_timeout, on_create)
        self._db = self.database
        self.clock = self._db.clock if clock is system_clock else clock
        """The `clock` argument, or the clock that all nodes of the store share."""
        self.on_commit, self.is_remote = self._db.on_commit, self._db.is_remote
        self._fetch = self._db.fetch
        self.data_keys = DataKeys(self._db.fetch, self._db.write)
        self.index = SearchIndex(self._db, vector_index(self._db, self.locks) if vector_index else None)
        self.admin = Administration(self._db, self.clock)
        self.personal_data = PersonalData(self._db, self.clock)
        self.erasure = Erasure(self._db, self.clock, self.index.vector_index)
        self._observer = observer or Observer()
        self.submit = CommitQueue(self._commit, self._observer, is_remote=self.is_remote).submit

    def close(self) -> None:
        if self.index.vector_index:
            self.index.vector_index.close()
        self.locks.close()
        self._db.close()

    def _commit(self, batch: Sequence[Submission]) -> list[Outcome | Exception]:
        outcomes = commit_puts(self._db, self.clock, batch) if self.is_remote else None
        return commit_batch(self._db, self.clock, batch) if outcomes is None else outcomes

    # Reading

    def get(self, ns: bytes, key: bytes, *, now: int, as_of: int | None = None) -> Row | None:
        rows = self._fetch("get", ns, key, now) if as_of is None else self._fetch("get_at", ns, key, as_of)
        return Row._make(rows[0]) if rows else None

    def read(self, ns: bytes, key: bytes, *, now: int) -> tuple[int, Row | None]:
        """Returns the version of the newest document, and the live version of a key."""
        (row,) = self._fetch("read", ns, key, now)
        return row[0], None if row[1] is None else Row._make(row[1:])

    def fingerprint(self, ns: bytes, *others: bytes, now: int) -> Fingerprint:
        """Returns a value that changes with a namespace and with two other keys; see `Fingerprint`.

        `others`: namespace and key of each of the two.
        """
        (row,) = self._fetch("fingerprint", ns, now, *others)
        return Fingerprint._make(row)

    def scan(
        self, scope: Scope, *, now: int, as_of: int | None = None, skip: SkipVersion | None = None
    ) -> Iterator[Row]:
        """Yields versions by namespace and key, and reads nothing of those to `skip`."""
        statement, moment = ("scan", now) if as_of is None else ("scan_at", as_of)
        return map(Row._make, self._db.select(statement, scope, (scope.low, scope.high, moment), skip=skip))

    def scan_page(
        self, scope: Scope, *, after: tuple[bytes, bytes] | None, now: int, limit: int
    ) -> list[Row]:
        params: Params = [*(after or (scope.low, b"")), scope.high, now]
        rows = self._db.select("scan_page", scope, params, [limit])
        return read_page(rows, limit, max_bytes=STREAM_CHUNK_BYTES)[0]

    def namespaces(self, scope: Scope, *, now: int, owner: str | None = None) -> Iterator[bytes]:
        """Yields namespaces in order; with an owner, only theirs, at the cost of those alone."""
        of_owner, owners = ("", []) if owner is None else ("n.owner = ? AND", [owner])
        params: Params = [*owners, scope.low, scope.high, now]
        return (ns for (ns,) in self._db.select("namespaces", scope, params, of_owner=of_owner))

    def keys(self, scope: Scope, *, now: int) -> list[LiveKey]:
        """Returns the live keys of a scope, without their content."""
        return [*map(LiveKey._make, self._db.select("keys", scope, (scope.low, scope.high, now)))]

    def owned_keys(self, scope: Scope, owner: str, *, except_namespace: bytes, now: int) -> list[LiveKey]:
        """Returns the live keys in the namespaces of one user, except one of them.

        It costs as much as those namespaces, however many others the subtree has.
        """
        params: Params = [owner, scope.low, scope.high, except_namespace, now]
        return [*map(LiveKey._make, self._db.select("owned_keys", scope, params))]

    def authored_keys(self, scope: Scope, author: str, *, now: int) -> list[LiveKey]:
        """Returns what one user wrote in namespaces of others, at the cost of all they wrote there."""
        params: Params = [author, scope.low, scope.high, now]
        return [*map(LiveKey._make, self._db.select("authored_keys", scope, params))]

    def history(self, ns: bytes, key: bytes, *, below: int = MAX_INT64) -> Iterator[Row]:
        """Yields the versions of a key below a revision, newest first."""
        return map(Row._make, self._db.stream("history", [ns, key, below]))

    def events(
        self,
        scope: Scope,
        *,
        position: int,
        kinds: Sequence[EventKind],
        between: tuple[int | None, int | None],
        limit: int,
        max_bytes: int,
    ) -> tuple[list[Row], bool]:
        """Returns some events after a position, and whether there are more.

        `between`: after the first moment and before the second.
        """
        params: list[Any] = [position, scope.low, scope.high]
        conditions = [self._db.predicate(scope, params)]
        if set(kinds) != set(KINDS):
            conditions.append(f"kind IN ({', '.join('?' * len(kinds))})")
            params.extend(kinds)
        for sign, moment in zip("><", between, strict=True):
            if moment is not None:
                conditions.append(f"created_at {sign} ?")
                params.append(moment)
        is_near_end = not scope.low or self.last_seq() - position < MAX_LOG_DISTANCE
        statement = "events_by_seq" if is_near_end else "events_by_subtree"
        rows = self._db.stream(statement, [*params, limit + 1], condition=" AND ".join(conditions))
        return read_page(rows, limit, max_bytes=max_bytes)

    def count(self, scope: Scope, *, now: int) -> int:
        ((count,),) = self._db.select("count", scope, (scope.low, scope.high, now))
        return int(count)

    def counts(self, scope: Scope, *, now: int) -> Iterator[tuple[bytes, int]]:
        """Yields each namespace of a scope, in order, with the count of its memories."""
        rows = self._db.select("counts", scope, (scope.low, scope.high, now))
        return ((ns, count) for ns, count in rows)

    def newest(
        self, scope: Scope, *, now: int, limit: int, before: int = MAX_INT64, embedder: str = ""
    ) -> Iterator[tuple[Row, bytes | None]]:
        """Yields versions, newest first, each with its vectors of an embedder."""
        params: Params = [embedder, scope.low, scope.high, now, before]
        rows = self._db.select("scan_newest", scope, params, [limit])
        return ((Row._make(row[:-1]), row[-1]) for row in rows)

    def activity(
        self, scope: Scope, *, since: int, rooms: int
    ) -> tuple[list[tuple[int, EventKind, int]], list[tuple[bytes, int, int]]]:
        """Returns counts of events by day and kind, and the daily growth of the busiest namespaces."""
        params: Params = [scope.low, scope.high, since]
        events = [(day, kind, n) for day, kind, n in self._db.select("activity", scope, params)]
        growth = self._db.select("growth", scope, params, [rooms])
        return events, [(ns, day, count) for ns, day, count in growth]

    def last_seq(self) -> int:
        ((last,),) = self._fetch("last_seq")
        return int(last)

    def horizon(self) -> tuple[int, int]:
        """Returns the earliest moment and the highest removed sequence number of the retained history."""
        return self._db.mark("history_from"), self._db.mark("purged_seq")

    def versions(self, seqs: Sequence[int]) -> list[Row]:
        """Returns those of the versions that still exist, in the order of the log."""
        return [Row._make(row) for row in self._fetch("versions", json.dumps(seqs))]

    def every_version(self) -> Iterator[Row]:
        """Yields all versions in pages, so that a slow reader does not block checkpoints of the log."""
        seq = 0
        while page := read_page(self._db.stream("every_version", [seq, 1000]), 1000)[0]:
            yield from page
            seq = page[-1].seq

    # Expiry and retention: each call changes at most `limit` rows in a transaction of its own

    def expire(self, *, now: int, limit: int) -> int:
        """Ends memories past their expiry; returns how many there were."""
        return self._end("due", now, limit)

    def expire_older(self, low: bytes, high: bytes, *, than: int, limit: int) -> int:
        """Ends memories of a subtree that were written before a moment; returns how many there were."""
        return self._end("aged", low, high, than, limit)

    def _end(self, reason: str, *params: int | bytes) -> int:
        """Selects without blocking writers, then ends those that are still live in one transaction."""
        candidates = self._fetch(reason, *params)
        if not candidates:
            return 0
        ended = 0
        with self._db.write() as db:
            transaction = Transaction(db, self.clock)
            for seq in candidates:
                if row := db.run("live_version", seq).fetchone():
                    transaction.end(Live._make(row), "expired")
                    ended += 1
        self._observer.memories_expired(ended, reason=reason)  # without those that another process ended
        return len(candidates)

    def purge(self, *, before: int, limit: int) -> int:
        """Removes versions that ended before a moment; returns how many."""
        with self._db.write() as db:
            purged: list[tuple[Any, ...]] = db.run("purge", (before, limit)).fetchall()
            for ns in {ns for _, ns in purged}:
                db.run("remove_empty_namespace", (ns,))
            if purged:
                db.run("set_mark", (before, "history_from"))
                db.run("set_mark", (max(seq for seq, _ in purged), "purged_seq"))
            return len(purged)

    def purge_stored_answers(self, *, before: int) -> int:
        """Removes stored answers to idempotent requests that are older than a moment."""
        return self._db.update("purge_stored_answers", before)

    # Inspection

    def copy(self, to: Path) -> Iterator[CopyProgress]:
        """Writes one moment of the store into a file, while others continue to write to the store."""
        return self._db.copy(to)

    def check(self) -> CheckResults:
        """Runs each structural check."""
        yield from self._db.check_integrity()
        yield from self._db.run_checks("checks.sql")

    def notices(self) -> CheckResults:
        """Finds what is unusual but not wrong."""
        return self._db.run_checks("doctor_notices.sql")


def _open(location: Path | str, busy_timeout: float, on_create: Callable[[], None]) -> tuple[Database, Locks]:
    """Opens a database, and the locks that all its processes share."""
    if isinstance(location, Path):
        database = SqliteDatabase(location, busy_timeout=busy_timeout, on_create=on_create)
        return database, FileLocks.for_store(location)
    with requires_extra("postgresql://", extra="postgres"):
        from alcove.engine.postgres.database import PostgresDatabase  # noqa: PLC0415  needs psycopg

    remote = PostgresDatabase(location, busy_timeout=busy_timeout, on_create=on_create)
    return remote, remote.locks
