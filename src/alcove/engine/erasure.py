"""Erases users, keys and namespaces, and the last bytes of deleted data; finds a person's data."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from alcove.core.clock import Clock
from alcove.core.namespace import Namespace
from alcove.core.records import Residue
from alcove.engine.database import Connection, Database
from alcove.engine.rows import MAX_INT64, Person, PersonalDataRow, WipeResult
from alcove.engine.statements import Value
from alcove.engine.transaction import Live, Transaction
from alcove.engine.vector_index import VectorIndex

LONG_SCRUB_SECONDS, PAUSE_FACTOR = 5.0, 10
"""After a scrub that takes longer, this process starts no other one for this many times as long."""
_TURNS = Namespace(("turns",)).encode()
"""The common prefix of rooms with conversations, whose messages a wipe counts separately."""


class PersonalData:
    """Finds the rooms and versions of a person."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def rooms(self, person: Person) -> list[PersonalDataRow]:
        """Returns what the store holds about a person, room by room."""
        with self._db.read() as db:
            return _rooms_of(db, person, self._clock())

    def versions(
        self, person: Person, *, live: bool, after: int = 0, id: bytes | None = None
    ) -> list[tuple[int, bool]]:
        """Returns the versions of a person, in the order of the log, and whether each is live."""
        params = _person_parameters(person, now=self._clock(), live=live, after=after, id=id)
        with self._db.read() as db:
            return [(seq, bool(is_live)) for seq, is_live in db.run("versions_of_person", params)]


class Erasure:
    """Erases data and scrubs its bytes.

    `until` is a position in the log, so that a restored backup keeps what was written after a wipe.
    """

    def __init__(self, db: Database, clock: Clock, vector_index: VectorIndex | None) -> None:
        self._db = db
        self._clock = clock
        self._vector_index = vector_index
        self._scrub_lock = threading.Lock()
        self._paused_until = 0.0

    def wipe(
        self,
        person: Person,
        *,
        shared: str,
        note: Callable[[WipeResult], None] | None,
        until: int = MAX_INT64,
    ) -> WipeResult:
        """Erases a person.

        It calls `note` before anything is committed, unless the person is unknown; if `note` raises, nothing
        is erased. Without `note` it is a dry run: the result says what would be erased.
        """
        user = person.user
        with self._db.write(roll_back=note is None) as db:
            position, wipe = db.run("log_position").get, _Wipe(db, self._clock, person, until)
            owned: list[tuple[Any, ...]] = db.run("owned_namespaces", (user,)).fetchall()
            wipe.empty_rooms(ns for (ns,) in owned)
            unowned = {*wipe.empty_rooms(person.rooms), *wipe.empty_older_rooms()}
            shared_count = wipe.remove_authored(shared)
            wipe.removed["replays"] = db.update("wipe_stored_answers", user, until)
            wipe.removed["api_keys"] = db.update("wipe_api_keys", user, until)
            renamed = db.update("anonymise_audit", user, person.pseudonym)
            renamed += db.update("anonymise_documents", user)
            keys = db.update("wipe_data_key", person.subject, user)
            remaining = [room for room in _rooms_of(db, person, wipe.now) if not room.own]
            is_known = any((*wipe.removed.values(), keys, shared_count, renamed, remaining))
            result = WipeResult(
                wipe.removed, keys > 0, shared_count, _next_generation(db) if is_known else db.mark("wipes"),
                is_known, wipe.transaction.moment, position, sorted(unowned), remaining,
            )  # fmt: skip
            db.run("skip_numbers", (0, 1))  # so that an API key made after it has a higher position
            if is_known and note:
                note(result)
            return result

    def erase_key(
        self, ns: bytes, key: bytes, *, until: int, attributes: str, note: Callable[[int], None]
    ) -> int:
        """Removes all versions of a key, live or not; returns how many.

        Tombstones stay, with these attributes. If anything is removed, it calls `note` with the moment before
        the commit.
        """
        with self._db.write() as db:
            transaction = Transaction(db, self._clock)
            if live := db.run("live_version_until", (ns, key, until)).fetchone():
                transaction.end(Live._make((*live, attributes)), "delete")
            removed = db.update("remove_content", ns, key, until)
            db.run("set_tombstone_attributes", (ns, key, until, attributes))
            if removed:
                _next_generation(db)
                note(transaction.moment)
            return removed

    def clear_namespace(self, ns: bytes) -> int:
        """Removes everything from one namespace, including history: revisions start again at 1."""
        with self._db.write() as db:
            removed = db.update("wipe_namespace", ns, MAX_INT64)
            db.run("remove_empty_namespace", (ns,))
            db.run("count_clear")
            return removed

    def scrub(self, generation: int | None = None, note: Callable[[int], None] = lambda _: None) -> bool:
        """Rebuilds the file, unless a scrub since that wipe has done so; waiting scrubs share one.

        After a long scrub there is a pause, in which wipes accumulate for the next one: frequent small wipes
        must not block other users. `note` gets the count of wipes, if this process rebuilt the file.
        """
        with self._scrub_lock:
            newest, scrubbed = self.generation(), self.scrubbed_generation()
            if self._is_scrubbed(newest if generation is None else generation):
                return True
            if time.monotonic() < self._paused_until:
                return False
            if self._vector_index and not self._vector_index.remove_ended():
                return False
            started = time.monotonic()
            is_rebuilt = self._db.rebuild(lambda: self._is_scrubbed(newest))
            if (seconds := time.monotonic() - started) > LONG_SCRUB_SECONDS:
                self._paused_until = time.monotonic() + PAUSE_FACTOR * seconds
            if is_rebuilt and self._db.update("set_mark", newest, "scrubbed"):
                note(newest - scrubbed)
            return is_rebuilt

    def _is_scrubbed(self, generation: int) -> bool:
        return self.scrubbed_generation() >= generation

    def residues(self) -> list[Residue]:
        """Returns where bytes of erased data remain for a while, because no scrub reaches them."""
        return self._db.residues()

    def scrubbed_generation(self) -> int:
        """Returns the number of the last wipe whose bytes are gone from the file."""
        return self._db.mark("scrubbed")

    def generation(self) -> int:
        """Returns the number of the last wipe or erasure."""
        return self._db.mark("wipes")

    def count(self) -> int:
        """Returns how often something was erased or a namespace was cleared."""
        return int(self._column("erasures")[0])

    def users(self) -> Iterator[str]:
        """Yields every user about whom the store holds any data."""
        subjects = self._column("subjects")
        yield from {*self._column("users"), *(each[5:] for each in subjects if each.startswith("user:"))}

    def pseudonyms(self) -> list[str]:
        """Returns the pseudonyms of authors whose name a wipe removed."""
        return self._column("pseudonyms")

    def unowned_namespaces(self) -> list[bytes]:
        return self._column("unowned_namespaces")

    def position_at(self, moment: int) -> int:
        """Returns the last sequence number at a moment."""
        return next(iter(self._column("position_at", moment)), 0)

    def skip_numbers(self, beyond: int, count: int) -> None:
        """Skips sequence numbers that this store may have used before it was restored from a backup."""
        self._db.update("skip_numbers", beyond, count)

    def _column(self, name: str, *params: Value) -> list[Any]:
        return [value for (value,) in self._db.fetch(name, *params)]


class _Wipe:
    """One wipe inside its transaction, and what it has removed so far."""

    def __init__(self, db: Connection, clock: Clock, person: Person, until: int) -> None:
        self._db = db
        self._person = person
        self._until = until
        self.now = clock()
        self.transaction = Transaction(db, clock)
        self.removed = dict.fromkeys(("memories", "turns", "versions", "vectors", "replays", "api_keys"), 0)

    def empty_rooms(self, rooms: Iterable[bytes]) -> list[bytes]:
        """Empties whole rooms; returns those that held anything."""
        emptied = []
        for ns in rooms:
            ((live,),) = self._db.run("count_live", (ns, self.now, self._until))
            ((vectors,),) = self._db.run("count_vectors", (ns,))
            if self._remove(live, vectors, "wipe_namespace", ns):
                emptied.append(ns)
                if ns.startswith(_TURNS) and len(Namespace.decode(ns)) == 5:
                    self.removed["turns"] += live
        return emptied

    def empty_older_rooms(self) -> list[bytes]:
        """Removes keys in older rooms that only they wrote, with history; returns the rooms they wrote to."""
        rooms = []
        for ns, key, live, vectors, is_only_author in self._select("keys_in_older_rooms"):
            rooms.append(ns)
            if is_only_author:
                self._remove(live, vectors, "wipe_key", ns, key)
        return rooms

    def remove_authored(self, shared: str) -> int:
        """Anonymises or removes what they wrote into rooms of others; returns how many versions.

        A tombstone only loses its author: it has no content, and revisions are counted by it. What they wrote
        to keys of older rooms that others wrote to as well is removed here.
        """
        shared_count = 0
        for *fields, is_live, has_content, has_author, own in self._select("authored"):
            live, remove = Live._make(fields), own or shared == "remove"
            if remove and has_content:
                if is_live:
                    self.transaction.end(live, "delete")  # revisions go on, and readers see a delete
                self._db.run("remove_version", (live.seq,))
                self._db.run("clear_tombstone", (live.ns, live.key, live.revision + 1))
            elif has_author and (own or shared != "keep"):
                self._db.run("anonymise", (self._person.pseudonym, live.seq))
            else:
                continue
            if own:
                self.removed["memories"] += is_live
                self.removed["versions"] += has_content
            else:
                shared_count += 1
        return shared_count

    def _remove(self, live: int, vectors: int, statement: str, ns: bytes, *key: bytes) -> int:
        versions = self._db.update(statement, ns, *key, self._until)
        self._db.run("remove_empty_namespace", (ns,))
        for name, count in (("memories", live), ("versions", versions), ("vectors", vectors)):
            self.removed[name] += count
        return versions

    def _select(self, name: str) -> list[tuple[Any, ...]]:
        return self._db.run(
            name, _person_parameters(self._person, now=self.now, until=self._until)
        ).fetchall()


def _next_generation(db: Connection) -> int:
    """Counts a wipe whose bytes are not scrubbed yet; returns its number."""
    generation = db.mark("wipes") + 1
    db.run("set_mark", (generation, "wipes"))
    return generation


def _rooms_of(db: Connection, person: Person, now: int) -> list[PersonalDataRow]:
    return [
        PersonalDataRow._make(row) for row in db.run("rooms_of_person", _person_parameters(person, now=now))
    ]


def _person_parameters(person: Person, **more: Value) -> dict[str, Value]:
    """Returns the parameters of the statements about a person."""
    older = json.dumps([(low.hex(), high.hex()) for low, high in person.older])
    return {"user": person.user, "pseudonym": person.pseudonym, "older": older,
            "authorless": person.authorless, **more}  # fmt: skip
