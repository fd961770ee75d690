"""Operating a SQLite file: the audit log, documents, API keys, what is held of a person, and erasing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from alcove.core.admin_records import ApiKey, RootSize
from alcove.core.clock import Clock, parse_moment, to_datetime
from alcove.core.namespace import Namespace
from alcove.core.records import Residue
from alcove.engine.database import Connection, Database
from alcove.engine.rows.people import Person, PersonalDataRow, WipeResult
from alcove.engine.rows.versions import MAX_INT64, AuditRow
from alcove.engine.statements import Value
from alcove.engine.transaction import Live, Transaction
from alcove.engine.vector_index import VectorIndex

LONG_SECONDS, RESTS = 5.0, 10
"""A scrub that takes longer is followed by a rest of so many times as long, in this process."""
TURNS = Namespace(("turns",)).encode()
"""With what the rooms of conversations begin, whose messages a wipe also counts by themselves."""


class Administration:
    """What a store holds beside memories, and what it holds of whom."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self.version: Callable[[], int] = partial(db.mark, "documents")
        """The version of the newest document; asked before every decision, so it must be quick."""

    def is_half_a_copy(self) -> bool:
        """Whether a copy into it has begun and not ended: `upkeep/migration.py`."""
        ((_, copied_as),) = self._db.fetch("copy_marks")
        return bool(copied_as == 0)

    # The audit log

    def add_audit(self, entries: Sequence[AuditRow]) -> None:
        with self._db.write() as db:
            db.run_each("add_audit", [entry[1:] for entry in entries])

    def add_audit_entry(self, entry: AuditRow) -> int:
        """Adds one entry; returns its number, by which `update_audit` finds it."""
        with self._db.write() as db:
            db.run("add_audit", entry[1:])
            return db.added()

    def update_audit(self, details: Sequence[tuple[str, int]]) -> None:
        """Replaces the details of entries: for each, the new details and the entry's number."""
        with self._db.write() as db:
            db.run_each("update_audit", details)

    def audit(
        self, *, before: int, action: str | None, actor: str | None, subject: str | None, limit: int
    ) -> list[AuditRow]:
        return [*map(AuditRow._make, self._db.fetch("audit", before, action, actor, subject, limit))]

    def audit_before(self, before: int, action: str) -> list[AuditRow]:
        """The entries of one action that are older than a moment."""
        return [*map(AuditRow._make, self._db.fetch("audit_before", before, action))]

    def purge_audit(self, *, before: int, but: Sequence[int] = ()) -> int:
        """Removes entries that are older than a moment; `but`: the numbers of those that stay."""
        return self._db.change("purge_audit", before, json.dumps([*but]))

    # Documents

    def document(self, kind: str) -> tuple[int, str] | None:
        """The version and the JSON of what was put last."""
        return next(iter(self._db.fetch("document", kind)), None)

    def add_document(self, kind: str, actor: str, body: str, entries: Sequence[AuditRow] = ()) -> int:
        """Puts a document in force; `entries`: what the audit log says of it, in the same transaction."""
        with self._db.write() as db:
            db.run("add_document", (kind, self._clock(), actor, body))
            version = db.added()
            db.run_each("add_audit", [entry[1:] for entry in entries])
            db.run("set_mark", (version, "documents"))
            return version

    # API keys

    def add_api_key(self, key: ApiKey, digest: bytes) -> None:
        at = parse_moment(key.created_at, "created_at")
        self._db.change(
            "add_api_key", key.id, key.client, key.user, " ".join(key.roles), key.trusted, digest, at
        )

    def api_key(self, id: str) -> tuple[ApiKey, bytes] | None:
        found = self._db.fetch("api_key", id)
        return (_api_key(*found[0]), found[0][-1]) if found else None

    def api_keys(self) -> list[ApiKey]:
        return [_api_key(*row) for row in self._db.fetch("api_keys")]

    def remove_api_key(self, id: str) -> bool:
        return self._db.change("remove_api_key", id) > 0

    # What is held

    def held(self, person: Person) -> list[PersonalDataRow]:
        """What there is of a person, room by room."""
        with self._db.read() as db:
            return _held(db, person, self._clock())

    def of_person(
        self, person: Person, *, live: bool, after: int = 0, id: bytes | None = None
    ) -> list[tuple[int, bool]]:
        """The versions of a person, in the order of the log, and whether each is what its key holds now."""
        bound = _bound(person, now=self._clock(), live=live, after=after, id=id)
        with self._db.read() as db:
            return [(seq, bool(current)) for seq, current in db.run("of_person", bound)]

    def private_rooms(self) -> list[str]:
        """Templates of private rooms, in the words of who added them."""
        return [template for (template,) in self._db.fetch("private_rooms")]

    def add_private_rooms(self, templates: Sequence[str]) -> None:
        with self._db.write() as db:
            db.run_each("add_private_room", [(template,) for template in templates])

    def stats(self) -> list[RootSize]:
        found = self._db.fetch("stats", self._clock())
        return [RootSize(Namespace.decode(ns)[0], *figures) for ns, *figures in found]

    def keys_by_wrapper(self) -> list[tuple[str, int]]:
        return self._db.fetch("keys_by_wrapper")


class Erasure:
    """What must be gone: a whole user, one key, one namespace, and their last bytes.

    `until` is a position, so that a restored backup keeps what came after a wipe.
    """

    def __init__(self, db: Database, clock: Clock, vector_index: VectorIndex | None) -> None:
        self._db = db
        self._clock = clock
        self._vector_index = vector_index
        self._scrubbing = threading.Lock()
        self._rests_until = 0.0

    def wipe(
        self,
        person: Person,
        *,
        shared: str,
        note: Callable[[WipeResult], None] | None,
        until: int = MAX_INT64,
    ) -> WipeResult:
        """Erases a person.

        `note` is called before anything can last, unless nothing was known of them; if it raises, nothing is
        erased. Without it nothing is, either: the answer says what would be.
        """
        user = person.user
        with self._db.write(undo=note is None) as db:
            position, wipe = db.run("position").get, _Wipe(db, self._clock, person, until)
            owned: list[tuple[Any, ...]] = db.run("owned", (user,)).fetchall()
            wipe.take_rooms(ns for (ns,) in owned)
            common = {*wipe.take_rooms(person.rooms), *wipe.take_older()}
            elsewhere = wipe.take_authored(shared)
            wipe.removed["replays"] = db.changed("wipe_kept_answers", user, until)
            wipe.removed["api_keys"] = db.changed("wipe_api_keys", user, until)
            named = db.changed("forget_actor", user, person.pseudonym)
            named += db.changed("forget_document_actor", user)
            keys = db.changed("wipe_key", person.subject, user)
            left = [room for room in _held(db, person, wipe.now) if not room.own]
            known = any((*wipe.removed.values(), keys, elsewhere, named, left))
            wiped = WipeResult(
                wipe.removed, keys > 0, elsewhere, _scrub_wanted(db) if known else db.mark("wipes"),
                known, wipe.transaction.at, position, sorted(common), left,
            )  # fmt: skip
            db.run("skip", (0, 1))  # so that an API key made after it has a higher position
            if known and note:
                note(wiped)
            return wiped

    def clean(
        self, ns: bytes, key: bytes, *, until: int, attributes: str, note: Callable[[int], None]
    ) -> int:
        """Takes away what a key held, live or not; how many versions that were.

        Tombstones stay, with these attributes. `note` is told the moment before anything can last, if
        anything goes.
        """
        with self._db.write() as db:
            transaction = Transaction(db, self._clock)
            if found := db.run("live_until", (ns, key, until)).fetchone():
                transaction.end(Live._make((*found, attributes)), "delete")
            removed = db.changed("clean", ns, key, until)
            db.run("bare_tombstones", (ns, key, until, attributes))
            if removed:
                _scrub_wanted(db)
                note(transaction.at)
            return removed

    def clear(self, ns: bytes) -> int:
        """Takes everything out of one namespace without a trace: revisions start again at 1."""
        with self._db.write() as db:
            removed = db.changed("wipe_namespace", ns, MAX_INT64)
            db.run("forget_namespace", (ns,))
            db.run("cleared")
            return removed

    def scrub(self, generation: int | None = None, note: Callable[[int], None] = lambda _: None) -> bool:
        """Rebuilds the file unless a scrub since that wipe has done so; scrubs that wait share one.

        One that took long is followed by a rest, in which wipes gather for the next one: who erases a little
        again and again must not keep everybody else waiting. `note` is told of how many wipes, if it was this
        process that rebuilt.
        """
        with self._scrubbing:
            wanted, before = self.wipes(), self.scrubbed()
            if self._is_scrubbed(wanted if generation is None else generation):
                return True
            if time.monotonic() < self._rests_until:
                return False
            if self._vector_index and not self._vector_index.remove_ended():
                return False
            started = time.monotonic()
            rebuilt = self._db.rebuild(lambda: self._is_scrubbed(wanted))
            if (took := time.monotonic() - started) > LONG_SECONDS:
                self._rests_until = time.monotonic() + RESTS * took
            if rebuilt and self._db.change("set_mark", wanted, "scrubbed"):
                note(wanted - before)
            return rebuilt

    def _is_scrubbed(self, generation: int) -> bool:
        return self.scrubbed() >= generation

    def residues(self) -> list[Residue]:
        """Where bytes of what was erased stay for a while, which no scrub reaches."""
        return self._db.residues()

    def scrubbed(self) -> int:
        """The last wipe whose bytes are gone from the file."""
        return self._db.mark("scrubbed")

    def wipes(self) -> int:
        """How often something was erased."""
        return self._db.mark("wipes")

    def count(self) -> int:
        """The same, with how often a namespace was cleared."""
        return int(self._column("erasures")[0])

    def users(self) -> Iterator[str]:
        """Everybody of whom there is anything."""
        subjects = self._column("subjects")
        yield from {*self._column("users"), *(each[5:] for each in subjects if each.startswith("user:"))}

    def pseudonyms(self) -> list[str]:
        """Those under which something stays that a wipe left without its author."""
        return self._column("pseudonyms")

    def common_rooms(self) -> list[bytes]:
        """Every namespace without an owner."""
        return self._column("common_rooms")

    def position(self, moment: int) -> int:
        """How far the log was at a moment."""
        return next(iter(self._column("position_at", moment)), 0)

    def skip(self, beyond: int, numbers: int) -> None:
        """Leaves sequence numbers out, which a lost future of this store may have used."""
        self._db.change("skip", beyond, numbers)

    def _column(self, name: str, *params: Value) -> list[Any]:
        return [value for (value,) in self._db.fetch(name, *params)]


class _Wipe:
    """One wipe inside its transaction, and what it has taken away so far."""

    def __init__(self, db: Connection, clock: Clock, person: Person, until: int) -> None:
        self._db = db
        self._person = person
        self._until = until
        self.now = clock()
        self.transaction = Transaction(db, clock)
        self.removed = dict.fromkeys(("memories", "turns", "versions", "vectors", "replays", "api_keys"), 0)

    def take_rooms(self, rooms: Iterable[bytes]) -> list[bytes]:
        """Empties whole rooms; which of them held anything."""
        found = []
        for ns in rooms:
            ((live,),) = self._db.run("count_live", (ns, self.now, self._until))
            ((vectors,),) = self._db.run("count_vectors", (ns,))
            if self._took(live, vectors, "wipe_namespace", ns):
                found.append(ns)
                self.removed["turns"] += (
                    live if ns.startswith(TURNS) and len(Namespace.decode(ns)) == 5 else 0
                )
        return found

    def take_older(self) -> list[bytes]:
        """Takes what only they wrote in older rooms without a trace; which rooms they wrote to."""
        found = []
        for ns, key, live, vectors, alone in self._all("older_keys"):
            found.append(ns)
            if alone:
                self._took(live, vectors, "wipe_place", ns, key)
        return found

    def take_authored(self, shared: str) -> int:
        """Takes their name off what they wrote into rooms of others, or all of it away; how many versions.

        A tombstone only loses its name: it holds nothing, and the count of revisions hangs on it. Of older
        rooms, what others wrote to as well is removed here.
        """
        elsewhere = 0
        for *fields, is_live, has_content, named, own in self._all("authored"):
            live, remove = Live._make(fields), own or shared == "remove"
            if remove and has_content:
                if is_live:
                    self.transaction.end(live, "delete")  # revisions go on, and readers are told
                self._db.run("remove", (live.seq,))
                self._db.run("bare_tombstone", (live.ns, live.key, live.revision + 1))
            elif named and (own or shared != "keep"):
                self._db.run("anonymise", (self._person.pseudonym, live.seq))
            else:
                continue
            if own:
                self.removed["memories"] += is_live
                self.removed["versions"] += has_content
            else:
                elsewhere += 1
        return elsewhere

    def _took(self, live: int, vectors: int, statement: str, ns: bytes, *key: bytes) -> int:
        removed = self._db.changed(statement, ns, *key, self._until)
        self._db.run("forget_namespace", (ns,))
        for name, count in (("memories", live), ("versions", removed), ("vectors", vectors)):
            self.removed[name] += count
        return removed

    def _all(self, name: str) -> list[tuple[Any, ...]]:
        bound = _bound(self._person, now=self.now, until=self._until)
        return self._db.run(name, bound).fetchall()


def _bound(person: Person, **more: Value) -> dict[str, Value]:
    """The parameters of the statements in `people.sql`."""
    older = json.dumps([(low.hex(), high.hex()) for low, high in person.older])
    return {"user": person.user, "pseudonym": person.pseudonym, "older": older,
            "authorless": person.authorless, **more}  # fmt: skip


def _held(db: Connection, person: Person, now: int) -> list[PersonalDataRow]:
    """What there is of a person in each room."""
    return [PersonalDataRow._make(row) for row in db.run("held", _bound(person, now=now))]


def _scrub_wanted(db: Connection) -> int:
    """Marks that bytes are left to be scrubbed, and says which generation of them."""
    generation = db.mark("wipes") + 1
    db.run("set_mark", (generation, "wipes"))
    return generation


def _api_key(id: str, client: str, user: str | None, roles: str, trusted: int, at: int, _: bytes) -> ApiKey:
    return ApiKey(id, client, user, roles.split(), bool(trusted), to_datetime(at))
