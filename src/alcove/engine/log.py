"""Appending to the log inside one transaction: what each operation does to one key."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw

from alcove.clock import DAY
from alcove.engine import statements
from alcove.engine.base import (
    DataKeyGone,
    DeleteRow,
    GetRow,
    PutRow,
    Replay,
    Replayed,
    Row,
    RowOperation,
    TouchRow,
    Writer,
)
from alcove.errors import Conflict, NotFound
from alcove.namespace import Namespace
from alcove.records import Kind

SQL = statements.load("queries.sql", columns=", ".join(Row._fields))
NOBODY = Writer(None, None, None)


class Live(NamedTuple):
    """The live version of a key, as far as ending it needs to know it."""

    seq: int
    ns: bytes
    key: bytes
    revision: int
    owner: str | None
    attributes: str


class Transaction:
    """The operations of one submission, all at one moment; it reads its own writes."""

    def __init__(self, db: apsw.Connection, at: int) -> None:
        self._db = db
        self._at = at

    def run(self, operations: Sequence[RowOperation], replay: Replay | None) -> list[Row | None] | Replayed:
        """Does every operation in order, or raises and leaves it to the caller to undo them."""
        if replay and (found := self._one("replay", replay.user, replay.token, self._at - DAY)):
            return Replayed._make(found)
        rows = []
        for position, operation in enumerate(operations):
            try:
                rows.append(self._do(operation))
            except (Conflict, NotFound) as error:
                error.details["operation"] = position
                raise
        if replay:
            self._require_data_key(replay.data_key)
            answer = (replay.user, replay.token, self._at, replay.data_key, replay.seal(rows))
            self._db.execute(SQL["add_replay"], answer)
        return rows

    def end(self, live: Live, kind: Kind, writer: Writer = NOBODY) -> Row:
        """Ends a live version with a tombstone, which keeps the attributes for the policy's filters."""
        self._db.execute(SQL["end"], (self._at, live.seq))
        tombstone = Row(0, uuid.uuid4().bytes, live.ns, live.key, kind, live.revision + 1, self._at, None,
                        *writer, None, None, live.attributes, None)  # fmt: skip
        return self._append(tombstone, live.owner, ended_at=self._at)

    def _do(self, operation: RowOperation) -> Row | None:
        match operation:
            case PutRow():
                return self._put(operation)
            case GetRow(ns, key):
                found = self._one("get", ns, key, self._at)
                return Row._make(found) if found else None
            case DeleteRow():
                return self._delete(operation)
            case TouchRow():
                return self._touch(operation)

    def _put(self, put: PutRow) -> Row:
        self._require_data_key(put.data_key)
        live, revision = self._newest(put.ns, put.key)
        _expect(put.expected, live, put.ns, put.key)
        if live:
            self._db.execute(SQL["end"], (self._at, live.seq))
        elif revision == 0:
            self._db.execute(SQL["know_namespace"], (put.ns, put.owner))
        expires_at = None if put.ttl is None else self._at + put.ttl
        row = Row(0, put.id, put.ns, put.key, "update" if live else "add", revision + 1, self._at, expires_at,
                  *put.writer, put.data_key, put.sealed, put.attributes, put.index_text)  # fmt: skip
        return self._append(row, put.owner, ended_at=None)

    def _delete(self, delete: DeleteRow) -> Row | None:
        live, _ = self._newest(delete.ns, delete.key)
        _expect(delete.expected, live, delete.ns, delete.key)
        return self.end(live, "delete", delete.writer) if live else None

    def _touch(self, touch: TouchRow) -> Row:
        live, _ = self._newest(touch.ns, touch.key)
        if not live:
            raise NotFound(f"{_place(touch.ns, touch.key)} is not there")
        expires_at = None if touch.ttl is None else self._at + touch.ttl
        self._db.execute(SQL["set_expiry"], (expires_at, live.seq))
        return Row._make(self._one("get", touch.ns, touch.key, self._at) or ())

    def _newest(self, ns: bytes, key: bytes) -> tuple[Live | None, int]:
        """A key's live version, if any, and its last revision; an expiry that is due is recorded first."""
        found = self._one("newest", ns, key)
        if not found:
            return None, 0
        *fields, ended_at, expires_at = found
        newest = Live._make(fields)
        if ended_at is not None:
            return None, newest.revision
        if expires_at is not None and expires_at <= self._at:
            return None, self.end(newest, "expired").revision
        return newest, newest.revision

    def _append(self, row: Row, owner: str | None, *, ended_at: int | None) -> Row:
        _, id, ns, key, kind, revision, created_at, expires_at, *rest = row
        values = (id, ns, key, kind, revision, created_at, ended_at, expires_at, owner, *rest)
        self._db.execute(SQL["append"], values)
        return row._replace(seq=self._db.last_insert_rowid())

    def _require_data_key(self, id: int) -> None:
        if not self._one("data_key_exists", id):
            raise DataKeyGone

    def _one(self, name: str, *params: apsw.SQLiteValue) -> tuple[Any, ...] | None:
        return self._db.execute(SQL[name], params).fetchone()


def _expect(expected: int | None, live: Live | None, ns: bytes, key: bytes) -> None:
    actual = live.revision if live else 0
    if expected is None or expected == actual:
        return
    wanted = f"at revision {expected}" if expected else "absent"
    found = f"at revision {actual}" if actual else "absent"
    raise Conflict(
        f"{_place(ns, key)}: expected it {wanted}, but it is {found}",
        details={"expected_revision": expected, "revision": actual},
    )


def _place(ns: bytes, key: bytes) -> str:
    return f"{Namespace.decode(ns)} {key.decode()!r}"
