"""What a store holds about a person."""

from __future__ import annotations

import json

from alcove.core.clock import Clock
from alcove.engine.database import Connection, Database
from alcove.engine.rows import Person, PersonalDataRow
from alcove.engine.statements import Value


class PersonalData:
    """Finds the rooms and versions of a person."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def rooms(self, person: Person) -> list[PersonalDataRow]:
        """Returns what there is about a person, room by room."""
        with self._db.read() as db:
            return rooms_of(db, person, self._clock())

    def versions(
        self, person: Person, *, live: bool, after: int = 0, id: bytes | None = None
    ) -> list[tuple[int, bool]]:
        """Returns the versions of a person, in the order of the log, and whether each is live."""
        params = person_parameters(person, now=self._clock(), live=live, after=after, id=id)
        with self._db.read() as db:
            return [(seq, bool(is_live)) for seq, is_live in db.run("versions_of_person", params)]


def rooms_of(db: Connection, person: Person, now: int) -> list[PersonalDataRow]:
    return [
        PersonalDataRow._make(row) for row in db.run("rooms_of_person", person_parameters(person, now=now))
    ]


def person_parameters(person: Person, **more: Value) -> dict[str, Value]:
    """Returns the parameters of the statements about a person."""
    older = json.dumps([(low.hex(), high.hex()) for low, high in person.older])
    return {"user": person.user, "pseudonym": person.pseudonym, "older": older,
            "authorless": person.authorless, **more}  # fmt: skip
