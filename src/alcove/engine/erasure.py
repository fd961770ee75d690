"""Erasing from the log: a whole user, or one key; what a restored backup has to do over again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import apsw

from alcove.clock import Clock
from alcove.engine import statements
from alcove.engine.base import FOR_EVER, Wiped
from alcove.engine.database import Database
from alcove.engine.log import SQL as LOG
from alcove.engine.log import Live, Transaction

SQL = statements.load("erasure.sql")


class Erasure:
    """`base.Erasure` over one SQLite file."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def wipe(
        self, user: str, *, subject: str, shared: str, noted: Callable[[int], None], until: int = FOR_EVER
    ) -> Wiped:
        with self._db.write() as db:
            transaction = Transaction.now(db, self._clock)
            noted(transaction.at)
            memories = versions = vectors = 0
            for (ns,) in db.execute(SQL["owned"], (user,)).fetchall():
                ((live,),) = db.execute(SQL["count_live"], (ns, self._clock(), until))
                ((embedded,),) = db.execute(SQL["count_vectors"], (ns,))
                memories, vectors = memories + live, vectors + embedded
                versions += _changed(db, "wipe_namespace", ns, until)
                db.execute(LOG["forget_namespace"], (ns,))
            replays = _changed(db, "wipe_replays", user, until)
            api_keys = _changed(db, "wipe_api_keys", user, until)
            elsewhere = 0 if shared == "keep" else _wipe_shared(transaction, db, user, shared, until)
            named = sum(_changed(db, each, user, until) for each in ("forget_actor", "forget_document_actor"))
            keys = _changed(db, "wipe_key", subject, user)
            touched = versions or replays or api_keys or keys or elsewhere or named
            generation = _scrub_wanted(db) if touched else _wipes(db)
            return Wiped(memories, versions, vectors, replays, api_keys, keys, elsewhere, generation)

    def clean(self, ns: bytes, key: bytes, *, until: int) -> int:
        with self._db.write() as db:
            if found := db.execute(SQL["live_until"], (ns, key, until)).fetchone():
                Transaction.now(db, self._clock).end(Live._make(found), "delete")
            removed = _changed(db, "clean", ns, key, until)
            if removed:
                _scrub_wanted(db)
            return removed

    def clear(self, ns: bytes) -> int:
        with self._db.write() as db:
            removed = _changed(db, "wipe_namespace", ns, FOR_EVER)
            db.execute(LOG["forget_namespace"], (ns,))
            db.execute(SQL["cleared"])
            return removed

    def users(self) -> Iterator[str]:
        with self._db.read() as db:
            named = [user for (user,) in db.execute(SQL["users"])]
            subjects = [subject for (subject,) in db.execute(SQL["subjects"])]
        yield from {*named, *(subject[5:] for subject in subjects if subject.startswith("user:"))}

    def skip(self, numbers: int) -> None:
        with self._db.write() as db:
            db.execute(SQL["skip"], (numbers,))

    def wipes(self) -> int:
        with self._db.read() as db:
            return _wipes(db)


def _wipe_shared(transaction: Transaction, db: apsw.Connection, user: str, shared: str, until: int) -> int:
    """Takes the user's name off what they wrote into other rooms, or takes the whole of it away.

    A tombstone only loses its name: it holds nothing, and the count of revisions hangs on it.
    """
    authored = db.execute(SQL["authored"], (user, until)).fetchall()
    for *fields, is_live, has_content in authored:
        live, remove = Live._make(fields), shared == "remove"
        if remove and is_live:
            transaction.end(live, "delete")  # the count of revisions goes on, and readers are told
        db.execute(SQL["remove" if remove and has_content else "anonymise"], (live.seq,))
    return len(authored)


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
