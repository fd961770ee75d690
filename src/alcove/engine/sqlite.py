"""The SQLite engine: one file, many threads, several processes, every commit on the disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from alcove.core.clock import Clock
from alcove.core.errors import AlcoveError
from alcove.core.observer import Observer, Unobserved
from alcove.core.records import KINDS, Kind
from alcove.engine import base, copying, operating, statements
from alcove.engine.administration import Administration
from alcove.engine.base import (
    FOR_EVER,
    Copied,
    DataKey,
    DataKeyGone,
    Replay,
    Row,
    RowOperation,
    Scope,
    some_rows,
)
from alcove.engine.commit import CommitQueue, Outcome, Submission
from alcove.engine.database import Database
from alcove.engine.erasure import Erasure
from alcove.engine.index import Index
from alcove.engine.log import SQL, Live, Transaction
from alcove.engine.scopes import by_author, predicate
from alcove.store.api_keys import ApiKey
from alcove.store.filters import Params
from alcove.store.portions import PIECE_BYTES

NEAR_THE_END = 5000
"""Events this close to the end of the log are read along it rather than from their subtree."""


class SqliteEngine:
    """`base.Engine` over one SQLite file in WAL mode with `synchronous=FULL`."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        busy_timeout: float,
        on_create: Callable[[], None],
        observer: Observer | None = None,
    ) -> None:
        self._clock = clock
        self._db = Database(path, busy_timeout=busy_timeout, on_create=on_create)
        self.index: base.Index = Index(self._db)
        self.admin: operating.Administration = Administration(self._db, clock)
        self._observer = observer or Unobserved()
        self.erasure: operating.Erasure = Erasure(self._db, clock)
        self._queue = CommitQueue(self._commit, self._observer)
        self._scrubbing = threading.Lock()

    def close(self) -> None:
        self._db.close()

    # Writing

    def submit(
        self, operations: Sequence[RowOperation], replay: Replay | None = None, *, user: str | None = None
    ) -> Submission:
        return self._queue.submit(operations, replay, user)

    def _commit(self, batch: Sequence[Submission]) -> None:
        """One transaction for all; an error of the disk is everybody's, a refusal only its own."""
        with self._db.write() as db:
            first = Transaction.now(db, self._clock)
            outcomes = [_attempt(first.later(n), submission) for n, submission in enumerate(batch)]
        for submission, outcome in zip(batch, outcomes, strict=True):
            submission.outcome = outcome

    # Reading

    def get(self, ns: bytes, key: bytes, *, now: int, at: int | None = None) -> Row | None:
        statement, moment = ("get", now) if at is None else ("get_at", at)
        with self._db.read() as db:
            found = db.execute(SQL[statement], (ns, key, moment)).fetchone()
        return Row._make(found) if found else None

    def scan(self, scope: Scope, *, now: int, at: int | None = None) -> Iterator[Row]:
        statement, moment = ("scan", now) if at is None else ("scan_at", at)
        params: Params = [scope.low, scope.high, moment]
        return map(Row._make, self._stream(statement, predicate(scope, params), params))

    def scan_page(
        self, scope: Scope, *, after: tuple[bytes, bytes] | None, now: int, limit: int
    ) -> list[Row]:
        params: Params = [*(after or (scope.low, b"")), scope.high, now]
        along = "authored" if by_author(scope) else "live"
        statement = SQL["scan_page"].format(where=predicate(scope, params), along=along)
        with self._db.read() as db:
            return some_rows(db.execute(statement, [*params, limit]), limit, most=PIECE_BYTES)[0]

    def namespaces(self, scope: Scope, *, now: int, owner: str | None = None) -> Iterator[bytes]:
        whose, named = ("", ()) if owner is None else ("n.owner = ? AND", (owner,))
        params: Params = [*named, scope.low, scope.high, now]
        for (ns,) in self._stream("namespaces", predicate(scope, params), params, whose):
            yield ns

    def history(self, ns: bytes, key: bytes, *, below: int = FOR_EVER) -> Iterator[Row]:
        return map(Row._make, self._stream("history", "", [ns, key, below]))

    def events(
        self,
        scope: Scope,
        *,
        position: int,
        kinds: Sequence[Kind],
        after: int | None,
        before: int | None,
        limit: int,
        most_bytes: int,
    ) -> tuple[list[Row], bool]:
        params: Params = [position, scope.low, scope.high]
        where = [predicate(scope, params)]
        if set(kinds) != set(KINDS):
            where.append(f"kind IN ({', '.join('?' * len(kinds))})")
            params.extend(kinds)
        for sign, moment in ((">", after), ("<", before)):
            if moment is not None:
                where.append(f"created_at {sign} ?")
                params.append(moment)
        params.append(limit + 1)
        with self._db.read() as db:
            ((last,),) = db.execute(SQL["last_seq"])
            near = not scope.low or last - position < NEAR_THE_END
            statement = SQL["events_by_seq" if near else "events_by_subtree"]
            found = db.execute(statement.format(where=" AND ".join(where)), params)
            return some_rows(found, limit, most=most_bytes)

    def count(self, scope: Scope, *, now: int) -> int:
        params: Params = [scope.low, scope.high, now]
        statement = SQL["count"].format(where=predicate(scope, params))
        with self._db.read() as db:
            ((found,),) = db.execute(statement, params)
        return int(found)

    def last_seq(self) -> int:
        ((last,),) = self._all("last_seq")
        return int(last)

    def horizon(self) -> tuple[int, int]:
        with self._db.read() as db:
            return _mark(db, "history_from"), _mark(db, "purged_seq")

    # Living and dying

    def expire(self, *, now: int, limit: int) -> int:
        return self._end("due", now, limit)

    def expire_older(self, low: bytes, high: bytes, *, than: int, limit: int) -> int:
        return self._end("aged", low, high, than, limit)

    def _end(self, which: str, *params: int | bytes) -> int:
        """Looks without holding writers up, then ends what is still live in one transaction."""
        found = self._all(which, *params)
        if not found:
            return 0
        ended = 0
        with self._db.write() as db:
            transaction = Transaction.now(db, self._clock)
            for seq in found:
                if row := db.execute(SQL["still_live"], seq).fetchone():
                    transaction.end(Live._make(row), "expired")
                    ended += 1
        self._observer.expired(ended, which=which)  # not what another process ended meanwhile
        return len(found)

    def purge(self, *, before: int, limit: int) -> int:
        with self._db.write() as db:
            gone: list[tuple[Any, ...]] = db.execute(SQL["purge"], (before, limit)).fetchall()
            for ns in {ns for _, ns in gone}:
                db.execute(SQL["forget_namespace"], (ns,))
            if gone:
                db.execute(SQL["set_mark"], (before, "history_from"))
                db.execute(SQL["set_mark"], (max(seq for seq, _ in gone), "purged_seq"))
            return len(gone)

    def purge_replays(self, *, before: int) -> int:
        with self._db.write() as db:
            db.execute(SQL["purge_replays"], (before,))
            return db.changes()

    def scrub(self, generation: int | None = None) -> bool:
        """Rebuilds the file unless a scrub since that wipe has done so; scrubs that wait share one."""
        with self._scrubbing:
            with self._db.read() as db:
                wanted, scrubbed = _mark(db, "wipes"), _mark(db, "scrubbed")
            if scrubbed >= (wanted if generation is None else generation):
                return True
            if not self._db.rebuild():
                return False
            with self._db.write() as db:
                db.execute(SQL["set_mark"], (wanted, "scrubbed"))
            return True

    def scrubbed(self) -> int:
        with self._db.read() as db:
            return _mark(db, "scrubbed")

    # Data keys

    def data_key(self, *, subject: str | None = None, id: int | None = None) -> DataKey | None:
        found = self._all("data_key_of", subject) if id is None else self._all("data_key_by_id", id)
        return DataKey._make(found[0]) if found else None

    def data_keys(self, *, not_wrapped_by: str | None = None, limit: int = -1) -> list[DataKey]:
        return [DataKey._make(row) for row in self._all("data_keys", not_wrapped_by, limit)]

    def add_data_key(
        self, subject: str, wrapped: bytes, wrapped_by: str, wipes: int | None = None
    ) -> DataKey | None:
        """Adds a key, or returns the one that another thread or process added first."""
        with self._db.write() as db:
            db.execute(SQL["add_data_key"], (subject, wrapped, wrapped_by, wipes))
            found = db.execute(SQL["data_key_of"], (subject,)).fetchone()
            return DataKey._make(found) if found else None

    def rewrap(self, keys: Sequence[DataKey]) -> None:
        with self._db.write() as db:
            for key in keys:
                db.execute(SQL["rewrap"], (key.wrapped, key.wrapped_by, key.id))

    # API keys

    def add_api_key(self, key: ApiKey) -> None:
        with self._db.write() as db:
            roles = " ".join(key.roles)
            row = (key.id, key.client, key.user, roles, key.trusted, key.digest, key.created_at)
            db.execute(SQL["add_api_key"], row)

    def api_key(self, id: str) -> ApiKey | None:
        found = self._all("api_key", id)
        return _api_key(found[0]) if found else None

    def api_keys(self) -> list[ApiKey]:
        return [_api_key(row) for row in self._all("api_keys")]

    def remove_api_key(self, id: str) -> bool:
        with self._db.write() as db:
            return _changed(db, "remove_api_key", id) > 0

    # Inspection

    def copy(self, to: Path) -> Iterator[Copied]:
        with self._db.read() as db:
            yield from copying.copy(db, to)

    def every_version(self) -> Iterator[Row]:
        """In pages, so that a long look does not hold the log back."""
        seq = 0
        while page := some_rows(self._stream("every_version", "", [seq, 1000]), 1000)[0]:
            yield from page
            seq = page[-1].seq

    def versions(self, seqs: Sequence[int]) -> list[Row]:
        return [Row._make(row) for row in self._all("versions", json.dumps(seqs))]

    def check(self) -> Iterator[tuple[str, int, list[str]]]:
        with self._db.read() as db, db:  # one snapshot for all of it
            pages = db.execute("PRAGMA page_count").fetchone()
            wrong = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
            yield "the file is sound", pages[0] if pages else 0, wrong
            yield from statements.findings(db, "checks.sql")

    def notices(self) -> Iterator[tuple[str, int, list[str]]]:
        with self._db.read() as db, db:
            yield from statements.findings(db, "notices.sql")

    def _all(self, name: str, *params: apsw.SQLiteValue) -> list[tuple[Any, ...]]:
        with self._db.read() as db:
            return db.execute(SQL[name], params).fetchall()

    def _stream(self, name: str, where: str, params: Params, whose: str = "") -> Iterator[tuple[Any, ...]]:
        """Rows one at a time, so that a reader who has enough stops the scan."""
        with self._db.read() as db:
            cursor = db.execute(SQL[name].format(where=where, whose=whose), params)
            try:
                yield from cursor
            finally:
                cursor.close()


def _attempt(transaction: Transaction, submission: Submission) -> Outcome | Exception:
    """What one submission answers once the commit stands; its refusal is not its neighbours'."""
    try:
        return transaction.run(submission.operations, submission.replay)
    except (AlcoveError, DataKeyGone) as refusal:
        return refusal


def _api_key(row: tuple[Any, ...]) -> ApiKey:
    id, client, user, roles, trusted, digest, created_at = row
    return ApiKey(
        id=id,
        client=client,
        user=user,
        roles=tuple(roles.split()),
        trusted=bool(trusted),
        digest=digest,
        created_at=created_at,
    )


def _mark(db: apsw.Connection, name: str) -> int:
    ((value,),) = db.execute(SQL["mark"], (name,))
    return int(value)


def _changed(db: apsw.Connection, name: str, *params: apsw.SQLiteValue) -> int:
    db.execute(SQL[name], params)
    return db.changes()
