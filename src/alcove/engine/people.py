"""What is held of a person, asked of the file: for who looks, and for who erases."""

from __future__ import annotations

import json

import apsw

from alcove.engine import statements
from alcove.engine.operating import HeldRow, Person

SQL = statements.load("people.sql", theirs=statements.load("people.sql")["theirs"])


def bound(person: Person, **more: apsw.SQLiteValue) -> dict[str, apsw.SQLiteValue]:
    """The parameters of the statements in `people.sql`."""
    older = json.dumps([(low.hex(), high.hex()) for low, high in person.older])
    return {"user": person.user, "pseudonym": person.pseudonym, "older": older,
            "authorless": person.authorless, **more}  # fmt: skip


def held(db: apsw.Connection, person: Person, now: int) -> list[HeldRow]:
    """What there is of a person in each room."""
    return [HeldRow._make(row) for row in db.execute(SQL["held"], bound(person, now=now))]
