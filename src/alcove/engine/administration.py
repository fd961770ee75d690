"""What operating a store asks of its file: the audit log, stored documents, what is held of whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from alcove.core.clock import Clock
from alcove.engine import people, statements
from alcove.engine.database import Database
from alcove.engine.log import SQL as LOG
from alcove.engine.operating import AuditRow, Document, HeldRow, Person, RootStats

SQL = statements.load("administration.sql")


class Administration:
    """`operating.Administration` over one SQLite file."""

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

    def held(self, person: Person) -> list[HeldRow]:
        with self._db.read() as db:
            return people.held(db, person, self._clock())

    def of_person(
        self, person: Person, *, live: bool, after: int = 0, id: bytes | None = None
    ) -> list[tuple[int, bool]]:
        bound = people.bound(person, now=self._clock(), live=live, after=after, id=id)
        with self._db.read() as db:
            return [(seq, bool(current)) for seq, current in db.execute(people.SQL["of_person"], bound)]

    def private_rooms(self) -> list[str]:
        return [template for (template,) in self._all("private_rooms")]

    def add_private_rooms(self, templates: Sequence[str]) -> None:
        with self._db.write() as db:
            db.executemany(SQL["add_private_room"], [(template,) for template in templates])

    def stats(self) -> list[RootStats]:
        return [RootStats._make(row) for row in self._all("stats", self._clock())]

    def keys_by_wrapper(self) -> list[tuple[str, int]]:
        return self._all("keys_by_wrapper")

    def _all(self, name: str, *params: apsw.SQLiteValue) -> list[tuple[Any, ...]]:
        with self._db.read() as db:
            return db.execute(SQL[name], params).fetchall()
