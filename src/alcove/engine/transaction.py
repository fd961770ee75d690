"""Runs write operations in a database transaction: what each reads and appends for its key."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from alcove.core.clock import DAY, Clock
from alcove.core.cursor import MAX_PAGE_BYTES
from alcove.core.errors import AlcoveError, Conflict, NotFound, PayloadTooLarge
from alcove.core.namespace import Namespace
from alcove.core.records import EventKind
from alcove.engine.commit import Submission
from alcove.engine.database import Connection, Database, Result
from alcove.engine.rows import (
    DataKeyGone,
    DeleteRow,
    EvictRow,
    GetRow,
    IdempotentRequest,
    Outcome,
    PutRow,
    Row,
    RowOperation,
    StaleDecision,
    StoredAnswer,
    TouchRow,
    Writer,
)
from alcove.engine.statements import Value

NOBODY = Writer(None, None, None)


def new_id() -> bytes:
    """Makes a random UUID (version 4); it is no secret, so the fast generator is good enough."""
    bits = random.getrandbits(128) & ~(0xF << 76 | 0x3 << 62) | (0x4 << 76 | 0x2 << 62)
    return bits.to_bytes(16, "big")


class Live(NamedTuple):
    """The live version of a key, with what is needed to end it."""

    seq: int
    ns: bytes
    key: bytes
    revision: int
    owner: str | None
    attributes: str


class KeyState(NamedTuple):
    """The newest version of a key, and what else a write to the key needs to know."""

    live: Live | None
    lapsed: Live | None
    """Expired, but not ended yet: a write to the key records the expiry first."""
    revision: int
    added_at: int | None
    """Since when the key has held something without a gap."""
    namespace_exists: bool
    data_key_exists: bool


class Transaction:
    """Runs submissions inside one database transaction, all operations of one at one moment.

    It reads its own writes. Every statement costs a switch between threads, so a put uses only two or three.
    An operation checks everything before it writes, so only several operations need a savepoint.
    """

    __slots__ = ("_db", "_numbers", "_prefetched", "_rules_version", "moment")

    def __init__(self, db: Connection, clock: Clock, prefetch: Iterable[RowOperation] = ()) -> None:
        """Starts at the clock's time, but always later than the newest version.

        `prefetch`: the next operations, if every answer is a round trip to a server. The states of their
        keys, and numbers for their versions, are requested before the first answer is read.
        """
        self._db = db
        self._prefetched: dict[tuple[bytes, bytes], tuple[int | None, Result]] = {}
        self._numbers: Iterator[int] = iter(())
        if writes := [each for each in prefetch if not isinstance(each, GetRow)]:
            start = db.run("begin_with_numbers", (len(writes),))
            for write in writes:
                if not isinstance(write, EvictRow) and (write.ns, write.key) not in self._prefetched:
                    data_key = write.data_key if isinstance(write, PutRow) else None
                    result = db.run("key_state", (write.ns, write.key, data_key))
                    self._prefetched[write.ns, write.key] = data_key, result
            self._rules_version, newest, number = start.get
            self._numbers = iter(range(number - len(writes) + 1, number + 1))
        else:
            self._rules_version, newest = db.run("begin").get
        self.moment = clock() if newest is None else max(clock(), newest + 1)
        """The time of the versions that it appends now."""

    def run_submission(self, submission: Submission) -> Outcome:
        """Runs one submission, or raises without a change; the next one gets a later moment."""
        try:
            if submission.rules_version not in (None, self._rules_version):
                raise StaleDecision
            operations, once = submission.operations, submission.once
            if len(operations) == 1 and not once:
                return [self._apply(operations[0], 0)]
            self._db.run("set_savepoint")
            try:
                outcome = self._run(operations, once)
            except (AlcoveError, DataKeyGone):
                self._db.run("roll_back_to_savepoint")
                self._db.run("release_savepoint")
                raise
            self._db.run("release_savepoint")
            return outcome
        finally:
            self.moment += 1

    def _run(self, operations: Sequence[RowOperation], once: IdempotentRequest | None) -> Outcome:
        if once and (row := self._one("stored_answer", once.user, once.token, self.moment - DAY)):
            return StoredAnswer._make(row)
        rows = self._apply_all(operations)
        if once:
            if not self._one("data_key_exists", once.data_key):
                raise DataKeyGone
            answer = (once.user, once.token, self.moment, once.data_key, once.seal(rows))
            self._db.run("store_answer", answer)
        return rows

    def _apply_all(self, operations: Sequence[RowOperation]) -> list[Row | None]:
        """Returns a row for each operation, without the last gets if the answer becomes too large."""
        rows: list[Row | None] = []
        size = 0
        for position, operation in enumerate(operations):
            row = self._apply(operation, position)
            if row and isinstance(operation, GetRow):
                size += row.size
                if size > max(MAX_PAGE_BYTES, row.size):
                    if all(isinstance(each, GetRow) for each in operations[position:]):
                        return rows
                    error = PayloadTooLarge(
                        "operations", f"gets of {MAX_PAGE_BYTES} bytes at most before a write"
                    )
                    error.details["operation"] = position
                    raise error
            rows.append(row)
        return rows

    def end(self, live: Live, kind: EventKind, writer: Writer = NOBODY) -> Row:
        """Ends a live version with a tombstone, which keeps the attributes for the policy's filters."""
        self._db.run("end_version", (self.moment, live.seq))
        tombstone = (new_id(), live.ns, live.key, kind, live.revision + 1, self.moment, None,
                     *writer, None, None, live.attributes, None, None, None, None)  # fmt: skip
        return self._append(tombstone, live.owner, ended_at=self.moment)

    def _apply(self, operation: RowOperation, position: int) -> Row | None:
        try:
            match operation:
                case PutRow():
                    return self._put(operation)
                case GetRow(ns, key):
                    row = self._one("get", ns, key, self.moment)
                    return Row._make(row) if row else None
                case DeleteRow():
                    return self._delete(operation)
                case TouchRow():
                    return self._touch(operation)
                case EvictRow():
                    return self._evict(operation)
        except (Conflict, NotFound) as error:
            error.details["operation"] = position
            raise

    def _put(self, put: PutRow) -> Row:
        state = self._key_state(put.ns, put.key, put.data_key)
        _check_revision(put, state.live)
        if not state.data_key_exists:
            raise DataKeyGone
        revision = self.end(state.lapsed, "expired").revision if state.lapsed else state.revision
        if state.live:
            self._db.run("end_version", (self.moment, state.live.seq))
        elif not state.namespace_exists:
            self._db.run("add_namespace", (put.ns, put.owner))
        version = _version(put, revision + 1, self.moment, state.added_at if state.live else None)
        return self._append(version, put.owner, ended_at=None)

    def _delete(self, delete: DeleteRow) -> Row | None:
        state = self._key_state(delete.ns, delete.key)
        _check_revision(delete, state.live)
        if state.lapsed:
            self.end(state.lapsed, "expired")
        return self.end(state.live, "delete", delete.writer) if state.live else None

    def _touch(self, touch: TouchRow) -> Row | None:
        live = self._key_state(touch.ns, touch.key).live
        if not live and touch.refresh:
            return None
        if not live:
            raise NotFound(f"{_describe_key(touch.ns, touch.key)} does not exist")
        if touch.refresh:
            self._db.run("restart_ttl", (self.moment, live.seq))
        else:
            expires_at = None if touch.ttl is None else self.moment + touch.ttl
            self._db.run("set_expiry", (expires_at, touch.ttl, live.seq))
        row = self._apply(GetRow(touch.ns, touch.key), 0)
        return row and row._replace(sealed=None, index_text=None)

    def _evict(self, evict: EvictRow) -> Row | None:
        """Returns the memory that was evicted; None if there was room, or if the key is not new."""
        count, oldest, key_exists = self._one("oldest_key", evict.ns, evict.key) or (0, 0, 0)
        version = None if count < evict.max_keys or key_exists else self._one("live_version", oldest)
        if not version:
            return None
        live = Live._make(version)
        row = self._apply(GetRow(live.ns, live.key), 0)
        self._prefetched.pop((live.ns, live.key), None)
        self.end(live, "delete", evict.writer)
        return row

    def _key_state(self, ns: bytes, key: bytes, data_key: int | None = None) -> KeyState:
        prefetched = self._prefetched.pop((ns, key), None)  # valid until this operation writes the key
        if prefetched and prefetched[0] == data_key:
            row: tuple[Any, ...] = prefetched[1].get
        else:
            row = self._db.run("key_state", (ns, key, data_key)).get
        namespace_exists, data_key_exists = row[-2:]
        if row[0] is None:
            return KeyState(None, None, 0, None, namespace_exists, data_key_exists)
        newest = Live._make(row[:6])
        added_at, ended_at, expires_at = row[6:9]
        live = lapsed = None
        if ended_at is None and (expires_at is None or expires_at > self.moment):
            live = newest
        elif ended_at is None:
            lapsed = newest
        return KeyState(live, lapsed, newest.revision, added_at, namespace_exists, data_key_exists)

    def _append(self, version: tuple[Any, ...], owner: str | None, *, ended_at: int | None) -> Row:
        """Appends a version, which has the fields of a `Row` after its number."""
        number = next(self._numbers, None)
        self._db.run("append", (number, *version, owner, ended_at))
        return Row(self._db.last_id() if number is None else number, *version)

    def _one(self, name: str, *params: Value) -> tuple[Any, ...] | None:
        return self._db.run(name, params).fetchone()


def commit_puts(db: Database, clock: Clock, batch: Sequence[Submission]) -> list[Outcome | Exception] | None:
    """Commits single puts in one round trip; None if any submission is not a single put."""
    puts = list[PutRow]()
    for submission in batch:
        match submission.operations:
            case [PutRow() as put] if not submission.once:
                puts.append(put)
            case _:
                return None
    moment = clock()
    params = [
        (each.rules_version, moment, put.expected, put.until, put.ttl, put.original_at, put.added_at, put.id,
         put.ns, put.key, put.owner, *put.writer, put.data_key, put.sealed, put.attributes, put.index_text)
        for put, each in zip(puts, batch, strict=True)
    ]  # fmt: skip
    return [_read_put_answer(put, answer) for put, answer in zip(puts, db.put_many(params), strict=True)]


def commit_batch(db: Database, clock: Clock, batch: Sequence[Submission]) -> list[Outcome | Exception]:
    """Commits submissions in one transaction; a refusal affects one, an error of the disk all of them."""
    outcomes = list[Outcome | Exception]()
    with db.write() as connection:
        prefetch = [each for submission in batch for each in submission.operations] if db.is_remote else ()
        transaction = Transaction(connection, clock, prefetch)
        for submission in batch:
            try:
                outcomes.append(transaction.run_submission(submission))
            except (AlcoveError, DataKeyGone, StaleDecision) as refusal:
                outcomes.append(refusal)
    return outcomes


def _read_put_answer(put: PutRow, answer: Sequence[int]) -> Outcome | Exception:
    """Returns the version that the statement `put` made, or why it was refused."""
    match answer:
        case [-1]:
            return StaleDecision()
        case [-2]:
            return DataKeyGone()
        case [-3, actual]:
            return _conflict(put, actual)
    seq, revision, moment, added_at = answer
    return [Row(seq, *_version(put, revision, moment, added_at))]


def _version(put: PutRow, revision: int, moment: int, live_since: int | None) -> tuple[Any, ...]:
    """Returns the fields of a `Row` after its number.

    `live_since`: for an update, since when the key has held something.
    """
    expires_at = moment + put.ttl if put.until is None and put.ttl is not None else put.until
    original_at = _if_past(put.original_at, moment)
    added_at = _if_past(put.added_at, moment)
    if live_since is not None:  # not `if live_since`: 0 is a valid moment
        added_at = live_since if original_at is None else min(live_since, original_at)
    kind: EventKind = "add" if live_since is None else "update"
    return (put.id, put.ns, put.key, kind, revision, moment, expires_at, *put.writer, put.data_key,
            put.sealed, put.attributes, put.index_text, original_at, put.ttl, added_at)  # fmt: skip


def _if_past(timestamp: int | None, now: int) -> int | None:
    """Returns an imported timestamp, or None: future timestamps are ignored."""
    return timestamp if timestamp is not None and timestamp < now else None


def _check_revision(write: PutRow | DeleteRow, live: Live | None) -> None:
    """Raises unless the live revision is the expected one; 0 stands for none."""
    revision = live.revision if live else 0
    if write.expected not in (None, revision):
        raise _conflict(write, revision)


def _conflict(write: PutRow | DeleteRow, actual: int) -> Conflict:
    expectation = f"revision {write.expected}" if write.expected else "no memory"
    state = f"the memory is at revision {actual}" if actual else "there is none"
    return Conflict(
        f"{_describe_key(write.ns, write.key)}: expected {expectation}, but {state}",
        details={"operation": 0, "expected_revision": write.expected, "revision": actual},
    )


def _describe_key(ns: bytes, key: bytes) -> str:
    return f"{Namespace.decode(ns)} {key.decode()!r}"
