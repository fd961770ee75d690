"""What indexing and searching ask of a SQLite file: the queue of texts, their vectors, what changed since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from alcove.engine import statements
from alcove.engine.base import Change, IndexState, IndexStatus, Parked, Row, Scope, Text, TextToIndex
from alcove.engine.database import Database
from alcove.engine.log import COLUMNS
from alcove.engine.scopes import predicate
from alcove.filters import Params

SQL = statements.load("index.sql", columns=COLUMNS)
NEAR = 5000
"""Versions after a position up to which they are read along the log rather than from their subtree."""


class Index:
    """`base.Index` over one SQLite file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # The queue

    def claim(self, *, now: int, until: int, limit: int) -> list[TextToIndex]:
        """Some texts that nobody else works on; they are free again at `until`."""
        if (due := self.next_due()) is None or due > now:
            return []
        with self._db.write() as db:
            claimed = db.execute(SQL["claim"], (until, now, limit)).fetchall()
            texts = []
            for seq, tries in claimed:
                if found := db.execute(SQL["texts"], (seq,)).fetchone():
                    texts.append(TextToIndex._make((*found, tries)))
                else:
                    db.execute(SQL["indexed"], (seq,))
            return texts

    def next_due(self) -> int | None:
        """When the next text may be claimed."""
        ((due,),) = self._all("next_due")
        return due  # type: ignore[no-any-return]

    def store(self, embedder: str, bodies: Sequence[tuple[int, bytes]]) -> None:
        """Keeps vectors and takes their texts off the queue, in one transaction."""
        with self._db.write() as db:
            for seq, body in bodies:
                db.execute(SQL["add_vectors"], (seq, embedder, body))
                db.execute(SQL["indexed"], (seq,))

    def keep(self, embedder: str, bodies: Sequence[tuple[int, bytes]]) -> None:
        """Keeps vectors of an embedder that does not serve yet, beside those of the one that does."""
        with self._db.write() as db:
            for seq, body in bodies:
                db.execute(SQL["add_vectors"], (seq, embedder, body))

    def postpone(self, seqs: Sequence[int], due: int | None, error: str) -> None:
        """Puts texts back until a moment; None parks them."""
        with self._db.write() as db:
            db.executemany(SQL["postpone"], [(due, error, seq) for seq in seqs])

    def retry(self) -> int:
        """Makes everything that waits or is parked due now."""
        with self._db.write() as db:
            db.execute(SQL["retry"])
            return db.changes()

    def waits(self, seq: int) -> tuple[bool, str | None]:
        """Whether a version waits for its vectors, and what went wrong so far."""
        found = self._all("waits", seq)
        return bool(found), found[0][0] if found else None

    def status(self, embedder: str) -> IndexStatus:
        ((waiting, parked, indexed, oldest),) = self._all("status", embedder)
        return IndexStatus(waiting, parked, indexed, oldest)

    def parked(self) -> list[Parked]:
        return [Parked._make(row) for row in self._all("parked")]

    # Which embedder

    def serving(self, first: str | None = None) -> str | None:
        """The embedder whose vectors are searched; the first one to ask becomes it."""
        found = self._all("serving")
        if not found and first is not None:
            with self._db.write() as db:
                db.execute(SQL["serve_first"], (first,))
            found = self._all("serving")
        return found[0][0] if found else None

    def unembedded(self, embedder: str, *, after: int, limit: int) -> list[TextToIndex]:
        return [TextToIndex._make((*row, 0)) for row in self._all("unembedded", embedder, after, limit)]

    def switch(self, embedder: str) -> bool:
        """Serves an embedder's vectors from now on and drops the others', unless some are still missing."""
        with self._db.write() as db:
            if db.execute(SQL["unembedded"], (embedder, 0, 1)).fetchone():
                return False
            db.execute(SQL["serve"], (embedder,))
            db.execute(SQL["drop_other_vectors"], (embedder,))
            db.execute("DELETE FROM to_index")
            return True

    # What is there

    def state(self) -> IndexState:
        return IndexState._make(self._all("state")[0])

    def texts(self, low: bytes, high: bytes, embedder: str) -> tuple[IndexState, list[Text]]:
        """Every live text of a subtree, as of one state."""
        with self._db.read() as db, db:  # one snapshot
            state = IndexState._make(db.execute(SQL["state"]).fetchall()[0])
            found = [Text._make(row) for row in db.execute(SQL["corpus"], (low, high, embedder))]
        return state, found

    def changes(self, low: bytes, high: bytes, embedder: str, since: IndexState) -> Change:
        """What happened to a subtree's texts since a state."""
        with self._db.read() as db, db:  # one snapshot
            change = _change(db, low, high, embedder, since)
        return change  # noqa: RET504  the snapshot may swallow nothing, but mypy cannot know

    def allowed(self, scope: Scope, now: int) -> list[tuple[int, int | None]]:
        """Which of a subtree's texts may be seen and were asked for, as far as SQL can tell; until when."""
        params: Params = [scope.low, scope.high, now]
        statement = SQL["allowed"].format(where=predicate(scope, params))
        with self._db.read() as db:
            return db.execute(statement, params).fetchall()  # type: ignore[return-value]

    def found(self, seqs: Sequence[int], now: int) -> Iterator[Row]:
        """The versions of these numbers that are still live."""
        with self._db.read() as db:
            rows = [db.execute(SQL["found"], (seq, now)).fetchone() for seq in seqs]
        return (Row._make(row) for row in rows if row)

    def _all(self, name: str, *params: apsw.SQLiteValue) -> list[tuple[Any, ...]]:
        with self._db.read() as db:
            return db.execute(SQL[name], params).fetchall()


def _change(db: apsw.Connection, low: bytes, high: bytes, embedder: str, since: IndexState) -> Change:
    state = IndexState._make(db.execute(SQL["state"]).fetchall()[0])
    near = state.seq - since.seq < NEAR
    happened = SQL["changed_by_seq" if near else "changed_by_subtree"]
    live: list[int] | None = None
    came: list[tuple[Any, ...]] = []
    if state.wipes != since.wipes or db.execute(happened, (low, high, since.seq)).fetchone():
        if not near:
            return Change(state, None, None)
        live = [seq for (seq,) in db.execute(SQL["live_texts"], (low, high))]
        came += db.execute(SQL["came_by_seq"], (low, high, embedder, since.seq))
    if state.vectors != since.vectors:
        came += db.execute(SQL["vectors_since"], (low, high, embedder, since.vectors))
    return Change(state, [*{row[0]: Text._make(row) for row in came}.values()], live)
