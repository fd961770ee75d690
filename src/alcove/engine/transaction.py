"""Appending to the log inside one transaction: what each operation does to one key."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from alcove.core.clock import DAY, Clock
from alcove.core.cursor import MAX_PAGE_BYTES
from alcove.core.errors import AlcoveError, Conflict, NotFound, PayloadTooLarge
from alcove.core.namespace import Namespace
from alcove.core.records import EventKind
from alcove.engine.database import Connection, Found
from alcove.engine.rows.operations import (
    DataKeyGone,
    DeleteRow,
    EvictRow,
    GetRow,
    IdempotentRequest,
    Outcome,
    PutRow,
    RowOperation,
    StaleDecision,
    StoredAnswer,
    TouchRow,
)
from alcove.engine.rows.versions import Row, Writer
from alcove.engine.statements import Value

NOBODY = Writer(None, None, None)


def new_id() -> bytes:
    """A random UUID (version 4): a name and no secret, so the quick generator will do."""
    bits = random.getrandbits(128) & ~(0xF << 76 | 0x3 << 62) | (0x4 << 76 | 0x2 << 62)
    return bits.to_bytes(16, "big")


class Live(NamedTuple):
    """The live version of a key, as far as ending it needs to know it."""

    seq: int
    ns: bytes
    key: bytes
    revision: int
    owner: str | None
    attributes: str


class Newest(NamedTuple):
    """What is at a key when a write comes to it."""

    live: Live | None
    lapsed: Live | None
    """Live by the log, but past its expiry: whoever writes the key records that first."""
    revision: int
    added_at: int | None
    """When the first of the versions up to it was written that had none before it."""
    namespace_known: bool
    data_key_exists: bool


class Transaction:
    """The operations of submissions, all those of one at one moment; it reads its own writes.

    Every statement costs a hand-over between threads, so a put gets by with two or three. One
    operation checks everything before it writes, so only several of them need a savepoint.
    """

    __slots__ = ("_ahead", "_db", "_numbers", "at", "documents")

    def __init__(self, db: Connection, clock: Clock, ahead: Iterable[RowOperation] = ()) -> None:
        """At the clock's time, but always later than what is written already.

        `ahead`: operations to come, where every answer is a journey to a server. What they need to know of
        their keys, and numbers for their versions, is asked for before the first answer is waited for.
        """
        self._db = db
        self._ahead: dict[tuple[bytes, bytes], tuple[int | None, Found]] = {}
        self._numbers: Iterator[int] = iter(())
        if writes := [each for each in ahead if not isinstance(each, GetRow)]:
            begun = db.run("begin_ahead", (len(writes),))
            for each in writes:
                if not isinstance(each, EvictRow) and (each.ns, each.key) not in self._ahead:
                    data_key = each.data_key if isinstance(each, PutRow) else None
                    asked = db.run("newest", (each.ns, each.key, data_key))
                    self._ahead[each.ns, each.key] = data_key, asked
            self.documents, last, number = begun.get
            self._numbers = iter(range(number - len(writes) + 1, number + 1))
        else:
            self.documents, last = db.run("begin").get
        self.at = clock() if last is None else max(clock(), last + 1)

    def run(self, operations: Sequence[RowOperation], once: IdempotentRequest | None) -> Outcome:
        """Does every operation in order, or raises and has done none of them."""
        if len(operations) == 1 and not once:
            return [self._do(operations[0], 0)]
        self._db.run("begin_one")
        try:
            outcome = self._run(operations, once)
        except (AlcoveError, DataKeyGone):
            self._db.run("undo_one")
            self._db.run("end_one")
            raise
        self._db.run("end_one")
        return outcome

    def _run(self, operations: Sequence[RowOperation], once: IdempotentRequest | None) -> Outcome:
        if once and (found := self._one("kept_answer", once.user, once.token, self.at - DAY)):
            return StoredAnswer._make(found)
        done = self._rows(operations)
        if once:
            if not self._one("data_key_exists", once.data_key):
                raise DataKeyGone
            answer = (once.user, once.token, self.at, once.data_key, once.seal(done))
            self._db.run("keep_answer", answer)
        return done

    def _rows(self, operations: Sequence[RowOperation]) -> list[Row | None]:
        """A row for each operation; what is got may be too much, and then only if gets alone are left out."""
        done: list[Row | None] = []
        held = 0
        for position, operation in enumerate(operations):
            row = self._do(operation, position)
            if row and isinstance(operation, GetRow):
                held += row.size
                if held > max(MAX_PAGE_BYTES, row.size):
                    if all(isinstance(each, GetRow) for each in operations[position:]):
                        return done
                    error = PayloadTooLarge(
                        "operations", f"gets of {MAX_PAGE_BYTES} bytes at most before a write"
                    )
                    error.details["operation"] = position
                    raise error
            done.append(row)
        return done

    def end(self, live: Live, kind: EventKind, writer: Writer = NOBODY) -> Row:
        """Ends a live version with a tombstone, which keeps the attributes for the policy's filters."""
        self._db.run("end", (self.at, live.seq))
        tombstone = (new_id(), live.ns, live.key, kind, live.revision + 1, self.at, None,
                     *writer, None, None, live.attributes, None, None, None, None)  # fmt: skip
        return self._append(tombstone, live.owner, ended_at=self.at)

    def _do(self, operation: RowOperation, position: int) -> Row | None:
        try:
            match operation:
                case PutRow():
                    return self._put(operation)
                case GetRow(ns, key):
                    found = self._one("get", ns, key, self.at)
                    return Row._make(found) if found else None
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
        newest = self._newest(put.ns, put.key, put.data_key)
        if put.expected is not None:
            _expect(put.expected, newest.live.revision if newest.live else 0, put)
        if not newest.data_key_exists:
            raise DataKeyGone
        revision = self.end(newest.lapsed, "expired").revision if newest.lapsed else newest.revision
        if newest.live:
            self._db.run("end", (self.at, newest.live.seq))
        elif not newest.namespace_known:
            self._db.run("know_namespace", (put.ns, put.owner))
        version = _version(put, revision + 1, self.at, newest.added_at if newest.live else None)
        return self._append(version, put.owner, ended_at=None)

    def _delete(self, delete: DeleteRow) -> Row | None:
        newest = self._newest(delete.ns, delete.key)
        if delete.expected is not None:
            _expect(delete.expected, newest.live.revision if newest.live else 0, delete)
        if newest.lapsed:
            self.end(newest.lapsed, "expired")
        return self.end(newest.live, "delete", delete.writer) if newest.live else None

    def _touch(self, touch: TouchRow) -> Row | None:
        live = self._newest(touch.ns, touch.key).live
        if not live and touch.refresh:
            return None
        if not live:
            raise NotFound(f"{_place(touch.ns, touch.key)} is not there")
        if touch.refresh:
            self._db.run("refresh", (self.at, live.seq))
        else:
            expires_at = None if touch.ttl is None else self.at + touch.ttl
            self._db.run("set_expiry", (expires_at, touch.ttl, live.seq))
        row = self._do(GetRow(touch.ns, touch.key), 0)
        return row and row._replace(sealed=None, index_text=None)

    def _evict(self, evict: EvictRow) -> Row | None:
        """The memory that made room, as it was; None where there was room, or where the key is not new."""
        count, oldest, known = self._one("crowd", evict.ns, evict.key) or (0, 0, 0)
        found = None if count < evict.max_keys or known else self._one("still_live", oldest)
        if not found:
            return None
        live = Live._make(found)
        row = self._do(GetRow(live.ns, live.key), 0)
        self._ahead.pop((live.ns, live.key), None)
        self.end(live, "delete", evict.writer)
        return row

    def _newest(self, ns: bytes, key: bytes, data_key: int | None = None) -> Newest:
        asked = self._ahead.pop((ns, key), None)  # once: from now on it is what this operation makes it
        if asked and asked[0] == data_key:
            found: tuple[Any, ...] = asked[1].get
        else:
            found = self._db.run("newest", (ns, key, data_key)).get
        namespace_known, data_key_exists = found[-2:]
        if found[0] is None:
            return Newest(None, None, 0, None, namespace_known, data_key_exists)
        last = Live._make(found[:6])
        added_at, ended_at, expires_at = found[6:9]
        live = lapsed = None
        if ended_at is None and (expires_at is None or expires_at > self.at):
            live = last
        elif ended_at is None:
            lapsed = last
        return Newest(live, lapsed, last.revision, added_at, namespace_known, data_key_exists)

    def _append(self, version: tuple[Any, ...], owner: str | None, *, ended_at: int | None) -> Row:
        """Appends a version, which has the fields of a `Row` after its number."""
        number = next(self._numbers, None)
        self._db.run("append", (number, *version, owner, ended_at))
        return Row(self._db.added() if number is None else number, *version)

    def _one(self, name: str, *params: Value) -> tuple[Any, ...] | None:
        return self._db.run(name, params).fetchone()


def put_parameters(put: PutRow, at: int, decided_by: int | None) -> tuple[Value, ...]:
    """Returns the parameters of the statement `put`, for `Database.put_each`."""
    return (decided_by, at, put.expected, put.until, put.ttl, put.original_at, put.added_at,
            put.id, put.ns, put.key, put.owner, *put.writer, put.data_key, put.sealed, put.attributes,
            put.index_text)  # fmt: skip


def read_put_answer(put: PutRow, answer: list[int]) -> Row:
    """Returns the version that the statement `put` made, or raises why it was refused."""
    match answer:
        case [-1]:
            raise StaleDecision
        case [-2]:
            raise DataKeyGone
        case [-3, actual]:
            assert put.expected is not None
            _expect(put.expected, actual, put)
    seq, revision, at, since = answer
    return Row(seq, *_version(put, revision, at, since))


def _version(put: PutRow, revision: int, at: int, since: int | None) -> tuple[Any, ...]:
    """The fields of a `Row` after its number; `since` when there has been something, for an update."""
    expires_at = at + put.ttl if put.until is None and put.ttl is not None else put.until
    original_at = _past(put.original_at, at)
    added_at = _past(put.added_at, at)
    if since is not None:  # 0 is a moment, too: the first of 1970
        added_at = since if original_at is None else min(since, original_at)
    kind: EventKind = "add" if since is None else "update"
    return (put.id, put.ns, put.key, kind, revision, at, expires_at, *put.writer, put.data_key, put.sealed,
            put.attributes, put.index_text, original_at, put.ttl, added_at)  # fmt: skip


def _past(moment: int | None, at: int) -> int | None:
    """A moment that is told of something brought from elsewhere; one to come is not believed."""
    return moment if moment is not None and moment < at else None


def _expect(expected: int, actual: int, at: PutRow | DeleteRow) -> None:
    """`actual`: the revision that is there, or 0."""
    if expected == actual:
        return
    wanted = f"at revision {expected}" if expected else "absent"
    found = f"at revision {actual}" if actual else "absent"
    raise Conflict(
        f"{_place(at.ns, at.key)}: expected it {wanted}, but it is {found}",
        details={"operation": 0, "expected_revision": expected, "revision": actual},
    )


def _place(ns: bytes, key: bytes) -> str:
    return f"{Namespace.decode(ns)} {key.decode()!r}"
