"""Erasing from the log: a whole user, or one key; what a restored backup has to do over again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apsw

from alcove.core.clock import Clock
from alcove.engine import people, statements
from alcove.engine.base import FOR_EVER
from alcove.engine.database import Database
from alcove.engine.log import SQL as LOG
from alcove.engine.log import Live, Transaction
from alcove.engine.operating import Person, Wiped

SQL = statements.load("erasure.sql")


class Erasure:
    """`operating.Erasure` over one SQLite file."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def wipe(
        self,
        person: Person,
        *,
        shared: str,
        noted: Callable[[Wiped], None],
        until: int = FOR_EVER,
        rooms: Sequence[bytes] = (),
        dry_run: bool = False,
    ) -> Wiped:
        user, now = person.user, self._clock()
        with self._db.write(undo=dry_run) as db:
            position, transaction = db.execute(SQL["position"]).get, Transaction.now(db, self._clock)
            wipe = _Wipe(db, transaction, person, now, until)
            wipe.take_rooms(db.execute(SQL["owned"], (user,)).fetchall())
            common = {*wipe.take_rooms([(ns,) for ns in rooms]), *wipe.take_older()}
            elsewhere = wipe.take_authored(shared)
            replays = _changed(db, "wipe_replays", user, until)
            api_keys = _changed(db, "wipe_api_keys", user, until)
            named = sum(_changed(db, each, user) for each in ("forget_actor", "forget_document_actor"))
            keys = _changed(db, "wipe_key", person.subject, user)
            left = [room for room in people.held(db, person, now) if not room.own]
            known = bool(wipe.versions or replays or api_keys or keys or elsewhere or named or left)
            wiped = Wiped(
                wipe.memories, wipe.versions, wipe.vectors, replays, api_keys, keys, elsewhere,
                generation=_scrub_wanted(db) if known else _wipes(db), known=known, moment=transaction.at,
                position=position, rooms=sorted(common), left=left,
            )  # fmt: skip
            db.execute(SQL["skip"], (0, 1))  # so that an API key made after it has a higher position
            if known and not dry_run:
                noted(wiped)
            return wiped

    def clean(
        self,
        ns: bytes,
        key: bytes,
        *,
        until: int,
        attributes: str = "{}",
        noted: Callable[[int], None] = lambda moment: None,
    ) -> int:
        with self._db.write() as db:
            transaction = Transaction.now(db, self._clock)
            if found := db.execute(SQL["live_until"], (ns, key, until)).fetchone():
                transaction.end(Live._make((*found, attributes)), "delete")
            removed = _changed(db, "clean", ns, key, until)
            db.execute(SQL["bare_tombstones"], (ns, key, until, attributes))
            if removed:
                _scrub_wanted(db)
                noted(transaction.at)
            return removed

    def clear(self, ns: bytes) -> int:
        with self._db.write() as db:
            removed = _changed(db, "wipe_namespace", ns, FOR_EVER)
            db.execute(LOG["forget_namespace"], (ns,))
            db.execute(SQL["cleared"])
            return removed

    def users(self) -> Iterator[str]:
        subjects = self._column("subjects")
        yield from {*self._column("users"), *(each[5:] for each in subjects if each.startswith("user:"))}

    def pseudonyms(self) -> list[str]:
        return self._column("pseudonyms")

    def common_rooms(self) -> list[bytes]:
        return self._column("common_rooms")

    def position(self, moment: int) -> int:
        return next(iter(self._column("position_at", moment)), 0)

    def skip(self, beyond: int, numbers: int) -> None:
        with self._db.write() as db:
            db.execute(SQL["skip"], (beyond, numbers))

    def wipes(self) -> int:
        with self._db.read() as db:
            return _wipes(db)

    def _column(self, name: str, *params: apsw.SQLiteValue) -> list[Any]:
        with self._db.read() as db:
            return [value for (value,) in db.execute(SQL[name], params)]


class _Wipe:
    """One wipe inside its transaction, and what it has taken away so far."""

    def __init__(
        self, db: apsw.Connection, transaction: Transaction, person: Person, now: int, until: int
    ) -> None:
        self._db = db
        self._transaction = transaction
        self._person = person
        self._now = now
        self._until = until
        self.memories = self.versions = self.vectors = 0

    def take_rooms(self, rooms: Iterable[tuple[Any, ...]]) -> list[bytes]:
        """Empties whole rooms; which of them held anything."""
        found = []
        for (ns,) in rooms:
            ((live,),) = self._db.execute(SQL["count_live"], (ns, self._now, self._until))
            ((vectors,),) = self._db.execute(SQL["count_vectors"], (ns,))
            if self._took(live, vectors, "wipe_namespace", ns):
                found.append(ns)
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
                    self._transaction.end(live, "delete")  # revisions go on, and readers are told
                self._db.execute(SQL["remove"], (live.seq,))
                self._db.execute(SQL["bare_tombstone"], (live.ns, live.key, live.revision + 1))
            elif named and (own or shared != "keep"):
                self._db.execute(SQL["anonymise"], (self._person.pseudonym, live.seq))
            else:
                continue
            if own:
                self.memories, self.versions = self.memories + is_live, self.versions + has_content
            else:
                elsewhere += 1
        return elsewhere

    def _took(self, live: int, vectors: int, statement: str, ns: bytes, *key: bytes) -> int:
        removed = _changed(self._db, statement, ns, *key, self._until)
        self._db.execute(LOG["forget_namespace"], (ns,))
        self.memories += live
        self.versions += removed
        self.vectors += vectors
        return removed

    def _all(self, name: str) -> list[tuple[Any, ...]]:
        bound = people.bound(self._person, now=self._now, until=self._until)
        return self._db.execute(people.SQL[name], bound).fetchall()


def _wipes(db: apsw.Connection) -> int:
    ((value,),) = db.execute(LOG["mark"], ("wipes",))
    return int(value)


def _scrub_wanted(db: apsw.Connection) -> int:
    """Marks that bytes are left to be scrubbed, and says which generation of them."""
    generation = _wipes(db) + 1
    db.execute(LOG["set_mark"], (generation, "wipes"))
    return generation


def _changed(db: apsw.Connection, name: str, *params: apsw.SQLiteValue) -> int:
    db.execute(SQL[name], params)
    return db.changes()
