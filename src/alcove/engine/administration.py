"""What operating a store asks of its file: the audit log, stored documents, what is held of whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from alcove.clock import Clock
from alcove.engine import statements
from alcove.engine.base import AuditRow, Document, HeldRow, RootStats, Row
from alcove.engine.database import Database
from alcove.engine.log import COLUMNS, Live, Transaction
from alcove.engine.log import SQL as LOG

SQL = statements.load("administration.sql", columns=COLUMNS)


class Administration:
    """`base.Administration` over one SQLite file."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    # The audit log

    def add_audit(self, entries: Sequence[AuditRow]) -> None:
        with self._db.write() as db:
            db.executemany(SQL["add_audit"], [entry[1:] for entry in entries])

    def audit(
        self, *, before: int, action: str | None, actor: str | None, subject: str | None, limit: int
    ) -> list[AuditRow]:
        return [AuditRow._make(row) for row in self._all("audit", before, action, actor, subject, limit)]

    def purge_audit(self, *, before: int) -> int:
        with self._db.write() as db:
            db.execute(SQL["purge_audit"], (before,))
            return db.changes()

    # Documents

    def version(self) -> int:
        with self._db.read() as db:
            ((value,),) = db.execute(LOG["mark"], ("documents",))
            return int(value)

    def document(self, kind: str) -> Document | None:
        found = self._all("document", kind)
        return Document._make(found[0]) if found else None

    def add_document(self, kind: str, actor: str, body: str) -> int:
        with self._db.write() as db:
            db.execute(SQL["add_document"], (kind, self._clock(), actor, body))
            version = db.last_insert_rowid()
            db.execute(LOG["set_mark"], (version, "documents"))
            return version

    # What is held

    def held(self, user: str) -> tuple[list[HeldRow], int]:
        with self._db.read() as db:
            rows = [HeldRow._make(row) for row in db.execute(SQL["held"], (user, self._clock()))]
            ((elsewhere,),) = db.execute(SQL["authored_elsewhere"], (user,))
            return rows, elsewhere

    def of_user(self, user: str, *, position: int, limit: int) -> list[Row]:
        return [Row._make(row) for row in self._all("of_user", user, position, self._clock(), limit)]

    def remove(self, seq: int) -> bool:
        """Ends a live version and takes away all that its key ever held; the bytes go with the next scrub."""
        with self._db.write() as db:
            found = db.execute(LOG["still_live"], (seq,)).fetchone()
            if not found:
                return False
            live = Live._make(found)
            Transaction.now(db, self._clock).end(live, "delete")
            db.execute(SQL["remove_content"], (live.ns, live.key))
            ((wipes,),) = db.execute(LOG["mark"], ("wipes",))
            db.execute(LOG["set_mark"], (wipes + 1, "wipes"))
            return True

    def stats(self) -> list[RootStats]:
        return [RootStats._make(row) for row in self._all("stats", self._clock())]

    def keys_by_wrapper(self) -> list[tuple[str, int]]:
        return self._all("keys_by_wrapper")

    def _all(self, name: str, *params: apsw.SQLiteValue) -> list[tuple[Any, ...]]:
        with self._db.read() as db:
            return db.execute(SQL[name], params).fetchall()
