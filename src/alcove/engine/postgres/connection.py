"""A connection to PostgreSQL that runs statements by name, each prepared once, and many in one journey.

It talks to the driver's own library below its cursors, which would cost several times what a statement does:
adapting, errors, streams and copies are the driver's.
"""

from __future__ import annotations

import json
import re
import select
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import errors, postgres
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader, PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8BinaryDumper

from alcove.engine.database import Bound, Findings, format_finding, pairs
from alcove.engine.postgres.text_escaping import escape, unescape
from alcove.engine.statements import NO_HINTS, Value, load_all

STATEMENTS = load_all("postgres", "candidates", "vector_store", "scrub", hints=NO_HINTS)
_PARAMETER = re.compile(r"\?(\d*)|(?<!:):([a-z]\w*)")
CONNECT_SECONDS = 5
"""How long it may take to reach the server."""
AT_ONCE = 200
"""Rows that are taken at once of a statement whose reader may stop."""
MOST_PREPARED = 500
"""Statements that are kept prepared, each once for every set of types that it is run with."""
SESSION_SETTINGS = {
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "DateStyle": "ISO, YMD",
    "TimeZone": "UTC",
    "quote_all_identifiers": "off",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""What every connection needs, whatever the defaults of the server, the database or the role are.

Writers queue for an advisory lock and must then see what was committed while they waited: read committed.
Consistent reads ask for repeatable read themselves. Requests, writers and scrubs have time limits of their
own, and a connection that the server ends for being idle loses the locks it holds.

`default_transaction_read_only` is left alone: an operator, or a provider whose disk is full, stops writes
with it.
"""
_SET_SESSION = """
    SELECT set_config(name, value, FALSE) FROM (
        SELECT * FROM json_each_text(CAST($1 AS JSON)) UNION ALL
        SELECT 'synchronous_commit', 'on' WHERE current_setting('synchronous_commit') = 'off' UNION ALL
        SELECT 'session_replication_role', 'origin'
        WHERE current_setting('session_replication_role') = 'replica'
    ) needed (name, value) WHERE current_setting(name, TRUE) IS NOT NULL"""
"""Skips what older servers do not know. A commit is at least on the server's disk; the operator may ask for
more, such as a replica's. The triggers that keep the queue and the vectors right do not fire for a `replica`,
which only a superuser can be or change."""
_TO_INDEX = "ALTER TABLE versions {} TRIGGER version_to_index"
_OF_A_VERSION = (
    "CREATE TEMPORARY TABLE loading AS SELECT {fields} FROM {table} LIMIT 0",
    "loading",
    "INSERT INTO {table} (ns, {fields}) SELECT v.ns, l.* FROM loading l JOIN versions v USING (seq);"
    "DROP TABLE loading",
)
_LOADING = {
    "versions": (_TO_INDEX.format("DISABLE"), "versions", _TO_INDEX.format("ENABLE")),
    **dict.fromkeys(("to_index", "pieces", "touches"), _OF_A_VERSION),
}
"""What is done before rows of a table are loaded, into where, and after: a trigger would look for the place
of each version in line, and what waits for one has its namespace, which other databases leave out."""
_Prepared = tuple[bytes, tuple[int, ...]]
"""A statement, and the types of its parameters."""


class Found:
    """The rows that a statement found; they are waited for when they are asked for."""

    __slots__ = ("_at", "_db", "result")

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._at = 0
        self.result: PGresult | None = None

    def _rows(self, upto: int | None = None) -> list[tuple[Any, ...]]:
        result = self.result or self._db.answer(self)
        first, self._at = self._at, min(result.ntuples, result.ntuples if upto is None else upto)
        self._db.adapt.set_pgresult(result)
        return self._db.adapt.load_rows(first, self._at, tuple)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while rows := self._rows(self._at + AT_ONCE):
            yield from rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(iter(self._rows(self._at + 1)), None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows()

    @property
    def rowcount(self) -> int:
        """How many rows were found or changed."""
        return (self.result or self._db.answer(self)).command_tuples or 0

    @property
    def get(self) -> Any:
        row = self.fetchone()
        return row if row is None or len(row) > 1 else row[0]


def set_session(db: psycopg.Connection[Any], settings: Mapping[str, str] = SESSION_SETTINGS) -> None:
    """Changes settings of any connection for as long as it lasts; it must commit each statement by itself."""
    with psycopg.RawCursor(db) as cursor:
        cursor.execute(_SET_SESSION, (json.dumps(settings),))


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection, which one user at a time has."""

    def __init__(self, *args: Any, **named: Any) -> None:
        """Every integer is of one width, so that a statement is planned once, and every text is as it was."""
        super().__init__(*args, **named)
        self.cursor_factory = psycopg.RawCursor
        self.adapters.register_dumper(int, Int8BinaryDumper)
        self.adapters.register_dumper(str, _TextDumper)
        self.adapters.register_loader("text", _TextLoader)
        self.adapt = Transformer(self)
        self._kept: dict[_Prepared, bytes] = {}
        self._names = 0
        self._together = self._held_back = False
        self._sent: deque[Found | _Prepared] = deque()
        """What has no answer yet, in order."""
        self._wrong: psycopg.Error | None = None
        self._last: Found | None = None
        self._readable, self._ready = select.poll(), select.poll()
        self._readable.register(self.fileno(), select.POLLIN)
        self._ready.register(self.fileno(), select.POLLIN | select.POLLOUT)

    @classmethod
    def to(cls, address: str, search_path: str | None = None) -> Connection:
        """Connects, and sets what the engine relies on; every connection of the engine is made here.

        `search_path`: where tables and types are looked up, if not where the address says. What the driver
        would prepare by itself it would also forget by itself, so it prepares nothing.
        """
        db = cls.connect(address, autocommit=True, connect_timeout=CONNECT_SECONDS, prepare_threshold=None)
        try:
            db.use(
                SESSION_SETTINGS if search_path is None else SESSION_SETTINGS | {"search_path": search_path}
            )
        except BaseException:
            db.close()
            raise
        return db

    def use(self, settings: Mapping[str, str]) -> None:
        """Changes settings for as long as the connection lasts."""
        set_session(self, settings)

    def run(self, name: str, params: Bound = (), **parts: str) -> Found:
        statement = STATEMENTS[name]
        if parts:
            return self.run_text(statement.format(**parts), params, keep=False)
        return self.run_text(statement, params)

    def run_kept(self, name: str, params: Bound = (), **parts: str) -> Found:
        return self.run_text(STATEMENTS[name].format(**parts), params)

    def run_text(self, statement: str, params: Bound = (), *, keep: bool = True) -> Found:
        """Runs a statement as it is spelled here; `keep`: it is one of few, and comes again and again."""
        text, names = number_parameters(statement)
        if isinstance(params, Mapping):
            params = [params[name] for name in names]
        values = self.adapt.dump_sequence(params, [PyFormat.BINARY] * len(params))
        types, formats = self.adapt.types or (), self.adapt.formats
        prepared = text, types
        name = self._kept.get(prepared)
        if name is None and keep and len(self._kept) < MOST_PREPARED:
            self._names += 1
            self._kept[prepared] = name = b"alcove_%d" % self._names
            self.pgconn.send_prepare(name, text, types)
            self._note(prepared)
        if name is None:
            self.pgconn.send_query_params(text, values, types, formats, Format.BINARY)
        else:
            self.pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        self._last = found = Found(self)
        self._note(found)
        return found

    def run_each(self, name: str, every: Iterable[Sequence[Value]]) -> None:
        with self.together():
            for params in every:
                self.run(name, params)

    def load(self, table: str, fields: str, rows: Sequence[Sequence[Any]]) -> None:
        if together := self._together:
            self._sync()
        parts = {"table": table, "fields": fields}
        before, into, after = _LOADING.get(table, ("SELECT", table, "SELECT"))
        self.execute(before.format(**parts))
        with self.cursor().copy(f"COPY {into} ({fields}) FROM STDIN (FORMAT BINARY)") as copy:
            for row in rows:
                copy.write_row(row)
        self.execute(after.format(**parts))
        if together:
            self._begin_together()

    def changed(self, name: str, *params: Value) -> int:
        return self.run(name, params).rowcount

    def mark(self, name: str) -> int:
        return int(self.run("mark", (name,)).get)

    def added(self) -> int:
        assert self._last is not None
        return int(self._last.get)

    def checks(self, file: str) -> Findings:
        for name, count, finding in pairs(file):
            ((compared,),) = self.run_text(count)
            yield name, compared, [format_finding(row[0]) for row in self.run_text(finding)]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Statements inside of it are sent on when an answer is asked for, and at its end."""
        if self._together:
            yield
            return
        self._begin_together()
        try:
            yield
        except Exception:
            with suppress(psycopg.Error):
                self._sync()
            raise
        else:
            self._sync()

    def _begin_together(self) -> None:
        self.pgconn.enter_pipeline_mode()
        self._together = True

    def _note(self, sent: Found | _Prepared) -> None:
        """Notes what was sent; alone, its answer is waited for."""
        self._sent.append(sent)
        if self._together:
            self._held_back = True
            return
        self._flush()
        while result := self._next():
            self._take(result)
        self._raise()

    def send(self) -> None:
        """Sends what is held back; nothing is waited for."""
        if self._held_back:
            self.pgconn.send_flush_request()
            self._flush()

    def answer(self, found: Found) -> PGresult:
        """Waits for the answer to a statement that was sent together with others."""
        self.send()
        while found.result is None:
            if not self._sent:
                raise psycopg.InterfaceError("a statement was broken off")
            if result := self._next():
                self._take(result)
            if self._wrong:
                raise self._wrong
        return found.result

    def _sync(self) -> None:
        """Waits for all answers; raises the first error, after which nothing is under way."""
        self._together = False
        self.pgconn.pipeline_sync()
        self._flush()
        while not (result := self._next()) or result.status != ExecStatus.PIPELINE_SYNC:
            if result:
                self._take(result)
        self.pgconn.exit_pipeline_mode()
        self._raise()

    def _raise(self) -> None:
        wrong, self._wrong = self._wrong, None
        if wrong:
            raise wrong

    def _flush(self) -> None:
        self._held_back = False
        while self.pgconn.flush():
            self._ready.poll()
            self.pgconn.consume_input()  # a server that cannot answer takes nothing

    def _next(self) -> PGresult | None:
        """The next answer; None after those to one statement."""
        pgconn = self.pgconn
        while pgconn.is_busy():
            self._readable.poll()
            pgconn.consume_input()
        if (result := pgconn.get_result()) is None and pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError("the server hung up")
        return result

    def _take(self, result: PGresult) -> None:
        asked = self._sent.popleft() if self._sent else None  # a server that ends says so unasked
        if result.status in _DONE:
            if isinstance(asked, Found):
                asked.result = result
            return
        if isinstance(asked, tuple):
            self._kept.pop(asked, None)
        if self.pgconn.status != ConnStatus.OK:
            raise psycopg.OperationalError(result.get_error_message())
        if self._wrong is None:
            self._wrong = errors.error_from_result(result)


_DONE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


@lru_cache(1024)
def number_parameters(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """Returns a statement with `$1`, `$2`, … for `?`, `?2` and `:name`; and those names, in their order."""
    names: list[str] = []
    highest = 0

    def number(match: re.Match[str]) -> str:
        nonlocal highest
        if name := match[2]:
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        place = int(match[1]) if match[1] else highest + 1
        highest = max(highest, place)
        return f"${place}"

    return _PARAMETER.sub(number, statement).encode(), tuple(names)


class _TextDumper(Dumper):
    """A text, of which every one can be kept."""

    format = Format.BINARY
    oid = postgres.types["text"].oid

    def dump(self, obj: str) -> bytes:
        return escape(obj).encode()


class _TextLoader(Loader):
    """What was kept."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return unescape(bytes(data).decode())
